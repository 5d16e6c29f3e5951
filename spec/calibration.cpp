#include "spec/calibration.h"

#include <algorithm>
#include <cmath>

namespace otr {

float Calibration::Bin::error() const {
  constexpr double kPrior = 30;  // candidates that came out as pi said, so that little evidence changes little
  return static_cast<float>((chosen - sum_of_pi) / (tried + kPrior));
}

float Calibration::calibrated(float pi) const {
  const float at = pi * kBins - 0.5f;  // 0 at the middle of the first bin
  const int below = std::clamp(static_cast<int>(std::floor(at)), 0, kBins - 1), above = std::min(below + 1, kBins - 1);
  const float share = std::clamp(at - static_cast<float>(below), 0.0f, 1.0f);
  const float error = (1.0f - share) * bins_[static_cast<size_t>(below)].error() + share * bins_[static_cast<size_t>(above)].error();
  return std::clamp(pi + error, 0.0f, 1.0f);
}

void Calibration::observe(std::span<const float> scores, std::span<const float> pi, float mean_score, int32_t chosen) {
  // Large first steps find the order of magnitude; later ones average over some thousand places.
  for (size_t i = 0; i < pi.size(); ++i) {
    Bin& bin = bins_[static_cast<size_t>(std::clamp(static_cast<int>(pi[i] * kBins), 0, kBins - 1))];
    ++bin.tried;
    bin.chosen += static_cast<int32_t>(i) == chosen;
    bin.sum_of_pi += static_cast<double>(pi[i]);
  }
  constexpr float kFirstStep = 0.05f, kHalving = 400.0f, kSteepest = 4.0f, kLeastBeta = 0.02f, kMostBeta = 20.0f;
  float gradient = 0.0f;
  if (chosen >= 0) {
    gradient = (mean_score - scores[static_cast<size_t>(chosen)]) / beta_;
  } else {
    float missing = 1.0f;
    for (size_t i = 0; i < scores.size(); ++i) {
      gradient -= pi[i] * (mean_score - scores[i]) / beta_;
      missing -= pi[i];
    }
    gradient /= std::max(missing, 1e-3f);
  }
  const float step = kFirstStep / (1.0f + static_cast<float>(observed_) / kHalving) + 0.002f;
  beta_ = std::clamp(beta_ * std::exp(step * std::clamp(gradient, -kSteepest, kSteepest)), kLeastBeta, kMostBeta);
  ++observed_;
}

}  // namespace otr
