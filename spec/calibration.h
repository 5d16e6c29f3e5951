// Calibration: the one number of a drafter that makes its scores probabilities.
//
// With s_v = log q_v + G_v, the drafter's perturbed scores, pi_v = softmax_v(s / beta) models the probability that v is the target's
// choice: the noise is known, only the target's logits are not. beta is fitted online by maximum likelihood, over the judged places,
// by stochastic gradient on log beta:
//
//   the target chose candidate i        d log pi_i / d log beta = (mean - s_i) / beta          mean = sum_v pi_v s_v
//   it chose none of the candidates     d log (1 - sum_i pi_i) / d log beta = -sum_i pi_i (mean - s_i) / beta / (1 - sum_i pi_i)
//
// One number leaves errors of up to a tenth where the target is undecided. They are learnt as well: by twentieths of pi, the share of
// candidates that were chosen against what pi said, and calibrated() adds the difference, interpolated.
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
  // What experience makes of a candidate's pi: the probability that it is chosen.
  float calibrated(float pi) const;

  // A place with these candidates was judged. `scores` may be relative to any constant, `mean_score` to the same. `chosen`: index of
  // the candidate that the target chose, or -1.
  void observe(std::span<const float> scores, std::span<const float> pi, float mean_score, int32_t chosen);

 private:
  struct Bin {
    double tried = 0, chosen = 0, sum_of_pi = 0;
    float error() const;  // share of the chosen less the mean of pi
  };
  static constexpr int kBins = 20;

  float beta_ = 1.0f;
  std::array<Bin, kBins> bins_;
  int64_t observed_ = 0;
};

}  // namespace otr
