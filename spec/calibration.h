// Calibration: the one number of a drafter that makes its scores probabilities.
//
// With s_v = log q_v + G_v, the drafter's perturbed scores, pi_v = softmax_v(s / beta) models the probability that v is the target's
// choice: the noise is known, only the target's logits are not. beta is fitted online by maximum likelihood, over the judged places,
// by stochastic gradient on log beta:
//
//   the target chose candidate i        d log pi_i / d log beta = (mean - s_i) / beta          mean = sum_v pi_v s_v
//   it chose none of the candidates     d log (1 - sum_i pi_i) / d log beta = -sum_i pi_i (mean - s_i) / beta / (1 - sum_i pi_i)
//
// One number leaves errors. Scores of equal height are not alike: luck (G) is the target's as well, a drafter's opinion (log q) is its
// own. With tinymath's drafter, of the second candidates with pi 0.25, 0.34 are chosen where q is greatest at them, 0.10 elsewhere.
// So errors are learnt as well, by log-odds of what was said: first those of the best, the second and all other candidates, then, of
// what this makes of pi, those by how far log q is below its maximum. calibrated() adds what is missing to the log-odds, interpolated.
// (Loss per candidate, tinymath's drafter: 0.098 with pi alone, 0.096 with the first step, 0.085 with both.)
//
// Thread safety: values.
#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace otr {

class Calibration {
 public:
  float beta() const { return beta_; }
  // What experience makes of the pi of a place's candidate number `rank`, whose log q is `gap` (<= 0) above the greatest: the
  // probability that it is chosen.
  float calibrated(float pi, int32_t rank, float gap) const;

  // A place with these candidates was judged. `scores` may be relative to any constant, `mean_score` to the same. `chosen`: index of
  // the candidate that the target chose, or -1.
  void observe(std::span<const float> scores, std::span<const float> pi, std::span<const float> gaps, float mean_score, int32_t chosen);

 private:
  // What was said, by its log-odds from -8 to 8, against what came to pass.
  class Correction {
   public:
    float apply(float said) const;
    void learn(float said, bool chosen);

   private:
    struct Bin {
      double tried = 0, chosen = 0, said = 0;
      float shift = 0.0f;  // log-odds of the share chosen less those of the mean of what was said
    };
    static constexpr int kBins = 12;
    std::array<Bin, kBins> bins_;
  };

  static size_t rank_class(int32_t rank);
  static size_t gap_class(float gap);

  float beta_ = 1.0f;
  std::array<Correction, 3> by_rank_;
  std::array<Correction, 5> by_gap_;
  int64_t observed_ = 0;
};

}  // namespace otr
