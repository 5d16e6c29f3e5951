#include "runtime/kv_overlap.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "kernels/base/clock.h"
#include "runtime/kv_lease.h"

namespace otr {

void KvOverlap::begin_tick(double arrived_bytes) {
  since_tick_ = PacedStopwatch(pace_);
  arrived_at_tick_ = arrived_bytes;
  waited_ = 0;
}

// Without a link's rate copying is this worker's own time: there is nothing beside which to compute. Captured programs run
// whole.
bool KvOverlap::takes(const KvLease& lease) const {
  return options_.link_bytes_per_second > 0 && !options_.whole_pages && size_ < kMost && lease.has_layers() &&
         !target_.on_device();
}

ComingCopies KvOverlap::coming(int32_t more_pages) const {
  int32_t pages = more_pages;
  for (size_t i = 0; i < size_; ++i) pages += entries_[i].count;
  return coming_copies(bytes(pages), arrived_at_tick_, options_.link_bytes_per_second, num_layers());
}

void KvOverlap::add(Sequence* s, int32_t first, int32_t count) { entries_[size_++] = {.s = s, .first = first, .count = count}; }

bool KvOverlap::has(const Sequence& s) const {
  return std::any_of(entries_.begin(), entries_.begin() + static_cast<std::ptrdiff_t>(size_),
                     [&s](const Entry& e) { return e.s == &s; });
}

int32_t KvOverlap::forget(const Sequence& s) {
  int32_t pages = 0;
  for (size_t i = size_; i-- > 0;) {
    if (entries_[i].s == &s) pages += remove(i).count;
  }
  return pages;
}

// Until the layer of all that is not lost is there.
double KvOverlap::seconds_until(int32_t layer, double arrived_bytes) const {
  double wanted = 0;
  for (size_t i = 0; i < size_; ++i) wanted += entries_[i].lost ? 0 : bytes(entries_[i].count) * (layer + 1) / num_layers();
  return wanted > 0 ? std::max(0.0, (wanted - arrived_bytes) / options_.link_bytes_per_second) : 0;
}

void KvOverlap::before_layer(int32_t layer) {
  if (layer == 0) arrived_at_pass_ = arrived();
  if (pace_ == nullptr) {
    if (const double seconds = seconds_until(layer, arrived()); seconds > 0) {
      const Stopwatch waiting;
      std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
      waited_ += waiting.seconds();
    }
  }
  for (size_t i = 0; i < size_; ++i) {
    Entry& e = entries_[i];
    if (layer == options_.revoke_at_layer) e.s->lease->end();
    const std::span<const PageId> to =
        std::span(e.s->copied).subspan(static_cast<size_t>(e.first), static_cast<size_t>(e.count));
    e.lost = e.lost || !e.s->lease->copy_layer(layer, e.first, to, &target_);
    e.layers += !e.lost;
  }
}

// Layers take equally long.
double KvOverlap::held_ms(double ms) {
  if (size_ == 0) return ms;
  double done = 0;
  for (int32_t layer = 0; layer < num_layers(); ++layer)
    done = std::max(done, 1e3 * seconds_until(layer, arrived_at_pass_)) + ms / num_layers();
  waited_ = 1e-3 * (done - ms);
  return done;
}

}  // namespace otr
