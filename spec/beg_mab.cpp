#include "spec/beg_mab.h"

#include <algorithm>

namespace otr {

BegMab::BegMab(std::span<const Arm> arms, std::span<const int32_t> thresholds, uint64_t seed)
    : thresholds_(thresholds.begin(), thresholds.end()), random_(seed) {
  for (const Arm& arm : arms) arms_.push_back({.arm = arm, .rewards = {}});
  std::stable_sort(arms_.begin(), arms_.end(),
                   [](const Record& a, const Record& b) { return a.arm.verify_tokens > b.arm.verify_tokens; });
  for (size_t i = 0; i < arms_.size(); ++i) {
    arms_[i].rewards.reserve(kWindow);
    if (i == 0 || arms_[i].arm.verify_tokens != arms_[i - 1].arm.verify_tokens) first_of_.push_back(i);
  }
  first_of_.push_back(arms_.size());
  sorted_.reserve(kWindow);
}

// SplitMix64.
double BegMab::uniform() {
  uint64_t z = random_ += 0x9e3779b97f4a7c15;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return static_cast<double>((z ^ (z >> 31)) >> 11) * 0x1p-53;
}

size_t BegMab::select(int32_t batch) {
  const size_t group =
      static_cast<size_t>(std::upper_bound(thresholds_.begin(), thresholds_.end(), batch) - thresholds_.begin()) - 1;
  const size_t begin = first_of_[group], end = first_of_[group + 1];
  if (end - begin == 1) return begin;
  for (size_t i = begin; i < end; ++i) {
    if (arms_[i].count == 0) return i;
  }
  if (uniform() < kEpsilon) return begin + static_cast<size_t>(uniform() * static_cast<double>(end - begin));
  size_t best = begin;
  double most = median_reward(begin);
  for (size_t i = begin + 1; i < end; ++i) {
    if (const double reward = median_reward(i); reward > most) best = i, most = reward;
  }
  return best;
}

void BegMab::record(size_t arm, double elapsed_ms, int64_t accepted, int32_t batch) {
  Record& r = arms_[arm];
  const double mean = static_cast<double>(accepted) / batch + 1;
  const double reward = mean * batch / elapsed_ms;
  if (r.rewards.size() < kWindow) r.rewards.push_back(reward);
  else r.rewards[static_cast<size_t>(r.count) % kWindow] = reward;
  ++r.count;
}

double BegMab::median_reward(size_t arm) const {
  sorted_ = arms_[arm].rewards;
  if (sorted_.empty()) return 0;
  const size_t half = sorted_.size() / 2;
  std::nth_element(sorted_.begin(), sorted_.begin() + static_cast<std::ptrdiff_t>(half), sorted_.end());
  if (sorted_.size() % 2 == 1) return sorted_[half];
  return (sorted_[half] + *std::max_element(sorted_.begin(), sorted_.begin() + static_cast<std::ptrdiff_t>(half))) / 2;
}

}  // namespace otr
