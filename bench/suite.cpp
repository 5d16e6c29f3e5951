#include "bench/suite.h"

#include <algorithm>
#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <exception>
#include <stdexcept>
#include <thread>
#include <utility>

#include "bench/repetition.h"
#include "kernels/base/clock.h"
#include "kernels/base/fp_env.h"

namespace otr::bench {
namespace {

constexpr int64_t kMaxSlices = 400;      // a repetition without enough undisturbed ones goes on to this many,
constexpr double kMaxSeconds = 0.25;     // or for this long
constexpr int kTries = 3;                // of how many calls make a slice: a preemption would make them too few
constexpr double kLongSeconds = 0.01;    // a call this long is hardly tried again, nor made once more to fill the caches
constexpr double kAgainSeconds = 0.002;  // of first calls made again, at least one

std::string hex(uint64_t value) {
  char text[17];
  std::snprintf(text, sizeof text, "%016" PRIx64, value);
  return text;
}

bool enough(const Slices& slices) { return slices.undisturbed() >= Slices::kEnough || slices.count() >= kMaxSlices; }

}  // namespace

Suite::Suite(const KernelTable& kernels, int num_threads)
    : kernels_(kernels), pool_(num_threads), arena_(kernels, pool_), ceiling_(kernels, pool_, arena_) {
  pin_fp_environment();
}

void Suite::add(const std::string& name, std::function<Work()> make) {
  auto c = std::make_shared<Case>();
  c->name = name;
  c->make = std::move(make);
  cases_.push_back(c);
  benchmark::RegisterBenchmark(name.c_str(), [this, c](benchmark::State& state) { run(*c, state); })
      ->UseManualTime()
      ->Unit(benchmark::kMicrosecond);
}

// The library ends the program where repetitions have different numbers of iterations, those that fail included. So each counts
// to its end.
void Suite::run(Case& c, benchmark::State& state) {
  counting_ = true;
  try {
    if (c.fault.empty()) measure(c, state);
  } catch (const std::exception& error) {
    c.fault = error.what();
    ++num_wrong_;
  }
  if (c.fault.empty()) return;
  while (counting_) counting_ = state.KeepRunningBatch(std::max<int64_t>(c.batch, 1));
  state.SkipWithError(c.fault.c_str());
}

std::function<Work()> Suite::work_of(const std::string& name) const {
  for (const auto& c : cases_) {
    if (c->name == name) return c->make;
  }
  return nullptr;
}

void Suite::activate(Case& c) {
  if (active_ == &c) return;
  active_ = nullptr;
  work_ = Work();  // frees the last one's operands before the next one's are made
  work_ = c.make();
  if (!c.verified) {
    c.hash = first_call();
    const std::string fault = work_.verify();
    if (!fault.empty()) throw std::runtime_error(fault);
    c.verified = true;
  }
  active_ = &c;
  next_call_ = 1;
}

uint64_t Suite::first_call() {
  if (work_.spoil) work_.spoil();
  work_.run(0);
  return work_.hash();
}

void Suite::first_call_again(uint64_t hash) {
  for (const Stopwatch watch;; work_.run(next_call_++)) {
    const uint64_t again = first_call();
    if (again != hash) throw std::runtime_error("wrong: hash differs between calls: " + hex(hash) + ", then " + hex(again));
    if (watch.seconds() >= kAgainSeconds) return;
  }
}

// `before`: what it was so far, or 0. Then a call that takes long is made twice: it may have been preempted.
int64_t Suite::calls_of_a_slice(int64_t before) {
  for (int64_t calls = 1;;) {
    double seconds = 1e9;
    for (int i = 0; i < kTries; ++i) {
      const Stopwatch watch;
      for (int64_t j = 0; j < calls; ++j) work_.run(next_call_++);
      seconds = std::min(seconds, watch.seconds());
      if (watch.seconds() >= kLongSeconds && (before > 0 || i > 0)) break;
    }
    if (seconds >= kSliceSeconds) return calls;
    if (seconds * 4 >= kSliceSeconds) return static_cast<int64_t>(static_cast<double>(calls) * kSliceSeconds / seconds) + 1;
    calls *= 2;
  }
}

// Of calls that begin when the other threads have gone to sleep.
bool Suite::runs_on_one_thread() {
  if (pool_.num_threads() == 1) return true;
  constexpr double kIdle = 0.05;
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  const ThreadClocks all, own(ThreadClocks::Of::kCaller);
  const double all_before = all.seconds(), own_before = own.seconds();
  const Stopwatch watch;
  do work_.run(next_call_++);
  while (watch.seconds() < 2 * kSliceSeconds);
  const double own_seconds = own.seconds() - own_before;
  return all.seconds() - all_before - own_seconds < kIdle * own_seconds;
}

void Suite::measure(Case& c, benchmark::State& state) {
  activate(c);
  if (c.calls == 0) c.on_one_thread = runs_on_one_thread();
  c.calls = std::max(c.calls, calls_of_a_slice(c.calls));
  if (c.batch == 0) c.batch = c.calls;
  const ThreadClocks threads;  // an engine's too
  const ThreadClocks own(ThreadClocks::Of::kCaller);
  const auto best_share = [&](Bound bound) { return &best_shares_[static_cast<int>(bound)]; };
  Repetition r{.work = work_,
               .ceiling = [&](Bound bound) { return ceiling_.measure(bound, kSliceSeconds, threads); },
               .times = Slices(&c.best_share),
               .bytes = Slices(best_share(work_.memory)),
               .flops = Slices(best_share(work_.products))};
  const auto slice = [&] {
    const bool is_long = r.times.fast_tenth() >= kLongSeconds;
    if (r.times.count() > 0 && !is_long) work_.run(next_call_++);  // activations are in cache again, after the ceilings
    SliceClock clock(c.on_one_thread ? own : threads);
    clock.start();
    for (int64_t i = 0; i < c.calls; ++i) work_.run(next_call_++);
    r.add(clock.stop(), c.calls);
  };
  while ((counting_ = state.KeepRunningBatch(c.batch))) slice();
  if (r.times.count() >= Slices::kEnough) {
    for (const Stopwatch watch; watch.seconds() < kMaxSeconds && !(enough(r.times) && enough(r.bound()));) slice();
  }
  first_call_again(c.hash);
  report(r, c, state);
}

void Suite::report(const Repetition& r, const Case& c, benchmark::State& state) const {
  const double iterations = static_cast<double>(state.iterations()), seconds = r.times.fast_tenth();
  state.SetIterationTime(seconds * iterations);
  state.SetBytesProcessed(static_cast<int64_t>(work_.bytes * iterations));
  if (work_.items > 0) state.SetItemsProcessed(static_cast<int64_t>(work_.items * iterations));
  if (work_.flops > 0) state.counters["flops"] = benchmark::Counter(work_.flops * iterations, benchmark::Counter::kIsRate);
  state.counters["ceiling"] = r.bound().fast_tenth() / seconds;
  state.counters["median_us"] = 1e6 * r.times.median();
  state.counters["calls"] = static_cast<double>(c.calls);
  state.counters["slices"] = static_cast<double>(r.times.count());
  state.counters["undisturbed"] = static_cast<double>(r.times.undisturbed());
  state.counters["ceiling_slices"] = static_cast<double>(r.bound().count());
  state.counters["ceiling_undisturbed"] = static_cast<double>(r.bound().undisturbed());
  state.SetLabel("hash=" + hex(c.hash) + " bound=" + bound_name(r.flops_bind() ? work_.products : work_.memory));
}

}  // namespace otr::bench
