#include "runtime/kv_rebuild.h"

#include <algorithm>
#include <cassert>
#include <limits>
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
// Seconds: what is left of a page may be less than a clock's step. Nothing is left of a page that finds no room.
constexpr double kLeastWait = 1e-6;
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
    budget_ = std::max(target_->on_device() ? kMostDeviceBytesPerTick : kMostBytesPerTick,
                       static_cast<double>(target_->page_bytes()));
  else budget_ = active_ ? budget_ + seconds * options_.link_bytes_per_second : 0;
  active_ = has_copied_ = false;
  early_in_ = std::numeric_limits<double>::infinity();
  overlap_.begin_tick(budget_);
}

int32_t KvRebuild::advance(Sequence* s, int32_t num_samples) {
  active_ = true;
  const KvLease& lease = *s->lease;
  const int32_t front = pages_of(s->num_computed);
  bool copies_come = true;
  if (leaves_link_out(*s)) copies_come = !lease.over();
  else if (front < s->first_copied) copies_come = copy(s, front);
  const int32_t end = std::min(s->first_copied * kPageTokens, lease.num_positions());
  if (s->num_computed >= end) return join(s);
  const RebuildStep step = rebuild_step(s->num_computed, end, kPageTokens, rates(*s, copies_come));
  s->runs_to = s->num_computed + step.rows;
  if (step.takes_newest && (copies_come || lease.over())) return join(s);
  if (copies_come && s->runs_to == s->num_computed) begin_early(s, num_samples);
  return 0;
}

// Whether all is computed sooner than it could be with what the link brings. Once something is copied that is decided.
bool KvRebuild::leaves_link_out(const Sequence& s) const {
  if (!throttled() || s.num_copied_pages() > 0) return false;
  return rebuild_step(s.num_computed, s.lease->num_positions(), kPageTokens, rates(s, true)).takes_newest;
}

// The front is done, and the rest is under way: its rows run now if that comes within their pass.
void KvRebuild::begin_early(Sequence* s, int32_t num_samples) {
  if (!overlap_.takes(*s->lease)) return;
  const int32_t first = pages_of(s->num_computed), count = s->first_copied - first;
  const ComingCopies coming = overlap_.coming(count);
  const double tick = least_tick(*s->lease);
  early_in_ = std::min(early_in_, seconds_until_early(coming, tick));
  if (!may_begin_early(coming, tick, num_samples) || count > target_->prefix_cache().num_available() / 2) return;
  for (int32_t i = first; i < s->first_copied; ++i) s->copied[static_cast<size_t>(i)] = target_->prefix_cache().allocate();
  s->pages.append(std::span(s->copied).subspan(static_cast<size_t>(first)));
  s->first_copied = static_cast<int32_t>(s->copied.size());
  s->num_computed = s->lease->num_positions();
  s->runs_to = Sequence::kEverything;
  budget_ -= static_cast<double>(count) * static_cast<double>(target_->page_bytes());
  overlap_.add(s, first, count);
}

// As it was before begin_early(). The pages in front of the gap and behind it are right, whatever was read in between.
void KvRebuild::undo(const KvOverlap::Entry& e) {
  Sequence* const s = e.s;
  const size_t behind = static_cast<size_t>(e.first + e.count);
  for (size_t i = behind; i < s->copied.size(); ++i) target_->page_pool().retain(s->copied[i]);
  s->pages.truncate(&target_->page_pool(), e.first * kPageTokens);
  s->first_copied = e.first + e.count;
  s->num_computed = s->runs_to = e.first * kPageTokens;
  const double not_come = 1 - static_cast<double>(e.layers) / target_->kv_layout().num_layers;
  budget_ += not_come * static_cast<double>(e.count) * static_cast<double>(target_->page_bytes());
}

void KvRebuild::begin_pass(std::span<const RowRun> runs) {
  for (size_t i = overlap_.size(); i-- > 0;) {
    const int32_t slot = overlap_[i].s->slot;
    if (std::none_of(runs.begin(), runs.end(), [slot](const RowRun& run) { return run.slot == slot; }))
      undo(overlap_.remove(i));
  }
}

