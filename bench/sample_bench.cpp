// sample and candidates over Qwen's vocabulary, with the parameters that rollouts use; `penalties`: for 1,024 tokens. The
// logits' deviation is 5: a few dozen tokens have most of the probability. `flat`: deviation 0.5, all tokens alike;
// `peaked`: 2.5, but for one token at 25, which has almost all of it, as at most places of a trained model.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "bench/comparison.h"
#include "bench/suite.h"
#include "loader/xxh64.h"

namespace otr::bench {
namespace {

constexpr int32_t kVocab = 151936;
struct SampleKind {
  const char* name;
  float temperature, top_p;
  int32_t top_k, forced_token, candidates;  // candidates: how many, 0: sample
  float deviation = 5.0f, peak = 0.0f;      // peak: the logit of one token, 0: of none
  float min_p = 0.0f;
  int32_t penalties = 0;  // tokens that occurred
};
constexpr SampleKind kKinds[] = {{"plain", 1, 1, 0, -1, 0},
                                 {"greedy", 0, 1, 0, -1, 0},
                                 {"top_k:50", 1, 1, 50, -1, 0},
                                 {"top_p:0.95", 1, 0.95f, 0, -1, 0},
                                 {"forced", 1, 1, 0, 4711, 0},
                                 {"candidates:1", 1, 1, 0, -1, 1},
                                 {"candidates:8", 1, 1, 0, -1, 8},
                                 {"plain/flat", 1, 1, 0, -1, 0, 0.5f},
                                 {"plain/peaked", 1, 1, 0, -1, 0, 2.5f, 25.0f},
                                 {"min_p:0.05", 1, 1, 0, -1, 0, 5.0f, 0.0f, 0.05f},
                                 {"top_p:0.95/flat", 1, 0.95f, 0, -1, 0, 0.5f},
                                 {"penalties:1024", 1, 1, 0, -1, 0, 5.0f, 0.0f, 0.0f, 1024}};
constexpr int kRows[] = {1, 16, 17, 64};

class SampleOperands {
 public:
  SampleOperands(Suite& suite, const SampleKind& kind, int rows)
      : kind_(kind),
        rows_(rows),
        copies_(copies_in_rotation(int64_t{rows} * kVocab * 4)),
        draws_(static_cast<size_t>(rows)),
        candidate_draws_(draws_.size()),
        results_(draws_.size()),
        candidates_(draws_.size()) {
    const int64_t size = copies_ * rows * kVocab;
    const float* random = suite.arena().floats(size);
    logits_ = make_buffer<float>(size, "logits");
    suite.pool().parallel_for(static_cast<int>(copies_ * rows), [&](int row, int) {
      for (int64_t i = int64_t{row} * kVocab, end = i + kVocab; i < end; ++i) logits_.data()[i] = kind.deviation * random[i];
      if (kind.peak != 0.0f) logits_.data()[int64_t{row} * kVocab + row * 7919 % kVocab] = kind.peak;
    });
    for (int32_t i = 0; i < kind.penalties; ++i) penalties_.push_back({i * 593 % kVocab, i % 3});  // 593 and kVocab: coprime
    for (int i = 0; i < rows; ++i) {
      SampleDraw d = {};
      d.logits_row = i;
      d.position = 100 + i;
      d.noise = noise_stream({1, static_cast<uint64_t>(i), 0});
      d.forced_token = kind.forced_token;
      d.temperature = kind.temperature;
      d.top_k = kind.top_k;
      d.top_p = kind.top_p;
      d.min_p = kind.min_p;
      d.repetition_penalty = kind.penalties > 0 ? 1.1f : 1.0f;
      d.presence_penalty = kind.penalties > 0 ? 0.2f : 0.0f;
      d.frequency_penalty = kind.penalties > 0 ? 0.1f : 0.0f;
      d.num_penalties = kind.penalties;
      d.penalties = kind.penalties > 0 ? penalties_.data() : nullptr;
      draws_[static_cast<size_t>(i)] = d;
      candidate_draws_[static_cast<size_t>(i)] = {d, 1.0f};
    }
    const size_t workspace = static_cast<size_t>(suite.pool().num_threads() * sample_workspace_stride(kVocab));
    scaled_.resize(workspace);
    order_.resize(workspace);
  }

  void run(const KernelTable& kernels, ThreadPool& pool, int64_t call) {
    const float* logits = logits_.data() + call % copies_ * rows_ * kVocab;
    if (kind_.candidates > 0) {
      kernels.candidates({rows_, kVocab, kind_.candidates, logits, kVocab, candidate_draws_.data(), candidates_.data(),
                          scaled_.data(), order_.data()},
                         pool);
    } else {
      kernels.sample({rows_, kVocab, logits, kVocab, draws_.data(), results_.data(), scaled_.data(), order_.data()}, pool);
    }
  }

  void spoil() {
    results_.assign(results_.size(), SampleResult{-1, 0, 0, -1});
    candidates_.assign(candidates_.size(), Candidates{});
  }

