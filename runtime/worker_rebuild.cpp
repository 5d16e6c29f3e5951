// What a worker does for sequences whose keys and values are being made anew: see KvRebuild.
#include <algorithm>

#include "runtime/worker.h"

namespace otr {
namespace {

int32_t full_prompt_pages(const Sequence& s) { return s.num_prompt() / kPageTokens; }

}  // namespace

// Before a tick: copies come on, the ends that have met are joined, and who has waited for a sibling's prompt takes it from the
// cache.
void Worker::advance_rebuilds() {
  rebuild_.begin_tick();
  if (options_.proofs.rebuild.revoke_every > 0 &&
      random_() % static_cast<uint32_t>(options_.proofs.rebuild.revoke_every) == 0) {
    rebuild_.reclaim();
  }
  for (int32_t i = 0; i < batcher_.num_running(); ++i) {
    Sequence& s = live(batcher_.running_slot(i));
    if (s.runs_to == Sequence::kEverything) continue;
    if (waits_for_sibling(s)) continue;
    // It has computed nothing yet: what the cache has by now is the better beginning.
    if (!s.group->is_score && s.num_computed == s.prefix_hit && s.num_copied_pages() == 0) {
      stats_.prefix_hit_tokens -= s.prefix_hit;
      s.pages.release_all(&target().page_pool());
      attach_prefix(s.slot);
    }
    if (s.lease == nullptr) {
      s.runs_to = Sequence::kEverything;
      continue;
    }
    note_copied(s, rebuild_.advance(&s, batcher_.num_running()));
  }
}

// Only now that all of them are there others may find the prompt's pages.
void Worker::note_copied(const Sequence& s, int32_t positions) {
  stats_.kv_copied_tokens += positions;
  if (positions > 0 && !s.group->is_score && s.num_computed >= s.num_prompt()) {
    target().prefix_cache().insert(s.tokens, s.pages.pages(), full_prompt_pages(s));
  }
}

// What came in the pass is there, or lost: then commit() keeps nothing of that sequence.
void Worker::settle_copies() {
  int32_t copied = 0;
  while (const Sequence* s = rebuild_.end_pass(&copied)) {
    ++(copied > 0 ? stats_.kv_overlaps : stats_.kv_overlaps_lost);
    note_copied(*s, copied);
  }
}

// Siblings that come, or come back, together have one prompt to make: the oldest makes it, the others find it in the prefix
// cache.
bool Worker::waits_for_sibling(const Sequence& s) const {
  if (s.group->is_score || s.num_computed >= full_prompt_pages(s) * kPageTokens) return false;
  for (int32_t i = 0; i < batcher_.num_running(); ++i) {
    const Sequence& other = live(batcher_.running_slot(i));
    if (other.age >= s.age) return false;  // they are in the order of their age
    if (other.group == s.group && (other.num_computed < other.num_prompt() || rebuild_.comes_in_pass(other))) return true;
  }
  return false;
}

// Nothing can run: that is right as long as something comes from elsewhere. When the link brings the next page is known, though
// whoever lends may take it back. Where there is no link, a tick that has copied as much as it may is followed by the next one
// at once. What else is missing, room or a sibling's prompt, is looked for ever more seldom. Whatever is posted ends the wait.
// False: nothing comes.
bool Worker::wait_for_pages() {
  bool comes = false;
  for (int32_t i = 0; i < batcher_.num_running() && !comes; ++i)
    comes = live(batcher_.running_slot(i)).runs_to != Sequence::kEverything;
  if (!comes) return false;
  const double page_ms = std::min(GrowingWait::kMostMs, 1e3 * rebuild_.seconds_to_wait());
  const bool is_known = page_ms > 0;
  if (is_known || rebuild_.has_copied()) blind_.reset();
  if (!is_known && rebuild_.has_copied() && pace_ == nullptr) return true;
  mailbox_.await(is_known ? page_ms : pace_ != nullptr ? Pace::kIdleMs : blind_.next_ms());
  return true;
}

}  // namespace otr
