#include "spec/calibration.h"

#include <algorithm>
#include <cmath>

namespace otr {
namespace {

constexpr float kFarthest = 8.0f;  // log-odds of the last bin's end

float log_odds(float p) {
  constexpr float kLeast = 1e-6f;  // beyond it, float32 says little of 1 - p
  p = std::clamp(p, kLeast, 1.0f - kLeast);
  return std::log(p / (1.0f - p));
}

}  // namespace

float Calibration::Correction::apply(float said) const {
  const float odds = log_odds(said), at = (odds + kFarthest) * (kBins / (2 * kFarthest)) - 0.5f;  // 0 at the middle of the first bin
  const int below = std::clamp(static_cast<int>(std::floor(at)), 0, kBins - 1), above = std::min(below + 1, kBins - 1);
  const float share = std::clamp(at - static_cast<float>(below), 0.0f, 1.0f);
  const float shift = (1.0f - share) * bins_[static_cast<size_t>(below)].shift + share * bins_[static_cast<size_t>(above)].shift;
  return shift == 0.0f ? said : 1.0f / (1.0f + std::exp(-(odds + shift)));
}

void Calibration::Correction::learn(float said, bool chosen) {
  constexpr double kPrior = 30;  // candidates that came out as was said, so that little evidence changes little
  const int at = static_cast<int>((log_odds(said) + kFarthest) * (kBins / (2 * kFarthest)));
  Bin& bin = bins_[static_cast<size_t>(std::clamp(at, 0, kBins - 1))];
  ++bin.tried;
  bin.chosen += chosen;
  bin.said += static_cast<double>(said);
  const double mean = bin.said / bin.tried;
  bin.shift = log_odds(static_cast<float>((bin.chosen + kPrior * mean) / (bin.tried + kPrior))) - log_odds(static_cast<float>(mean));
}

size_t Calibration::rank_class(int32_t rank) { return static_cast<size_t>(std::min(rank, 2)); }

size_t Calibration::gap_class(float gap) {
  constexpr float kEqual = -1e-3f;  // the greatest itself, or as good as that
  return gap > kEqual ? 0 : gap > -1.0f ? 1 : gap > -2.0f ? 2 : gap > -4.0f ? 3 : 4;
}

float Calibration::calibrated(float pi, int32_t rank, float gap) const {
  return by_gap_[gap_class(gap)].apply(by_rank_[rank_class(rank)].apply(pi));
}

void Calibration::observe(std::span<const float> scores, std::span<const float> pi, std::span<const float> gaps, float mean_score,
                          int32_t chosen) {
  for (size_t i = 0; i < pi.size(); ++i) {
    const int32_t rank = static_cast<int32_t>(i);
    Correction& first = by_rank_[rank_class(rank)];
    const float corrected = first.apply(pi[i]);
    first.learn(pi[i], rank == chosen);
    by_gap_[gap_class(gaps[i])].learn(corrected, rank == chosen);
  }
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