  // Every draw by the scalar path: sample has its bits on every path, candidates its tokens, with their numbers as near as both
  // are to the definition. On that path this says nothing; against float64 are the raw log-probs, and the tokens where only the
  // noise decides.
  std::string verify(Suite& suite) {
    const std::vector<SampleResult> results = results_;
    const std::vector<Candidates> candidates = candidates_;
    run(*select_kernels("cpu-scalar").value(), suite.pool(), 0);
    Comparison comparison;
    for (size_t i = 0; i < draws_.size(); ++i) {
      const int64_t at = static_cast<int64_t>(i);
      if (kind_.candidates > 0) {
        expect_candidates(at, candidates[i], candidates_[i], &comparison);
        continue;
      }
      comparison.expect_equal(at, static_cast<uint64_t>(results[i].token), static_cast<uint64_t>(results_[i].token));
      comparison.expect_equal(at, bits_from_float(results[i].logprob), bits_from_float(results_[i].logprob));
      comparison.expect_equal(at, bits_from_float(results[i].raw_logprob), bits_from_float(results_[i].raw_logprob));
      comparison.expect_equal(at, static_cast<uint64_t>(results[i].fault), 0);
      verify_draw(at, results[i], &comparison);
    }
    results_ = results;
    candidates_ = candidates;
    return comparison.verdict();
  }

  uint64_t hash() const {
    return kind_.candidates > 0 ? xxh64(candidates_.data(), candidates_.size() * sizeof(Candidates))
                                : xxh64(results_.data(), results_.size() * sizeof(SampleResult));
  }

 private:
  static void expect_candidates(int64_t at, const Candidates& found, const Candidates& expected, Comparison* comparison) {
    comparison->expect_equal(at, static_cast<uint64_t>(found.count), static_cast<uint64_t>(expected.count));
    for (int c = 0; c < expected.count; ++c) {
      comparison->expect_equal(at, static_cast<uint64_t>(found.tokens[c]), static_cast<uint64_t>(expected.tokens[c]));
      comparison->expect(at, double{found.pi[c]}, double{expected.pi[c]}, 2e-4);  // each is within 1e-4
      comparison->expect(at, double{found.score[c]}, double{expected.score[c]}, 2e-4);
      comparison->expect(at, double{found.gap[c]}, double{expected.gap[c]}, 2e-4);
    }
    const double mean = double{expected.mean_score};
    comparison->expect(at, double{found.mean_score}, mean, 2e-3 * (1 + std::fabs(mean)));
  }

  void verify_draw(int64_t at, const SampleResult& found, Comparison* comparison) const {
    const SampleDraw& d = draws_[static_cast<size_t>(at)];
    const float* x = logits_.data() + at * kVocab;
    if (found.token < 0 || found.token >= kVocab) return comparison->expect(at, found.token, 0, 0.5);
    const bool noise_alone =
        d.forced_token < 0 && d.temperature == 1 && d.top_k == 0 && d.top_p == 1 && d.min_p == 0 && d.num_penalties == 0;
    const auto score = [&](int32_t v) {
      return double{x[v]} + double{gumbel(d.noise, static_cast<uint32_t>(v), static_cast<uint32_t>(d.position))};
    };
    double sum = 0, best = -1e300;
    for (int32_t v = 0; v < kVocab; ++v) {
      sum += std::exp(double{x[v]});
      if (noise_alone) best = std::max(best, score(v));
    }
    comparison->expect(at, double{found.raw_logprob}, double{x[found.token]} - std::log(sum), 1e-4);
    if (noise_alone) comparison->expect(at, score(found.token), best, 1e-5);
  }

  const SampleKind kind_;
  const int rows_;
  const int64_t copies_;
  std::vector<PenaltyEntry> penalties_;  // of every row
  std::vector<SampleDraw> draws_;
  std::vector<CandidateDraw> candidate_draws_;
  std::vector<SampleResult> results_;
  std::vector<Candidates> candidates_;
  Buffer<float> logits_;
  std::vector<float> scaled_;
  std::vector<int32_t> order_;
};

Work make_sample(Suite& suite, const SampleKind& kind, int rows) {
  auto operands = std::make_shared<SampleOperands>(suite, kind, rows);
  Work work;
  work.bytes = static_cast<double>(rows) * kVocab * sizeof(float);
  work.run = [&suite, operands](int64_t call) { operands->run(suite.kernels(), suite.pool(), call); };
  work.verify = [&suite, operands] { return operands->verify(suite); };
  work.spoil = [operands] { operands->spoil(); };
  work.hash = [operands] { return operands->hash(); };
  return work;
}

}  // namespace

void add_sample_cases(Suite& suite) {
  for (const SampleKind& kind : kKinds) {
    for (const int rows : kRows) {
      suite.add(std::string("sample/") + kind.name + "/rows:" + std::to_string(rows),
                [&suite, kind, rows] { return make_sample(suite, kind, rows); });
    }
  }
}

}  // namespace otr::bench
