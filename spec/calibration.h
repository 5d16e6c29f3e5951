// Calibration: the one number of a drafter that makes its scores probabilities.
//
// With s_v = log q_v + G_v, the drafter's perturbed scores, pi_v = softmax_v(s / beta) models the probability that v is the
// target's choice: the noise is known, only the target's logits are not. beta is fitted online by maximum likelihood, over the
// judged places, by stochastic gradient on log beta:
//
//   the target chose candidate i        d log pi_i / d log beta = (mean - s_i) / beta          mean = sum_v pi_v s_v
//   it chose none of the candidates     d log r / d log beta = -sum_i pi_i (mean - s_i) / (beta r)   r = 1 - sum_i pi_i
//
// One number leaves errors. Scores of equal height are not alike: luck (G) is the target's as well, a drafter's opinion (log q)
// is its own. With tinymath's drafter, of the second candidates with pi 0.25, 0.34 are chosen where q is greatest at them, 0.10
// elsewhere. So errors are learnt as well, step by step, each step by the log-odds of what the one before it says,
// interpolated:
//
//   by rank: the best candidate, the second, the others
//   by how far log q is below its maximum (`gap`)
//   by how far it is below at the rival: the best other candidate
//   candidates that then exceed 1 together are scaled to 1
//   of the nodes that were verified, which are chosen by what was said of them, and so flattered
//
// Log-loss of a candidate of tinymath's drafter: 0.098 with pi alone, then 0.096, 0.085, 0.083 after the third step, 0.082
// scaled.
//
// Thread safety: values.
#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace otr {

// The candidates of one place, best first. At most kMostCandidates.
struct CandidatePlace {
  std::span<const float> scores;  // relative to any constant
  std::span<const float> pi;
  std::span<const float> gaps;  // log q less that of the likeliest token: <= 0
  float mean_score;             // sum_v pi_v s_v over the vocabulary, relative to the same
};

class Calibration {
 public:
  static constexpr size_t kMostCandidates = 16;

  float beta() const { return beta_; }
  // What experience makes of the candidates' pi: the probabilities that they are chosen. REQUIRES: calibrated.size() ==
  // pi.size().
  void calibrate(const CandidatePlace& place, std::span<float> calibrated) const;

  // A place was judged. `chosen`: index of the candidate that the target chose, or -1; bit i of `verified`: candidate i was
  // verified.
  void observe(const CandidatePlace& place, int32_t chosen, uint32_t verified);

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
    static constexpr int kBins = 16;
    std::array<Bin, kBins> bins_;
  };
  static constexpr size_t kGaps = 5, kSteps = 3;

  // The corrections that a candidate goes through, in order.
  static std::array<size_t, kSteps> steps_of(const CandidatePlace& place, size_t candidate);
  static void scale_to_one(std::span<float> said);
  void fit_beta(const CandidatePlace& place, int32_t chosen);

  float beta_ = 1.0f;
  std::array<Correction, 3 + 2 * kGaps> corrections_;  // by rank, by gap, by the rival's gap
  Correction of_verified_;
  int64_t observed_ = 0;
};

}  // namespace otr
