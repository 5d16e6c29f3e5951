#include "bench/suite.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <exception>
#include <utility>
#include <vector>

#include "kernels/base/clock.h"
#include "kernels/base/fp_env.h"

namespace otr::bench {
namespace {

// Other programs only ever add time. Slices are short against a scheduler's turn, so that even on a busy machine some are
// undisturbed on all threads; of these the fastest tenth counts. On 2 cores under a load of 5, repetitions with medians of all
// slices of 2 ms differ by 5 to 40 %.
constexpr double kSliceSeconds = 0.0005;
constexpr double kCeilingShare = 0.25;    // a long slice is followed by slices of ceilings of a quarter of its time,
constexpr double kMaxCeilingSlices = 20;  // and at most this many
constexpr double kNegligible = 0.3;       // a bound this much lower than the other is not measured again
constexpr size_t kEnough = 5;             // undisturbed slices: a repetition without them goes on, at most
constexpr size_t kMaxSlices = 400;        // to this many slices
constexpr double kMaxSeconds = 0.25;      // or this long

// Seconds of slices, apart by whether they were undisturbed.
struct Slices {
  std::vector<double> all, undisturbed;

  void add(double seconds, bool good) {
    all.push_back(seconds);
    if (good) undisturbed.push_back(seconds);
  }
  bool enough() const { return undisturbed.size() >= kEnough || all.size() >= kMaxSlices; }
  // What a tenth is below; 0 if there are none.
  double fast_tenth() {
    std::vector<double>& values = undisturbed.empty() ? all : undisturbed;
    if (values.empty()) return 0;
    const auto at = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 10);
    std::nth_element(values.begin(), at, values.end());
    return *at;
  }
};

}  // namespace

Suite::Suite(const KernelTable& kernels, int num_threads)
    : kernels_(kernels), pool_(num_threads), arena_(kernels, pool_), ceiling_(kernels, pool_, arena_) {
  pin_fp_environment();
}

void Suite::add(const std::string& name, std::function<Work()> make) {
  auto c = std::make_shared<Case>();
  c->make = std::move(make);
  benchmark::RegisterBenchmark(name.c_str(), [this, c](benchmark::State& state) { time(*c, state); })
      ->UseManualTime()
      ->Unit(benchmark::kMicrosecond);
}

void Suite::activate(Case& c) {
  if (active_ == &c) return;
  if (!c.fault.empty()) return;
  active_ = &c;
  work_ = Work();  // frees the last one's operands before the next one's are made
  try {
    work_ = c.make();
    if (!c.verified) work_.run(0);
  } catch (const std::exception& error) {
    c.fault = error.what();
    ++num_wrong_;
    return;
  }
  if (!c.verified) {
    c.fault = work_.verify();
    c.hash = work_.hash();
    c.verified = true;
    if (!c.fault.empty()) ++num_wrong_;
  }
  next_call_ = 1;
  if (c.calls == 0) {
    c.calls = calls_of_a_slice();
  } else {
    work_.run(next_call_++);  // warms up
  }
}

int64_t Suite::calls_of_a_slice() {
  for (int64_t calls = 1;; calls *= 2) {
    const Stopwatch watch;
    for (int64_t i = 0; i < calls; ++i) work_.run(next_call_++);
    const double seconds = watch.seconds();
    if (seconds >= kSliceSeconds) return calls;
    if (seconds * 4 >= kSliceSeconds) return static_cast<int64_t>(static_cast<double>(calls) * kSliceSeconds / seconds) + 1;
  }
}

void Suite::time(Case& c, benchmark::State& state) {
  activate(c);
  if (!c.fault.empty()) {
    state.SkipWithError(c.fault.c_str());
    return;
  }
  Slices times, memory, matrix;  // seconds of a call: its own, and those its bytes and flops would take
  const auto measure = [&](Bound bound, double work, int count, Slices* slices) {
    for (int i = 0; i < count; ++i) {
      double rate;
      const bool undisturbed = ceiling_.measure(bound, kSliceSeconds, &rate);
      slices->add(work / rate, undisturbed);
    }
  };
  const auto slice = [&] {
    double seconds;
    c.clock.start();
    for (int64_t i = 0; i < c.calls; ++i) work_.run(next_call_++);
    const bool undisturbed = c.clock.stop(&seconds);
    times.add(seconds / static_cast<double>(c.calls), undisturbed);
    const int count = static_cast<int>(std::clamp(seconds * kCeilingShare / kSliceSeconds, 1.0, kMaxCeilingSlices));
    const double other = matrix.all.empty() ? 0 : matrix.all[0];
    if (memory.all.empty() || memory.all[0] > kNegligible * other) measure(work_.memory, work_.bytes, count, &memory);
    if (work_.flops > 0 && (matrix.all.empty() || matrix.all[0] > kNegligible * memory.all[0])) {
      measure(work_.products, work_.flops, count, &matrix);
    }
  };
  while (state.KeepRunningBatch(c.calls)) slice();
  if (times.all.size() >= kEnough) {
    for (const Stopwatch watch;
         watch.seconds() < kMaxSeconds && !(times.enough() && (memory.all.size() < kEnough || memory.enough()) &&
                                            (matrix.all.size() < kEnough || matrix.enough()));) {
      slice();
    }
  }
  const double iterations = static_cast<double>(state.iterations()), seconds = times.fast_tenth();
  const double memory_bound = memory.fast_tenth(), matrix_bound = matrix.fast_tenth();
  state.SetIterationTime(seconds * iterations);
  state.SetBytesProcessed(static_cast<int64_t>(work_.bytes * iterations));
  if (work_.items > 0) state.SetItemsProcessed(static_cast<int64_t>(work_.items * iterations));
  if (work_.flops > 0) state.counters["flops"] = benchmark::Counter(work_.flops * iterations, benchmark::Counter::kIsRate);
  state.counters["ceiling"] = std::max(memory_bound, matrix_bound) / seconds;
  char label[64];
  std::snprintf(label, sizeof label, "hash=%016" PRIx64 " bound=%s", c.hash,
                bound_name(matrix_bound > memory_bound ? work_.products : work_.memory));
  state.SetLabel(label);
}

}  // namespace otr::bench
