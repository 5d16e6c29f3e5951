#include "spec/calibration.h"

#include <algorithm>
#include <cmath>

namespace otr {

void Calibration::observe(std::span<const float> scores, std::span<const float> pi, float mean_score, int32_t chosen) {
  // Large first steps find the order of magnitude; later ones average over some thousand places.
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
