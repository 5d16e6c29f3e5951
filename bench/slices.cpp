#include "bench/slices.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>

namespace otr::bench {
namespace {

constexpr double kNearBest = 0.93;

double seconds_of(clockid_t clock) {
  timespec t = {};  // of a thread that has ended: 0
  clock_gettime(clock, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

}  // namespace

ThreadClocks::ThreadClocks(Of of) {
  if (of == Of::kCaller) {
    clocks_.push_back(CLOCK_THREAD_CPUTIME_ID);
    return;
  }
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) {
    const clockid_t thread = std::atoi(entry.path().filename().c_str());
    clocks_.push_back(~thread << 3 | 6);  // what pthread_getcpuclockid makes of a thread's number
  }
}

double ThreadClocks::seconds() const {
  double sum = 0;
  for (const clockid_t clock : clocks_) sum += seconds_of(clock);
  return sum;
}

// The processor time is read inside the time that it is divided by: where the thread is put aside between two readings, the
// share gets smaller. One that got larger would be the best one for good, and no other slice undisturbed.
void SliceClock::start() {
  before_ = seconds_of(CLOCK_MONOTONIC);
  cpu_ = threads_.seconds();
  begin_ = seconds_of(CLOCK_MONOTONIC);
}

SliceClock::Slice SliceClock::stop() const {
  const double end = seconds_of(CLOCK_MONOTONIC), cpu = threads_.seconds() - cpu_;
  return {end - begin_, cpu / (seconds_of(CLOCK_MONOTONIC) - before_)};
}

void Slices::add(double seconds, double share) {
  slices_.push_back({seconds, share});
  *best_share_ = std::max(*best_share_, share);
}

int64_t Slices::undisturbed() const {
  return std::count_if(slices_.begin(), slices_.end(), [&](const auto& s) { return s.share >= kNearBest * *best_share_; });
}

double Slices::quantile(size_t divisor) const {
  const bool all = undisturbed() == 0;
  std::vector<double> values;
  for (const SliceClock::Slice& s : slices_) {
    if (all || s.share >= kNearBest * *best_share_) values.push_back(s.seconds);
  }
  if (values.empty()) return 0;
  const auto at = values.begin() + static_cast<std::ptrdiff_t>(values.size() / divisor);
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

}  // namespace otr::bench
