#include "sched/batcher.h"

#include <algorithm>
#include <cassert>

#include "sched/spare_pages.h"

namespace otr {
namespace {

int32_t logit_rows(const SequenceView& v, int32_t begin, int32_t end) {
  return std::max(0, end - std::max(begin, v.logits_from));
}

}  // namespace

Batcher::Batcher(const BatchLimits& limits) : limits_(limits) {
  running_.reserve(static_cast<size_t>(limits.max_batch));
  plan_.reserve(static_cast<size_t>(limits.max_batch));
}

void Batcher::add(int32_t slot, uint64_t age) {
  // Room for every sequence to wait at once, so that preemption never allocates.
  waiting_.reserve(waiting_.size() + running_.size() + 1, static_cast<size_t>(slot) + 1);
  waiting_.push({slot, age});
}

void Batcher::remove(int32_t slot) {
  if (waiting_.contains(slot)) return waiting_.remove(slot);
  const auto it = std::find_if(running_.begin(), running_.end(), [slot](const Entry& e) { return e.slot == slot; });
  assert(it != running_.end());
  running_.erase(it);
}

int32_t Batcher::rows_wanted(const SequenceView& v, int32_t chunk_left, int32_t logit_rows_left) const {
  if (v.waits) return 0;
  const int32_t behind = v.num_target - v.num_computed;
  const int32_t runnable = std::max(0, std::min(v.num_target, v.runs_to) - v.num_computed);
  int32_t rows = behind == 1 ? runnable : std::min(runnable, chunk_left);
  if (logit_rows(v, v.num_computed, v.num_computed + rows) > logit_rows_left) {
    rows = std::max(v.logits_from, v.num_computed) - v.num_computed + logit_rows_left;
  }
  return rows;
}

int32_t Batcher::pages_wanted(const BatchHost& host) const {
  int32_t chunk_left = limits_.prefill_chunk, logits_left = limits_.max_logit_rows, pages = 0;
  for (const Entry& e : running_) {
    const SequenceView v = host.view(e.slot);
    const int32_t rows = rows_wanted(v, chunk_left, logits_left);
    if (v.num_target - v.num_computed > 1) chunk_left -= rows;
    logits_left -= logit_rows(v, v.num_computed, v.num_computed + rows);
    pages += host.pages_to_write(e.slot, v.num_computed, v.num_computed + rows);
  }
  return pages;
}

bool Batcher::preempt_one(BatchHost* host) {
  int32_t best = -1, best_remaining = -1;
  bool best_frees = false, best_runs = false;
  const auto consider = [&](const Entry& e, bool runs) {
    const int32_t remaining = host->view(e.slot).remaining;
    const bool frees = host->pages_private(e.slot) > 0;
    if (best < 0 || frees > best_frees || (frees == best_frees && remaining > best_remaining)) {
      best = e.slot;
      best_remaining = remaining;
      best_frees = frees;
      best_runs = runs;
    }
  };
  for (size_t i = 1; i < running_.size(); ++i) {
    if (host->pages_held(running_[i].slot) > 0) consider(running_[i], true);
  }
  for (const Entry& e : waiting_.entries()) {
    if (host->pages_held(e.slot) > 0) consider(e, false);
  }
  if (best < 0) return false;
  host->drop_pages(best, best_runs);
  if (best_runs) {
    const auto it = std::find_if(running_.begin(), running_.end(), [best](const Entry& e) { return e.slot == best; });
    waiting_.push(*it);
    running_.erase(it);
  }
  return true;
}

void Batcher::admit(BatchHost* host) {
  while (!waiting_.empty() && num_running() < limits_.max_batch) {
    const Entry e = waiting_.oldest();
    if (host->pages_held(e.slot) == 0) host->attach_prefix(e.slot);
    const SequenceView v = host->view(e.slot);
    const int32_t pages = host->pages_to_write(e.slot, v.num_computed, v.num_target);
    if (!running_.empty() && pages + pages_wanted(*host) + spare_pages(num_running()) > host->pages_available()) {
      if (v.num_computed > 0 && host->pages_private(e.slot) == 0) return;  // a shared beginning costs nothing to keep
      host->drop_pages(e.slot, false);
      return;
    }
    waiting_.remove(e.slot);
    running_.insert(
        std::upper_bound(running_.begin(), running_.end(), e, [](const Entry& a, const Entry& b) { return a.age < b.age; }), e);
  }
}

const std::vector<RowRun>& Batcher::schedule(BatchHost* host) {
  plan_.clear();
  bool preempted = false;
  while (pages_wanted(*host) > host->pages_available()) {
    if (host->reclaim_pages()) continue;
    if (!preempt_one(host)) break;
    preempted = true;
  }
  if (!preempted) {
    const bool was_idle = running_.empty();
    admit(host);
    // Whoever joins an empty batch joins unconditionally: those who wait with pages give them up for it.
    while (was_idle && pages_wanted(*host) > host->pages_available() && (host->reclaim_pages() || preempt_one(host))) {
    }
  }
  int32_t chunk_left = limits_.prefill_chunk, logits_left = limits_.max_logit_rows;
  for (const Entry& e : running_) {
    const SequenceView v = host->view(e.slot);
    const int32_t rows = rows_wanted(v, chunk_left, logits_left);
    if (rows == 0) continue;
    const int32_t end = v.num_computed + rows;
    // Two holders of one shared page both count a copy, though the last one writes in place: more was asked than is used.
    if (host->pages_to_write(e.slot, v.num_computed, end) > host->pages_available()) continue;
    host->take_pages(e.slot, v.num_computed, end);
    if (v.num_target - v.num_computed > 1) chunk_left -= rows;
    logits_left -= logit_rows(v, v.num_computed, end);
    plan_.push_back({e.slot, v.num_computed, end});
  }
  return plan_;
}

}  // namespace otr
