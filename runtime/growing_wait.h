// GrowingWait: how long to wait for what rings no bell, such as room in another worker's queue: from a microsecond on twice as
// long each time, up to a millisecond. So what comes soon is seen about as late again at most as it took, and what does not
// costs a thousand looks a second.
//
// Single-threaded. Milliseconds.
#pragma once

#include <algorithm>
#include <utility>

namespace otr {

class GrowingWait {
 public:
  static constexpr double kLeastMs = 1e-3, kMostMs = 1;

  double next_ms() { return std::exchange(next_ms_, std::min(kMostMs, 2 * next_ms_)); }
  void reset() { next_ms_ = kLeastMs; }  // something has come

 private:
  double next_ms_ = kLeastMs;
};

}  // namespace otr
