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
  const auto value = [this](size_t b) { return buckets_[b].log_ratio * buckets_[b].weight / (buckets_[b].weight + kPrior); };
  size_t below = kBuckets, above = kBuckets;
  for (size_t b = 0; b < kBuckets; ++b) {
    if (buckets_[b].weight == 0) continue;
    if (static_cast<double>(b) <= x) below = b;
    if (static_cast<double>(b) >= x && above == kBuckets) above = b;
  }
  if (below == kBuckets && above == kBuckets) return 1;
  if (below == kBuckets) below = above;
  if (above == kBuckets) above = below;
  const double span = static_cast<double>(above - below);
  const double share = span > 0 ? (x - static_cast<double>(below)) / span : 0;
  return std::exp((1 - share) * value(below) + share * value(above));
}

void CostCorrection::learn(double rows, double modelled_ms, double ms) {
  if (!(rows >= 1 && modelled_ms > 0 && ms > 0)) return;
  const double nearest = std::clamp(std::round(std::log2(rows)), 0.0, static_cast<double>(kBuckets - 1));
  Bucket& bucket = buckets_[static_cast<size_t>(nearest)];
  const double most = std::log(kMost), seen = std::clamp(std::log(ms / modelled_ms), -most, most);
  bucket.weight = std::min(bucket.weight + 1, kMemory);
  if (bucket.weight == 1) {
    bucket.log_ratio = seen;
    return;
  }
  const double step = std::max(1 / bucket.weight, kLeastStep) * 0.5;
  bucket.log_ratio += std::clamp(seen - bucket.log_ratio, -step, step);
}

}  // namespace otr
