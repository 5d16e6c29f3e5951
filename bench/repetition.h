// What a repetition of a case measures: its slices, and beside them those of its ceilings. Which ceiling counts, and whether
// the other one is worth measuring, is decided by all slices so far: a first one that another program disturbed would decide it
// for good.
//
// Single-threaded.
#pragma once

#include <algorithm>
#include <functional>

#include "bench/slices.h"
#include "bench/suite.h"

namespace otr::bench {

inline constexpr double kSliceSeconds = 0.0005;

struct Repetition {
  static constexpr double kCeilingShare = 0.25;    // a long slice is followed by slices of ceilings of a quarter of its time,
  static constexpr double kMaxCeilingSlices = 20;  // and at most this many
  static constexpr double kNegligible = 0.3;       // a bound this much lower than the other is measured
  static constexpr int64_t kSeldom = 8;            // only beside one slice of so many

  const Work& work;
  std::function<Ceiling::Rate(Bound)> ceiling;
  Slices times, bytes, flops;  // seconds of a call: its own, and those that its bytes and its flops would take

  bool flops_bind() const { return flops.fast_tenth() > bytes.fast_tenth(); }
  const Slices& bound() const { return flops_bind() ? flops : bytes; }

  // A slice of so many calls; measures the bounds.
  void add(const SliceClock::Slice& slice, int64_t calls) {
    const bool both = times.count() % kSeldom == 0;
    times.add(slice.seconds / static_cast<double>(calls), slice.share);
    const int count = static_cast<int>(std::clamp(slice.seconds * kCeilingShare / kSliceSeconds, 1.0, kMaxCeilingSlices));
    if (both || bytes.fast_tenth() > kNegligible * flops.fast_tenth())
      measure(work.memory, work.bytes - work.cached_bytes, count, &bytes);
    if (work.flops > 0 && (both || flops.fast_tenth() > kNegligible * bytes.fast_tenth()))
      measure(work.products, work.flops, count, &flops);
  }

  void measure(Bound bound, double amount, int count, Slices* slices) const {
    for (int i = 0; i < count; ++i) {
      const Ceiling::Rate rate = ceiling(bound);
      slices->add(amount / rate.per_second, rate.share);
    }
  }
};

}  // namespace otr::bench
