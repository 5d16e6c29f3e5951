#include "runtime/kv_rebuild.h"

#include <algorithm>
#include <cassert>
#include <new>

#include "kernels/base/clock.h"
#include "kernels/page/page.h"

namespace otr {
namespace {

// A tick's copies without a link's rate: some 3 ms of a core, as long as a small tick.
constexpr double kMostBytesPerTick = 16 << 20;
// Between GPUs: 0.3 ms of NVLink, 2.5 ms of PCIe.
constexpr double kMostDeviceBytesPerTick = 128 << 20;
// A rate is measured where a tick runs at least so many rows: of fewer the weights' reading is most of the time.
constexpr int64_t kLeastRows = 32;
constexpr double kKeepOfRate = 0.8;  // a tick later
constexpr double kLeastWait = 1e-6;  // seconds: what is left of a page may be less than a clock's step
// A begun page is not copied for fewer positions than it holds.
constexpr int32_t kLeastLent = kPageTokens;

int32_t pages_of(int32_t positions) { return (positions + kPageTokens - 1) / kPageTokens; }

}  // namespace

void KvRebuild::Rate::add(double more_tokens, double more_seconds) {
  tokens = kKeepOfRate * tokens + more_tokens;
  seconds = kKeepOfRate * seconds + more_seconds;
}

// ---- Who gives ------------------------------------------------------------------------------------------------------------

void KvRebuild::lend(Sequence* s) {
  assert(s->lease == nullptr);
  if (options_.mode == RebuildMode::kRecompute || s->num_computed < kLeastLent) return;
  const std::span<const PageId> pages = std::span(s->pages.pages()).first(static_cast<size_t>(pages_of(s->num_computed)));
  try {
    lent_.reserve(lent_.size() + 1);
    auto lease = std::make_shared<LentPages>(*target_, own_, pages, s->num_computed, TickSpeed{computed_.value(), least_tick_});
    if (!take(lease, s)) return;
    lent_.push_back(std::move(lease));
  } catch (const std::bad_alloc&) {  // it is computed anew
    return;
  }
  for (const PageId page : pages) target_->page_pool().lease(page);
}

bool KvRebuild::take(std::shared_ptr<KvLease> lease, Sequence* s) {
  try {
    s->copied.assign(static_cast<size_t>(lease->num_pages()), kNoPage);
  } catch (const std::bad_alloc&) {
    return false;
  }
  s->first_copied = lease->num_pages();
  s->runs_to = 0;  // until the first advance()
  s->lease = std::move(lease);
  return true;
}

void KvRebuild::give_back(const LentPages& lease) {
  for (size_t i = lease.pages().size(); i-- > 0;) target_->page_pool().end_lease(lease.pages()[i]);  // deepest first
}

bool KvRebuild::take_back() {
  const auto is_over = [this](const std::shared_ptr<LentPages>& lease) {
    if (!lease->over()) return false;
    give_back(*lease);
    return true;
  };
  return std::erase_if(lent_, is_over) > 0;
}

bool KvRebuild::reclaim() {
  for (const auto& lease : lent_) lease->revoke();
  return take_back();
}

// ---- Who goes on ----------------------------------------------------------------------------------------------------------

void KvRebuild::begin_tick() {
  const double seconds = since_tick_.seconds();
  since_tick_ = PacedStopwatch(pace_);
  if (!throttled())
    budget_ = std::max(target_->on_device() ? kMostDeviceBytesPerTick : kMostBytesPerTick, static_cast<double>(target_->page_bytes()));
  else
    budget_ = active_ ? budget_ + seconds * options_.link_bytes_per_second : 0;
  active_ = false;
}

int32_t KvRebuild::advance(Sequence* s) {
  active_ = true;
  const KvLease& lease = *s->lease;
  const int32_t front = pages_of(s->num_computed);
  const bool copies_come = front < s->first_copied ? copy(s, front) : true;
  const int32_t end = std::min(s->first_copied * kPageTokens, lease.num_positions());
  if (s->num_computed >= end) return join(s);
  s->runs_to = s->num_computed + tokens_from_front(s->num_computed, end, kPageTokens, rates(lease, copies_come));
  // With the link left out, the last chunk takes the newest token along.
  const bool left_out = s->runs_to == lease.num_positions() && s->num_copied_pages() == 0 && (copies_come || lease.over());
  return left_out ? join(s) : 0;
}

// Copies what it may of the pages before the first copied one, down to number `first_wanted`. False: no more will come.
bool KvRebuild::copy(Sequence* s, int32_t first_wanted) {
  const int32_t wanted = s->first_copied - first_wanted;
  const int32_t within_budget = static_cast<int32_t>(std::min<double>(wanted, budget_ / static_cast<double>(target_->page_bytes())));
  // What is free is not all taken: that would only send another sequence back to wait.
  const int32_t free = target_->prefix_cache().num_available() / 2;
  const int32_t count = std::min(within_budget, free);
  if (count == 0) return free > 0 && !s->lease->over();
  const int32_t first = s->first_copied - count;
  const std::span<PageId> to = std::span(s->copied).subspan(static_cast<size_t>(first), static_cast<size_t>(count));
  for (PageId& page : to) page = target_->prefix_cache().allocate();
  const Stopwatch copying;
  if (!s->lease->copy(first, to, target_)) {
    for (const PageId page : to) target_->page_pool().release(page);
    return false;
  }
  if (!throttled()) copied_.add(count * kPageTokens, copying.seconds());
  budget_ -= static_cast<double>(count) * static_cast<double>(target_->page_bytes());
  s->first_copied = first;
  return true;
}

// The front has come to the first copied page, or to the lease's end.
int32_t KvRebuild::join(Sequence* s) {
  const int32_t positions = s->lease->num_positions();
  s->lease->end();
  s->lease.reset();
  s->runs_to = Sequence::kEverything;
  const int32_t copied = s->num_copied_pages() > 0 ? positions - s->num_computed : 0;
  s->pages.append(std::span(s->copied).subspan(static_cast<size_t>(s->first_copied)));
  s->copied.clear();
  s->first_copied = 0;
  s->num_computed += copied;
  return copied;
}

void KvRebuild::drop(Sequence* s) {
  if (s->lease != nullptr) s->lease->end();
  s->lease.reset();
  s->runs_to = Sequence::kEverything;
  for (size_t i = s->copied.size(); i-- > static_cast<size_t>(s->first_copied);) target_->page_pool().release(s->copied[i]);
  s->copied.clear();
  s->first_copied = 0;
}

void KvRebuild::end_tick(int64_t rows, double seconds) {
  if (rows >= kLeastRows) computed_.add(static_cast<double>(rows), seconds);
  else least_tick_ = least_tick_ > 0 ? std::min(seconds, least_tick_ / kKeepOfRate) : seconds;
}

// A link brings what its rate says; memory is as fast as it was. Who has not run a tick of a kind yet goes by who gave.
RebuildRates KvRebuild::rates(const KvLease& lease, bool copies_come) const {
  if (!copies_come) return {.computed = 1, .copied = 0};
  const double link = options_.link_bytes_per_second / static_cast<double>(target_->page_bytes()) * kPageTokens;
  const double copied = throttled() ? link : copied_.value();
  const TickSpeed given = lease.speed();
  const double computed = computed_.value() > 0 ? computed_.value() : given.rows_per_second;
  // To copy all that can be, the front is to be hopelessly slow. So too where there is no link: then this worker's own time goes into
  // copying as into computing, and whatever is quicker does all of it.
  const bool all = options_.mode == RebuildMode::kTransfer || (!throttled() && copied > computed);
  return {.computed = all ? 1e-9 * copied : computed, .copied = copied, .least_tick = least_tick_ > 0 ? least_tick_ : given.least_tick};
}

double KvRebuild::seconds_to_wait() const {
  if (!active_ || !throttled()) return 0;
  return std::max(kLeastWait, (static_cast<double>(target_->page_bytes()) - budget_) / options_.link_bytes_per_second);
}

void KvRebuild::add_leases(std::vector<int32_t>* references, std::vector<int32_t>* leases) const {
  for (const auto& lease : lent_) {
    for (const PageId page : lease->pages()) {
      ++(*references)[static_cast<size_t>(page)];
      ++(*leases)[static_cast<size_t>(page)];
    }
  }
}

}  // namespace otr