Sequence* KvRebuild::end_pass(int32_t* copied) {
  if (overlap_.size() == 0) return nullptr;
  const KvOverlap::Entry e = overlap_.remove(overlap_.size() - 1);
  *copied = e.lost ? 0 : e.s->lease->num_positions() - e.first * kPageTokens;
  if (e.lost) undo(e);
  else end_lease(e.s);
  return e.s;
}

// Copies what it may of the pages before the first copied one, down to number `first_wanted`. False: no more will come.
bool KvRebuild::copy(Sequence* s, int32_t first_wanted) {
  const int32_t wanted = s->first_copied - first_wanted;
  const double budget = std::max(0.0, budget_ / static_cast<double>(target_->page_bytes()));
  const int32_t within_budget = static_cast<int32_t>(std::min<double>(wanted, budget));
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
  const double bytes = static_cast<double>(count) * static_cast<double>(target_->page_bytes());
  budget_ -= bytes;
  overlap_.note_copied(bytes);
  s->first_copied = first;
  has_copied_ = true;
  return true;
}

// The front has come to the first copied page, or to the lease's end.
int32_t KvRebuild::join(Sequence* s) {
  const int32_t copied = s->num_copied_pages() > 0 ? s->lease->num_positions() - s->num_computed : 0;
  s->pages.append(std::span(s->copied).subspan(static_cast<size_t>(s->first_copied)));
  s->num_computed += copied;
  end_lease(s);
  return copied;
}

void KvRebuild::end_lease(Sequence* s) {
  if (s->lease != nullptr) s->lease->end();
  s->lease.reset();
  s->runs_to = Sequence::kEverything;
  s->copied.clear();
  s->first_copied = 0;
}

void KvRebuild::drop(Sequence* s) {
  budget_ += static_cast<double>(overlap_.forget(*s)) * static_cast<double>(target_->page_bytes());
  for (size_t i = s->copied.size(); i-- > static_cast<size_t>(s->first_copied);) target_->page_pool().release(s->copied[i]);
  end_lease(s);
}

void KvRebuild::end_tick(int64_t rows, double seconds) {
  if (rows >= kLeastRows) computed_.add(static_cast<double>(rows), seconds);
  else least_tick_ = least_tick_ > 0 ? std::min(seconds, least_tick_ / kKeepOfRate) : seconds;
}

// Who has not run a tick of a kind yet goes by who gave.
double KvRebuild::least_tick(const KvLease& lease) const { return least_tick_ > 0 ? least_tick_ : lease.speed().least_tick; }

// A link brings what its rate says; memory is as fast as it was.
RebuildRates KvRebuild::rates(const Sequence& s, bool copies_come) const {
  const bool any_copied = s.num_copied_pages() > 0;
  if (!copies_come) return {.computed = 1, .copied = 0, .any_copied = any_copied};
  const KvLease& lease = *s.lease;
  const double tokens_per_byte = kPageTokens / static_cast<double>(target_->page_bytes());
  const double copied = throttled() ? options_.link_bytes_per_second * tokens_per_byte : copied_.value();
  const double computed = computed_.value() > 0 ? computed_.value() : lease.speed().rows_per_second;
  // To copy all that can be, the front is to be hopelessly slow. So too where there is no link: then this worker's own time
  // goes into copying as into computing, and whatever is quicker does all of it.
  const bool all = options_.mode == RebuildMode::kTransfer || (!throttled() && copied > computed);
  return {.computed = all ? 1e-9 * copied : computed,
          .copied = copied,
          .least_tick = least_tick(lease),
          .chunk = chunk_,
          .arrived = throttled() ? std::max(0.0, budget_ * tokens_per_byte) : 0,
          .num_layers = overlap_.takes(lease) ? target_->kv_layout().num_layers : 1,
          .any_copied = any_copied};
}

double KvRebuild::seconds_to_wait() const {
  if (!active_ || !throttled()) return 0;
  const double page_in = (static_cast<double>(target_->page_bytes()) - budget_) / options_.link_bytes_per_second;
  const double seconds = std::min(page_in, early_in_);
  return seconds > kLeastWait ? seconds : 0;
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
