#include "runtime/pace_stats.h"

#include <algorithm>
#include <cmath>

#include "runtime/worker_stats.h"

namespace otr {

void PaceStats::add_pass(double ms, double computing_ms) {
  ++passes;
  modelled_ms += ms;
  const double share = computing_ms / std::max(ms, 1e-9);
  const double bucket = std::ceil(kPerDoubling * std::log2(std::max(share, 1e-9))) + kOne - 1;
  ++needed[static_cast<size_t>(std::clamp(bucket, 0.0, static_cast<double>(kBuckets - 1)))];
}

void PaceStats::add(const PaceStats& o) {
  passes += o.passes;
  late += o.late;
  modelled_ms += o.modelled_ms;
  late_ms += o.late_ms;
  overshoot_ms += o.overshoot_ms;
  worst_late_ms = std::max(worst_late_ms, o.worst_late_ms);
  for (size_t i = 0; i < kBuckets; ++i) needed[i] += o.needed[i];
}

double PaceStats::stretch(double share) const {
  int64_t beyond = 0;
  size_t bucket = kBuckets - 1;
  while (bucket > 0 && static_cast<double>(beyond + needed[bucket]) <= share * static_cast<double>(passes))
    beyond += needed[bucket--];
  return std::exp2((static_cast<double>(bucket) - kOne + 1) / kPerDoubling);  // the bucket's upper end
}

std::string PaceStats::json() const {
  std::string text = "{\"passes\":" + std::to_string(passes) + ",\"late\":" + std::to_string(late);
  const auto put = [&text](const char* name, double value) { text += std::string(",\"") + name + "\":" + decimal(value); };
  put("late_share", late_share());
  put("modelled_seconds", 1e-3 * modelled_ms);
  put("late_seconds", 1e-3 * late_ms);
  put("worst_late_ms", worst_late_ms);
  put("mean_overshoot_ms", passes == 0 ? 0 : overshoot_ms / static_cast<double>(passes));
  return text + "}";
}

}  // namespace otr
