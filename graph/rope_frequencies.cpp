#include "graph/rope_frequencies.h"

#include <algorithm>
#include <cassert>
#include <cmath>

#include "kernels/base/elementary64.h"

namespace otr {
namespace {

// theta^(2i / head_dim), the wavelength over 2 pi.
float plain_wavelength(const ModelConfig& config, int32_t i) {
  const float exponent = static_cast<float>(2 * i) / static_cast<float>(config.head_dim);
  return static_cast<float>(pow64(config.rope_theta, exponent));
}

// The (fractional) index of the frequency that turns `rotations` times within the original context.
double correction_index(const ModelConfig& config, const YarnScaling& yarn, double rotations) {
  constexpr double kTwoPi = 6.28318530717958647692;
  const double original = static_cast<double>(yarn.original_max_positions);
  return config.head_dim * log64(original / (rotations * kTwoPi)) / (2.0 * log64(config.rope_theta));
}

}  // namespace

float rope_frequencies(const ModelConfig& config, std::span<float> inv_freq) {
  assert(static_cast<int32_t>(inv_freq.size()) == config.head_dim / 2);
  const int32_t half = config.head_dim / 2;
  if (!config.yarn.has_value()) {
    for (int32_t i = 0; i < half; ++i) inv_freq[static_cast<size_t>(i)] = 1.0f / plain_wavelength(config, i);
    return 1.0f;
  }
  const YarnScaling& yarn = *config.yarn;
  double low = correction_index(config, yarn, yarn.beta_fast), high = correction_index(config, yarn, yarn.beta_slow);
  if (yarn.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(config.head_dim - 1));
  if (low == high) high += 0.001;  // a step instead of a ramp
  for (int32_t i = 0; i < half; ++i) {
    const float wavelength = plain_wavelength(config, i);
    const float kept = 1.0f / wavelength, stretched = 1.0f / (static_cast<float>(yarn.factor) * wavelength);
    const float ramp = (static_cast<float>(i) - static_cast<float>(low)) / static_cast<float>(high - low);
    const float keep = 1.0f - std::clamp(ramp, 0.0f, 1.0f);
    inv_freq[static_cast<size_t>(i)] = stretched * (1.0f - keep) + kept * keep;
  }
  return static_cast<float>(yarn.attention_factor);
}

}  // namespace otr
