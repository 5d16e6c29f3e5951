// What an engine owes a trainer, and what it must be: the oracle asks plain engines, one sample at a time.
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
  explicit TrainedModel(TinyShape shape, const TinyShape& drafter) : first_(shape), second_(other(shape)), drafter_(drafter) {
    tensors_ = {trainer_tensors(first_), trainer_tensors(second_)};
  }
  const TinyModel& weights(int kind) const { return kind == 0 ? first_ : second_; }
  const TinyModel& drafter() const { return drafter_; }
  const std::vector<TrainerTensor>& tensors(int kind) const { return tensors_[static_cast<size_t>(kind)]; }
  int32_t vocab() const { return first_.shape().vocab_size; }

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
};

// And what came: `kinds` of the weights of its spans.
struct Delivered {
  struct Span {
    size_t first;
    int kind;
  };
  Output output;
  std::vector<Span> spans;
};

class TrainerOracle {
 public:
  TrainerOracle(const TrainedModel& model, const std::string& isa) {
    for (int kind : {0, 1})
      engines_.push_back(std::make_unique<TestEngine>(model.weights(kind), EngineSetup{.isa = isa, .max_batch = 1}));
  }

  // "" where it is what it must be.
  std::string difference(const Owed& owed, const Delivered& got) const {
    if (owed.is_score) return score_difference(owed, got);
    for (size_t i = 0; i < got.spans.size(); ++i) {
      const bool last = i + 1 == got.spans.size();
      const size_t begin = got.spans[i].first, end = last ? got.output.tokens.size() : got.spans[i + 1].first;
      if (begin > end) return "spans that overlap";
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

  std::string score_difference(const Owed& owed, const Delivered& got) const {
    if (got.output.reason == OTR_FINISH_ABORT) return "";
    Request r = owed.request;
    r.sampling.stop_token_ids = r.stop_ids.data(), r.sampling.num_stop_token_ids = r.stop_ids.size();
    const Output wanted = score(got.spans.front().kind, r.prompt, owed.scored, owed.scores_sampling ? &r.sampling : nullptr);
    if (got.spans.size() != 1) return "a score of several weights";
    return wanted == got.output ? "" : "another score";
  }

  // Tokens begin … end - 1, which weights of `kind` drew.
  std::string span_difference(const Request& request, const Delivered& got, int kind, size_t begin, size_t end,
                              bool last) const {
    const Output& o = got.output;
    if (begin > 0 && has_penalties(request.sampling)) {  // they count the whole response: no prompt has it
      if (begin == end) return "";
      const std::vector<int32_t> tokens(o.tokens.begin(), o.tokens.begin() + static_cast<ptrdiff_t>(end));
      return compare(score(kind, request.prompt, tokens, &request.sampling), begin, o, begin, end);
    }
    Request r = request;
    r.prompt.insert(r.prompt.end(), o.tokens.begin(), o.tokens.begin() + static_cast<ptrdiff_t>(begin));
    r.sampling.max_new_tokens -= static_cast<int32_t>(begin);
    if (r.sampling.max_new_tokens < 1) return begin == end ? "" : "more tokens than asked for";
    engine(kind).submit(r, 0);
    const Output wanted = only(kind);
    if (last && o.reason != OTR_FINISH_ABORT) {
      if (o.reason != wanted.reason) return std::string("it ends by ") + otr_finish_reason_text(o.reason) + " " + o.error;
      if (end - begin != wanted.tokens.size()) return "it ends elsewhere";
    }
    return compare(wanted, 0, o, begin, end);
  }

  static std::string compare(const Output& wanted, size_t at, const Output& got, size_t begin, size_t end) {
    if (wanted.tokens.size() < at + (end - begin) && wanted.logprobs.size() < at + (end - begin)) return "too many tokens";
    for (size_t i = begin; i < end; ++i, ++at) {
      const bool same = (wanted.tokens.empty() || wanted.tokens[at] == got.tokens[i]) &&
                        wanted.logprobs[at] == got.logprobs[i] && wanted.raw_logprobs[at] == got.raw_logprobs[i];
      if (!same) return "another token or log-prob at " + std::to_string(i);
    }
    return "";
  }

  std::vector<std::unique_ptr<TestEngine>> engines_;
};

}  // namespace otr
