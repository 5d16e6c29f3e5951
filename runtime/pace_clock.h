// PaceClock: the modelled milliseconds of an engine whose workers are paced (pace.h), counted from when it was made.
//
//   scale > 0   `scale` wall milliseconds are one of them
//   scale 0     time stands still while any worker computes, and jumps to the next due pass when all sleep. No pass is late,
//               however many workers share a core; between two runs only the order of what happens at one time may differ.
//
// Workers in processes of their own have a clock each, of one scale and one beginning: scale > 0 alone, since nobody can hold
// the time of another process.
//
// Thread safety: all functions may be called from any thread. Nothing is allocated after construction.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <mutex>
#include <vector>

namespace otr {

class PaceClock {
 public:
  static constexpr double kForever = std::numeric_limits<double>::infinity();
  struct Sleeper {
    std::condition_variable woken;
    double until = 0;
    bool asleep = false, called = false, may_be_called = false;  // guarded by the clock's mutex
  };

  // `num_sleepers`: at most. `start_ns`: of the steady clock, which all processes of a machine share.
  PaceClock(double scale, size_t num_sleepers, int64_t start_ns = steady_ns());
  double scale() const { return scale_; }
  int64_t start_ns() const { return std::chrono::duration_cast<std::chrono::nanoseconds>(start_.time_since_epoch()).count(); }
  double now_ms() const;
  // A thread that computes: between the two, time stands still at scale 0.
  void enter();
  void leave();
  // Returns at that time, or, if it may be, soon after it was called, which may have been before. REQUIRES: entered
  void sleep(Sleeper* sleeper, double until_ms, bool may_be_called);
  void call(Sleeper* sleeper);

 private:
  using Wall = std::chrono::steady_clock;
  static int64_t steady_ns() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(Wall::now().time_since_epoch()).count();
  }
  bool is_virtual() const { return scale_ == 0; }
  void advance();
  void rouse(Sleeper* sleeper);

  const double scale_;
  const Wall::time_point start_;
  mutable std::mutex mutex_;
  // Guarded by mutex_; all but the mutex of scale 0 alone.
  double now_ms_ = 0;
  int32_t computing_ = 0;
  std::vector<Sleeper*> asleep_;
};

}  // namespace otr
