// Messages between an engine and its worker processes: what is accepted is within the limits, and is written back as the same
// bytes. The first byte says which message the others are.
#include <algorithm>
#include <vector>

#include "graph/rope_frequencies.h"
#include "runtime/link_wire.h"
#include "runtime/page_net_wire.h"
#include "runtime/report_wire.h"
#include "tests/fuzz/fuzz_target.h"

namespace {

using namespace otr;
using fuzz::require;

void check_refusal(const Status& status) {
  require(status.code() == StatusCode::kBadInput && !status.message().empty(), "a wrong message is bad input, and why");
}

void check_start(WireView in) {
  constexpr StartLimits kLimits{.vocab_size = 100, .context_limit = 64, .num_pages = 8};
  StartPages pages;
  const auto read = decode_start(in, kLimits, &pages);
  if (!read.ok()) return check_refusal(read.status());
  const Sequence& s = *read.value();
  require(s.num_tokens() >= 1 && s.num_tokens() <= s.max_tokens && s.max_tokens <= kLimits.context_limit, "its tokens fit");
  require(s.group->is_score || s.num_tokens() < s.max_tokens, "something is left to draw");
  require(s.logits_from() >= 0 && s.logits_from() <= s.num_target(), "its next row is one of its own");
  for (const int32_t token : s.tokens) require(token >= 0 && token < kLimits.vocab_size, "tokens are in the vocabulary");
  WireBytes again;
  encode_start(s, &again, pages);
  require(std::ranges::equal(again, in), "what is written is what was read");
  s.group->disband();
}

void check_report(WireView in) {
  constexpr int32_t kNumWorkers = 4;
  ProcessReport report;
  if (const Status status = decode_report(in, kNumWorkers, &report); !status.ok()) return check_refusal(status);
  for (const SampleGiven& g : report.given) require(g.to >= 0 && g.to < kNumWorkers, "samples go to workers that are there");
  WireBytes again;
  encode_report(report, &again);
  require(std::ranges::equal(again, in), "what is written is what was read");
}

void check_setup(WireView in) {
  const int files[] = {10, 11, 12, 13};
  const auto read = decode_setup(in, files);
  if (!read.ok()) return check_refusal(read.status());
  require(read.value().index < read.value().num_workers, "the worker is one of them");
  const ModelConfig& target = read.value().target.config;
  std::vector<float> frequencies(static_cast<size_t>(target.head_dim) / 2);
  rope_frequencies(target, frequencies);
  require(std::ranges::all_of(frequencies, [](float f) { return f >= 0 && f <= 1; }), "frequencies are between 0 and 1");
  WireBytes again;
  std::vector<int> files_again;
  encode_setup(read.value(), &again, &files_again);
  require(std::ranges::equal(files_again, files), "every file has its place");
}

void check_link(WireView in) {
  constexpr LinkLimits kLimits{
      .start = {.vocab_size = 100, .context_limit = 64, .num_pages = 8}, .num_workers = 4, .capacity = 8};
  const auto read = decode_link(in, kLimits);
  if (!read.ok()) return check_refusal(read.status());
  const LinkMessage& m = read.value();
  require(m.opened.size() <= kLimits.capacity && m.verdicts.size() <= kLimits.capacity && m.drafts.size() <= kLimits.capacity,
          "there is room for it");
  for (const DraftMessage& d : m.drafts) {
    for (const int32_t token : d.view())
      require(token >= 0 && token < kLimits.start.vocab_size, "tokens are in the vocabulary");
  }
  WireBytes again;
  encode_link(m, &again);
  require(std::ranges::equal(again, in), "what is written is what was read");
}

void check_progress(WireView in) {
  const auto read = decode_progress(in, 100);
  if (!read.ok()) return check_refusal(read.status());
  WireBytes again;
  encode_progress(read.value(), &again);
  require(std::ranges::equal(again, in), "what is written is what was read");
}

void check_ticks(WireView in) {
  const auto check = [](const TraceTick& t) { require(t.age >= 0 && t.worker == 1, "it has ended"); };
  if (const Status status = decode_ticks(in, 1, int64_t{1} << 60, check); !status.ok()) check_refusal(status);
}

void check_net(WireView in) {
  WireBytes again;
  if (const auto order = decode_net_order(in, 4); order.ok()) {
    require(order.value().rank < order.value().size && order.value().pull.from < 4, "ranks and workers are there");
    encode_net_order(order.value(), &again);
  } else if (const auto news = decode_net_news(in, 4); news.ok()) {
    encode_net_news(news.value(), &again);
  } else {
    check_refusal(order.status());
    return check_refusal(news.status());
  }
  require(std::ranges::equal(again, in), "what is written is what was read");
}

template <typename Decoded>
void check_small(const Decoded& decoded) {
  if (!decoded.ok()) check_refusal(decoded.status());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const WireView in(reinterpret_cast<const std::byte*>(data) + 1, size - 1);
  switch (data[0] % 16) {
    case 0: check_start(in); break;
    case 1: check_report(in); break;
    case 2: check_setup(in); break;
    case 3: check_small(decode_move(in, 4)); break;
    case 4: check_small(decode_u64(in)); break;
    case 5: check_small(decode_ready(in)); break;
    case 6: check_small(decode_heartbeat(in)); break;
    case 7: require(!decode_failed(in).ok(), "a failure is never ok"); break;
    case 8: check_link(in); break;
    case 9: check_progress(in); break;
    case 10: check_ticks(in); break;
    case 11: check_small(decode_lend(in, 4)); break;
    case 12: check_small(decode_roles(in)); break;
    case 13: check_small(decode_relink(in, 4)); break;
    case 14: check_small(decode_name(in)); break;
    case 15: check_net(in); break;
  }
  return 0;
}
