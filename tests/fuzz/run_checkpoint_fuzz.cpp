// A run's checkpoint: what is accepted can be gone on with, and is written as it was read. Header and checksums are made to
// fit, so that the inputs reach what they cover.
#include <cstring>

#include "loader/frame_sum.h"
#include "loader/xxh64.h"
#include "runtime/checkpoint_file.h"
#include "tests/fuzz/fuzz_target.h"

namespace {

constexpr size_t kHeaderBytes = 104, kNumGroupsAt = 72, kBodyBytesAt = 80, kSumAt = 88, kHashAt = 96;

void put(std::vector<std::byte>* bytes, size_t at, uint64_t value) { std::memcpy(bytes->data() + at, &value, sizeof value); }

std::vector<std::byte> sealed(std::vector<std::byte> bytes) {
  if (bytes.size() < kHeaderBytes) return bytes;
  put(&bytes, kBodyBytesAt, bytes.size() - kHeaderBytes);
  put(&bytes, kSumAt, otr::frame_sum(bytes.data() + kHeaderBytes, bytes.size() - kHeaderBytes));
  put(&bytes, kHashAt, otr::xxh64(bytes.data(), kHashAt));
  return bytes;
}

void check(std::vector<std::byte> bytes) {
  using namespace otr::fuzz;
  uint64_t num_groups = 0;
  if (bytes.size() >= kHeaderBytes) std::memcpy(&num_groups, bytes.data() + kNumGroupsAt, sizeof num_groups);
  const auto file = otr::CheckpointFile::parse("state", std::move(bytes));
  if (!file.ok() && file.status().code() == otr::StatusCode::kInvalidArgument) return;  // it is something else
  if (!file.ok()) return require_reason(file.status(), "state: ");
  const otr::RequestLimits limits{.vocab_size = 97, .context_limit = 512, .num_pages = 64, .eos_ids = {3}};
  const otr::CheckpointIdentity identity{.isa = "cpu-avx2", .library = "0.1.0", .weights_digest = 7, .weight_version = 0};
  auto groups = file.value().restore(identity, limits);
  if (!groups.ok() && groups.status().code() == otr::StatusCode::kNeverFits) return;
  if (!groups.ok()) return require_reason(groups.status(), "state: ");
  require(groups.value().size() == num_groups, "every group is there");
  for (const auto& samples : groups.value()) {
    require(!samples.empty(), "a group has samples");
    for (const auto& sample : samples) {
      const otr::Sequence& s = *sample.sequence;
      require(s.num_tokens() <= s.max_tokens && s.tokens.capacity() >= static_cast<size_t>(s.max_tokens), "tokens have room");
      require(s.weight_spans.front().first_token == 0 &&
                  s.weight_spans.back().first_token <= static_cast<size_t>(s.num_tokens() - s.num_prompt()),
              "spans of weights are of its tokens");
      require(sample.is_finished || s.group->is_score || s.num_tokens() < s.max_tokens,
              "what is unfinished has something to do");
      for (const int32_t token : s.tokens) require(token >= 0 && token < limits.vocab_size, "tokens are in the vocabulary");
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::vector<std::byte> bytes(size);
  if (size > 0) std::memcpy(bytes.data(), data, size);
  check(bytes);
  check(sealed(std::move(bytes)));
  return 0;
}
