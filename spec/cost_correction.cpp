#include "spec/cost_correction.h"

#include <algorithm>
#include <cmath>

namespace otr {
namespace {

constexpr double kMemory = 16;       // passes; the first ones move the median by more
constexpr double kLeastStep = 0.02;  // of the logarithm
constexpr double kPrior = 0.5;       // of what is seen beside, to the square of the passes

}  // namespace

double CostCorrection::factor(double rows) const {
  const double x = std::clamp(std::log2(std::max(rows, 1.0)), 0.0, static_cast<double>(kBuckets - 1));
  const size_t below = static_cast<size_t>(x), above = std::min(below + 1, kBuckets - 1);
  const double share = x - static_cast<double>(below);
  return std::exp((1 - share) * log_factor_[below] + share * log_factor_[above]);
}

size_t CostCorrection::bucket_of(double rows) {
  return static_cast<size_t>(std::clamp(std::round(std::log2(std::max(rows, 1.0))), 0.0, static_cast<double>(kBuckets - 1)));
}

void CostCorrection::learn(double rows, double modelled_ms, double ms) {
  if (!(rows >= 1 && modelled_ms > 0 && ms > 0)) return;
  Bucket& bucket = buckets_[bucket_of(rows)];
  if (!bucket.own) bucket = {.own = true};
  follow(bucket_of(rows), modelled_ms, ms);
}

void CostCorrection::hint(double rows, double modelled_ms, double ms, bool for_long) {
  if (!(rows >= 1 && modelled_ms > 0 && ms > 0)) return;
  if (for_long || !buckets_[bucket_of(rows)].own) follow(bucket_of(rows), modelled_ms, ms);
}

void CostCorrection::follow(size_t b, double modelled_ms, double ms) {
  Bucket& bucket = buckets_[b];
  const double most = std::log(kMost), seen = std::clamp(std::log(ms / modelled_ms), -most, most);
  bucket.weight = std::min(bucket.weight + 1, kMemory);
  const double step = bucket.weight == 1 ? 2 * most : std::max(1 / bucket.weight, kLeastStep) * 0.5;
  bucket.log_ratio += std::clamp(seen - bucket.log_ratio, -step, step);
  fill_gaps();
}

// What the nearest that were seen with fewer and with more rows say, in a straight line between them; 0 if there are none.
double CostCorrection::beside(size_t bucket) const {
  size_t below = bucket, above = bucket + 1;
  while (below > 0 && buckets_[below - 1].weight == 0) --below;
  while (above < kBuckets && buckets_[above].weight == 0) ++above;
  if (below == 0 && above == kBuckets) return 0;
  if (below == 0) return buckets_[above].log_ratio;
  --below;
  if (above == kBuckets) return buckets_[below].log_ratio;
  const double share = static_cast<double>(bucket - below) / static_cast<double>(above - below);
  return (1 - share) * buckets_[below].log_ratio + share * buckets_[above].log_ratio;
}

void CostCorrection::fill_gaps() {
  for (size_t b = 0; b < kBuckets; ++b) {
    const double seen = buckets_[b].weight * buckets_[b].weight;
    log_factor_[b] = (seen * buckets_[b].log_ratio + kPrior * beside(b)) / (seen + kPrior);
  }
}

}  // namespace otr
