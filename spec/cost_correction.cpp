#include "spec/cost_correction.h"

#include <algorithm>
#include <cmath>

namespace otr {

size_t CostCorrection::bucket(double rows) {
  if (!(rows >= 2)) return 0;
  return std::min(static_cast<size_t>(std::ilogb(std::min(rows, 1e15))), kBuckets - 1);
}

void CostCorrection::Residual::add(double log_ratio) {
  last[static_cast<size_t>(count % kWindow)] = static_cast<float>(log_ratio);
  ++count;
  std::array<float, kWindow> sorted = {};
  size_t size = 0;
  for (; size < static_cast<size_t>(std::min<int64_t>(count, kWindow)); ++size) {
    size_t at = size;
    for (; at > 0 && sorted[at - 1] > last[size]; --at) sorted[at] = sorted[at - 1];
    sorted[at] = last[size];
  }
  const double median = (double{sorted[(size - 1) / 2]} + double{sorted[size / 2]}) / 2;
  // Up to a full window what was seen is not more than the median of it; a first pass that was disturbed must not linger.
  mean =
      count <= kWindow ? median : mean + (median - mean) / static_cast<double>(std::min<int64_t>(count - kWindow + 1, kMemory));
}

void CostCorrection::observe(CostRole role, double rows, double predicted_ms, double observed_ms) {
  const double ratio = observed_ms / predicted_ms;
  if (!(predicted_ms > 0) || !(observed_ms > 0) || !std::isfinite(ratio) || ratio == 0) return;
  const double log_ratio = std::log(std::clamp(ratio, 1 / kMost, kMost));
  Role& r = roles_[static_cast<size_t>(role)];
  r.all.add(log_ratio);
  r.by_rows[bucket(rows)].add(log_ratio);
}

double CostCorrection::factor(CostRole role, double rows) const {
  const Role& r = roles_[static_cast<size_t>(role)];
  const Residual& own = r.by_rows[bucket(rows)];
  const Residual& residual = own.known() ? own : r.all;
  return residual.known() ? std::exp(residual.mean) : 1;
}

}  // namespace otr
