#include "spec/cost_correction.h"

#include <algorithm>
#include <cmath>

namespace otr {
namespace {

constexpr double kMemory = 16;      // passes; the first ones move the median by more
constexpr double kLeastStep = 0.02;  // of the logarithm
constexpr double kPrior = 0.5;      // passes that say the model is right

}  // namespace

double CostCorrection::factor(double rows) const {
  const double x = std::clamp(std::log2(std::max(rows, 1.0)), 0.0, static_cast<double>(kBuckets - 1));
  const size_t below = static_cast<size_t>(x), above = std::min(below + 1, kBuckets - 1);
  const double share = x - static_cast<double>(below);
  return std::exp((1 - share) * log_factor_[below] + share * log_factor_[above]);
}

void CostCorrection::learn(double rows, double modelled_ms, double ms, bool own) {
  if (!(rows >= 1 && modelled_ms > 0 && ms > 0)) return;
  const double nearest = std::clamp(std::round(std::log2(rows)), 0.0, static_cast<double>(kBuckets - 1));
  Bucket& bucket = buckets_[static_cast<size_t>(nearest)];
  if (bucket.own && !own) return;
  if (own && !bucket.own) bucket = {.own = true};
  const double most = std::log(kMost), seen = std::clamp(std::log(ms / modelled_ms), -most, most);
  bucket.weight = std::min(bucket.weight + 1, kMemory);
  const double step = bucket.weight == 1 ? 2 * most : std::max(1 / bucket.weight, kLeastStep) * 0.5;
  bucket.log_ratio += std::clamp(seen - bucket.log_ratio, -step, step);
  fill_gaps();
}

// Between two that were seen in a straight line; beyond them as the nearest.
void CostCorrection::fill_gaps() {
  const auto value = [this](size_t b) { return buckets_[b].log_ratio * buckets_[b].weight / (buckets_[b].weight + kPrior); };
  size_t below = kBuckets;
  for (size_t b = 0; b < kBuckets; ++b) {
    if (buckets_[b].weight == 0) {
      log_factor_[b] = below == kBuckets ? 0 : value(below);
      continue;
    }
    const size_t first = below == kBuckets ? 0 : below;
    for (size_t gap = first; gap < b; ++gap) {
      const double share = below == kBuckets ? 1 : static_cast<double>(gap - below) / static_cast<double>(b - below);
      log_factor_[gap] = below == kBuckets ? value(b) : (1 - share) * value(below) + share * value(b);
    }
    log_factor_[b] = value(b);
    below = b;
  }
}

}  // namespace otr
