#include "spec/length_hazard.h"

#include <algorithm>
#include <cmath>

namespace otr {

LengthHazard::LengthHazard() {
  for (size_t b = 0; b < starts_.size(); ++b) starts_[b] = std::exp2(static_cast<double>(b) / 8);
}

size_t LengthHazard::bucket_of(double length) {
  return std::min(kBuckets - 1, static_cast<size_t>(8 * std::log2(std::max(length, 1.0))));
}

void LengthHazard::note_end(int32_t length) { ended_[bucket_of(length)] += 1; }

void LengthHazard::see_running(std::span<const int32_t> lengths) {
  running_.fill(0);
  for (const int32_t length : lengths) running_[bucket_of(length)] += 1;
  add_up();
}

// From the longest down: whoever reached a bucket's end has come through all of it.
void LengthHazard::add_up() {
  double reached = 0, ends = 0, tokens = 0;
  for (size_t b = kBuckets; b-- > 0;) {
    const double width = starts_[b + 1] - starts_[b];
    const double here = ended_[b] + running_[b];
    tokens += width * (reached + here / 2);
    reached += here;
    ends += ended_[b];
    tails_[b] = {.ends = ends, .tokens = tokens};
  }
}

double LengthHazard::remaining(int32_t length) const {
  const Tail& tail = tails_[bucket_of(length)];
  return (tail.tokens + std::max(1, length)) / (tail.ends + 1);
}

void LengthHazard::end_step() {
  for (double& count : ended_) count /= 2;
}

}  // namespace otr
