// PaceStats: whether a paced worker's passes were over when they were due (runtime/pace.h).
//
// Thread safety: values.
#pragma once

#include <array>
#include <cstdint>
#include <string>

namespace otr {

struct PaceStats {
  static constexpr size_t kBuckets = 40;        // of what passes needed of their time
  static constexpr double kPerDoubling = 4;     // of them
  static constexpr size_t kOne = kBuckets / 2;  // the first whose passes needed more than their time

  int64_t passes = 0;
  int64_t late = 0;         // over after they were due
  double modelled_ms = 0;   // of all passes
  double late_ms = 0;       // of the late ones, together; modelled, as all times here
  double overshoot_ms = 0;  // by which sleepers woke too late, together
  double worst_late_ms = 0;
  std::array<int64_t, kBuckets> needed = {};  // passes, by the logarithm of the share of their time that computing them took

  void add_pass(double ms, double computing_ms);
  void add(const PaceStats& other);
  double late_share() const { return passes == 0 ? 0 : static_cast<double>(late) / static_cast<double>(passes); }
  // How many times as long passes would have to be for all but this share of them to have had time.
  double stretch(double share) const;
  std::string json() const;  // {"passes":…,…}
};

}  // namespace otr
