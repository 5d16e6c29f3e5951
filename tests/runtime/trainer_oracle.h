// What an engine owes a trainer, and what it must be: the oracle asks plain engines, one sample at a time.
//
// Thread safety: none.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/runtime/test_engine.h"
#include "tests/runtime/trainer_tensors.h"

namespace otr {

// A model whose weights come in two kinds, 0 and 1, and a drafter of its vocabulary.
class TrainedModel {
 public:
  explicit TrainedModel(const TinyShape& shape, const TinyShape& drafter)
      : first_(shape), second_(other(shape)), drafter_(drafter) {
    tensors_ = {trainer_tensors(first_), trainer_tensors(second_)};
  }
  const TinyModel& weights(int kind) const { return kind == 0 ? first_ : second_; }
  const TinyModel& drafter() const { return drafter_; }
  const std::vector<TrainerTensor>& tensors(int kind) const { return tensors_[static_cast<size_t>(kind)]; }
  const TinyShape& shape() const { return first_.shape(); }

 private:
  static TinyShape other(TinyShape shape) {
    shape.seed += 100;
    return shape;
  }
  TinyModel first_, second_, drafter_;
  std::array<std::vector<TrainerTensor>, 2> tensors_;
};

// A sample or score that was asked for. Of a sample `request` has n = 1 and its own index.
struct Owed {
  Request request;
  bool is_score = false, scores_sampling = false;
  std::vector<int32_t> scored;  // the tokens of a score
  uint64_t version = 0;         // of the weights when it was asked for
};

// And what came.
struct Delivered {
  struct Span {
    size_t first;
    uint64_t version;
    int kind;  // of the weights of that version
  };
  Output output;
  std::vector<Span> spans;
  uint64_t version = 0;  // of the weights when it was taken
};

class TrainerOracle {
 public:
  TrainerOracle(const TrainedModel& model, const std::string& isa) : shape_(model.shape()) {
    for (int kind : {0, 1})
      engines_.push_back(std::make_unique<TestEngine>(model.weights(kind), EngineSetup{.isa = isa, .max_batch = 1}));
  }

  // "" where it is what it must be.
  std::string difference(const Owed& owed, const Delivered& got) const {
    if (std::string what = order_difference(owed, got); !what.empty()) return what;
    if (owed.is_score) return score_difference(owed, got);
    if (std::string what = end_difference(owed.request, got.output); !what.empty()) return what;
    for (size_t i = 0; i < got.spans.size(); ++i) {
      const bool last = i + 1 == got.spans.size();
      const size_t begin = got.spans[i].first, end = last ? got.output.tokens.size() : got.spans[i + 1].first;
      const std::string what = span_difference(owed.request, got, got.spans[i].kind, begin, end, last);
      if (!what.empty()) {
        return "tokens " + std::to_string(begin) + " to " + std::to_string(end) + " of " +
               std::to_string(got.output.tokens.size()) + ", weights of kind " + std::to_string(got.spans[i].kind) + ": " +
               what;
      }
    }
    return "";
  }

 private:
  static bool has_penalties(const otr_sampling_params& s) {
    return s.repetition_penalty != 1 || s.presence_penalty != 0 || s.frequency_penalty != 0;
  }
  const TestEngine& engine(int kind) const { return *engines_[static_cast<size_t>(kind)]; }
  Output only(int kind) const {
    Outputs outputs = engine(kind).collect();
    return outputs.size() == 1 ? outputs.begin()->second : Output{};
  }
  Output score(int kind, const std::vector<int32_t>& prompt, const std::vector<int32_t>& tokens,
               const otr_sampling_params* sampling) const {
    engine(kind).score(prompt, tokens, sampling, 0);
    return only(kind);
  }

