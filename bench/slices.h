// Slices of half a millisecond, and which of them count: those in which no other program had a core.
//
// Other programs only ever add time. Slices are short against a scheduler's turn, so that even on a busy machine some are
// undisturbed on all threads; of these the fastest tenth counts. On 2 cores under a load of 5, repetitions with medians of all
// slices of 2 ms differ by 5 to 40 %.
//
// Single-threaded.
#pragma once

#include <time.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace otr::bench {

// Processor time of all threads that the process has when this is made, or of the calling one alone. Each has a clock of its
// own that is right at any moment. The process's clock is not: a thread on another core is in it up to its last tick, and its
// milliseconds since then come all at once (half a millisecond of two threads then has nine times its wall time).
class ThreadClocks {
 public:
  enum class Of { kAll, kCaller };
  explicit ThreadClocks(Of of = Of::kAll);
  double seconds() const;

 private:
  std::vector<clockid_t> clocks_;
};

// Times a slice: its seconds, and the processor time that the threads got for each. With two threads, a slice in which another
// program had a core takes up to twice its time, and its share is lower. Where one thread does all the work, only its clock
// says so: the others spin for a while after what they did last, which is no work of the slice's.
class SliceClock {
 public:
  struct Slice {
    double seconds, share;
  };
  explicit SliceClock(const ThreadClocks& threads) : threads_(threads) {}
  void start();
  Slice stop() const;

 private:
  const ThreadClocks& threads_;
  double before_ = 0, cpu_ = 0, begin_ = 0;
};

// A repetition's slices of one kind, each as the seconds of a call. A slice is undisturbed if its share is near the best one
// that slices of its kind ever had. This is asked in the end, not as they come: the first slice has nothing to be compared
// with.
class Slices {
 public:
  static constexpr int64_t kEnough = 5;  // undisturbed: fewer are not a tenth of anything

  // `best_share`: of the kind, raised as slices come; lives longer.
  explicit Slices(double* best_share) : best_share_(best_share) {}

  void add(double seconds, double share);
  int64_t count() const { return static_cast<int64_t>(slices_.size()); }
  int64_t undisturbed() const;
  // What a tenth, and half, of the undisturbed slices are below; of all of them if none is. 0 if there are no slices.
  double fast_tenth() const { return quantile(10); }
  double median() const { return quantile(2); }

 private:
  double quantile(size_t divisor) const;

  std::vector<SliceClock::Slice> slices_;
  double* best_share_;
};

}  // namespace otr::bench
