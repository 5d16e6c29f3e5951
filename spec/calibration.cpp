#include "spec/calibration.h"

#include <algorithm>
#include <cmath>
#include <numeric>

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
  const float odds = log_odds(said),
              at = (odds + kFarthest) * (kBins / (2 * kFarthest)) - 0.5f;  // 0 at the middle of the first bin
  const int below = std::clamp(static_cast<int>(std::floor(at)), 0, kBins - 1), above = std::min(below + 1, kBins - 1);
  const float share = std::clamp(at - static_cast<float>(below), 0.0f, 1.0f);
  const float shift =
      (1.0f - share) * bins_[static_cast<size_t>(below)].shift + share * bins_[static_cast<size_t>(above)].shift;
  return shift == 0.0f ? said : 1.0f / (1.0f + std::exp(-(odds + shift)));
}

void Calibration::Correction::learn(float said, bool chosen) {
  constexpr double kPrior = 30;     // candidates that came out as was said, so that little evidence changes little
  constexpr double kMost = 20'000;  // beyond so many the older ones count half: drafters and targets are trained on
  const int at = static_cast<int>((log_odds(said) + kFarthest) * (kBins / (2 * kFarthest)));
  Bin& bin = bins_[static_cast<size_t>(std::clamp(at, 0, kBins - 1))];
  if (bin.tried > kMost) bin.tried /= 2, bin.chosen /= 2, bin.said /= 2;
  ++bin.tried;
  bin.chosen += chosen;
  bin.said += static_cast<double>(said);
  const double mean = bin.said / bin.tried;
  bin.shift =
      log_odds(static_cast<float>((bin.chosen + kPrior * mean) / (bin.tried + kPrior))) - log_odds(static_cast<float>(mean));
}

std::array<size_t, Calibration::kSteps> Calibration::steps_of(const CandidatePlace& place, size_t candidate) {
  constexpr size_t kRanks = 3;
  const auto gap_class = [&place](size_t of) -> size_t {
    constexpr float kEqual = -1e-3f;  // the greatest itself, or as good as that
    const float gap = place.gaps[of];
    return gap > kEqual ? 0 : gap > -1.0f ? 1 : gap > -2.0f ? 2 : gap > -4.0f ? 3 : 4;
  };
  const size_t rival = candidate == 0 && place.gaps.size() > 1 ? 1 : 0;
  return {std::min(candidate, kRanks - 1), kRanks + gap_class(candidate), kRanks + kGaps + gap_class(rival)};
}

void Calibration::scale_to_one(std::span<float> said) {
  const float sum = std::accumulate(said.begin(), said.end(), 0.0f);
  if (sum <= 1.0f) return;
  for (float& p : said) p /= sum;
}

void Calibration::calibrate(const CandidatePlace& place, std::span<float> calibrated) const {
  for (size_t i = 0; i < calibrated.size(); ++i) {
    calibrated[i] = place.pi[i];
    for (const size_t step : steps_of(place, i)) calibrated[i] = corrections_[step].apply(calibrated[i]);
  }
  scale_to_one(calibrated);
  for (float& p : calibrated) p = of_verified_.apply(p);
}

void Calibration::observe(const CandidatePlace& place, int32_t chosen, uint32_t verified) {
  std::array<float, kMostCandidates> room;
  const std::span<float> said = std::span(room).first(place.pi.size());
  for (size_t i = 0; i < said.size(); ++i) {
    said[i] = place.pi[i];
    for (const size_t step : steps_of(place, i)) {
      const float corrected = corrections_[step].apply(said[i]);
      corrections_[step].learn(said[i], static_cast<int32_t>(i) == chosen);
      said[i] = corrected;
    }
  }
  scale_to_one(said);
  for (size_t i = 0; i < said.size(); ++i) {
    if ((verified >> i & 1u) != 0) of_verified_.learn(said[i], static_cast<int32_t>(i) == chosen);
  }
  fit_beta(place, chosen);
}

void Calibration::fit_beta(const CandidatePlace& place, int32_t chosen) {
  // Large first steps find the order of magnitude; later ones average over some thousand places.
  constexpr float kFirstStep = 0.05f, kHalving = 400.0f, kSteepest = 4.0f, kLeastBeta = 0.02f, kMostBeta = 20.0f;
  float gradient = 0.0f;
  if (chosen >= 0) {
    gradient = (place.mean_score - place.scores[static_cast<size_t>(chosen)]) / beta_;
  } else {
    float missing = 1.0f;
    for (size_t i = 0; i < place.scores.size(); ++i) {
      gradient -= place.pi[i] * (place.mean_score - place.scores[i]) / beta_;
      missing -= place.pi[i];
    }
    gradient /= std::max(missing, 1e-3f);
  }
  const float step = kFirstStep / (1.0f + static_cast<float>(observed_) / kHalving) + 0.002f;
  beta_ = std::clamp(beta_ * std::exp(step * std::clamp(gradient, -kSteepest, kSteepest)), kLeastBeta, kMostBeta);
  ++observed_;
}

}  // namespace otr