  // Spans are of tokens, one behind the other, by versions of the time between the request and its result.
  static std::string order_difference(const Owed& owed, const Delivered& got) {
    if (got.spans.empty() || got.spans[0].first != 0) return "no span from the beginning on";
    for (size_t i = 0; i < got.spans.size(); ++i) {
      const Delivered::Span& span = got.spans[i];
      if (span.version < owed.version || span.version > got.version) return "weights of another time";
      if (i == 0) continue;
      if (span.version <= got.spans[i - 1].version) return "weights that were there before";
      if (span.first <= got.spans[i - 1].first || span.first >= got.output.tokens.size()) return "a span without tokens";
    }
    return "";
  }

  std::string score_difference(const Owed& owed, const Delivered& got) const {
    if (got.spans.size() != 1) return "a score of several weights";
    const Request& r = owed.request;
    const otr_sampling_params sampling = sampling_of(r);
    const Output wanted = score(got.spans[0].kind, r.prompt, owed.scored, owed.scores_sampling ? &sampling : nullptr);
    if (got.output.reason == OTR_FINISH_ABORT) return compare(wanted, 0, got.output, 0, got.output.tokens.size());
    return wanted == got.output ? "" : "another score";
  }

  // Whether it ended where it had to, as far as its tokens say.
  std::string end_difference(const Request& r, const Output& o) const {
    const auto stops = [&](int32_t token) {
      return std::ranges::count(r.stop_ids, token) > 0 ||
             (r.sampling.ignore_eos == 0 && std::ranges::count(shape_.eos_ids, token) > 0);
    };
    const bool stopped = !o.tokens.empty() && stops(o.tokens.back());
    if (std::ranges::count_if(o.tokens, stops) > (stopped ? 1 : 0)) return "it goes on behind a stop";
    const size_t limit = static_cast<size_t>(shape_.max_position_embeddings) - r.prompt.size();
    const bool at_limit = o.tokens.size() == std::min(limit, static_cast<size_t>(r.sampling.max_new_tokens));
    const otr_finish_reason reason = stopped ? OTR_FINISH_STOP : at_limit ? OTR_FINISH_LENGTH : OTR_FINISH_ABORT;
    return o.reason == reason ? "" : std::string("it ends by ") + otr_finish_reason_text(o.reason) + " " + o.error;
  }

  // Tokens begin … end - 1, which weights of `kind` drew.
  std::string span_difference(const Request& request, const Delivered& got, int kind, size_t begin, size_t end,
                              bool last) const {
    const Output& o = got.output;
    if (begin == end) return "";
    if (begin > 0 && has_penalties(request.sampling)) {  // they count the whole response: no prompt has it
      const std::vector<int32_t> tokens(o.tokens.begin(), o.tokens.begin() + static_cast<ptrdiff_t>(end));
      return compare(score(kind, request.prompt, tokens, &request.sampling), begin, o, begin, end);
    }
    Request r = request;
    r.prompt.insert(r.prompt.end(), o.tokens.begin(), o.tokens.begin() + static_cast<ptrdiff_t>(begin));
    r.sampling.max_new_tokens -= static_cast<int32_t>(begin);
    engine(kind).submit(r, 0);
    const Output wanted = only(kind);
    if (last && o.reason != OTR_FINISH_ABORT && end - begin != wanted.tokens.size()) return "it ends elsewhere";
    return compare(wanted, 0, o, begin, end);
  }

  // Tokens begin … end - 1 of `got` with those of `wanted` from `at` on.
  static std::string compare(const Output& wanted, size_t at, const Output& got, size_t begin, size_t end) {
    if (wanted.tokens.size() < at + (end - begin)) return "too many tokens";
    const auto same = [&](const std::vector<uint32_t>& a, const std::vector<uint32_t>& b, size_t i) {
      return a.empty() && b.empty() ? true : a[at + i - begin] == b[i];
    };
    for (size_t i = begin; i < end; ++i) {
      if (wanted.tokens[at + i - begin] != got.tokens[i] || !same(wanted.logprobs, got.logprobs, i) ||
          !same(wanted.raw_logprobs, got.raw_logprobs, i)) {
        return "another token or log-prob at " + std::to_string(i);
      }
    }
    return "";
  }

  const TinyShape shape_;
  std::vector<std::unique_ptr<TestEngine>> engines_;
};

}  // namespace otr
