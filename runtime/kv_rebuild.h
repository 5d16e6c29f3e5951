// KvRebuild: how a sequence that goes on at another worker gets its keys and values there: computed anew from the front, in
// chunks as a prompt is, and copied from the back, page by page, from the worker that had it. They meet where sched's KvSplit
// says, by the rates that both ends show (SpecActor §4.3 scales the KV cache of a new verifier so).
//
//   tokens    0 ……………… num_computed        copied pages ……… lease's end
//             computed ▸▸▸▸▸▸▸│  gap    │◂◂◂◂◂◂◂ copied              met: one table, as if nothing had been
//
// Copies are made between ticks, by this worker's threads: as many pages as the link has carried meanwhile, or a bounded
// number. Those that are left when the front is done may come within the pass of the rows behind them (KvOverlap): the sequence
// then runs as if it had them, and is as before if they are lost, or its rows do not run.
//
// A worker's: single-threaded. Nothing is allocated but in lend(). Invariant: num_computed never passes the first copied page,
// but for sequences whose copies come in the pass, from advance() to end_pass().
#pragma once

#include <limits>
#include <memory>
#include <span>
#include <vector>

#include "runtime/kv_lease.h"
#include "runtime/kv_overlap.h"
#include "runtime/pace.h"
#include "runtime/request.h"
#include "runtime/worker_options.h"
#include "sched/batcher.h"
#include "sched/kv_split.h"

namespace otr {

class KvRebuild {
 public:
  // All outlive it. `pace`: by whose clock rates are; null: the wall's. `chunk`: rows that a tick computes at most.
  KvRebuild(ModelRunner* target, WorkerMailbox* own, const RebuildOptions& options, const Pace* pace = nullptr,
            int32_t chunk = std::numeric_limits<int32_t>::max())
      : target_(target),
        own_(own),
        options_(options),
        pace_(pace),
        chunk_(chunk),
        overlap_(target, options, pace),
        since_tick_(pace) {}

  // ---- Who gives a sequence ----
  // Lends what the sequence has computed to whoever goes on with it. Nothing where that is less than a page, where copying is
  // off, or where there is no memory for it.
  void lend(Sequence* s);
  // Pages that nobody copies any more come back. False: there were none.
  bool take_back();
  // All that is lent comes back.
  bool reclaim();

  // ---- Who goes on with it ----
  // What has come with a sequence from another process. False: there is no memory for it, and the sequence is computed anew.
  static bool take(std::shared_ptr<KvLease> lease, Sequence* s);
  void begin_tick();
  // Copies what the link has brought, joins the ends if they have met, and sets how far rows may run in the next tick. Returns
  // the positions that were copied, where they have met, else 0. `num_samples`: that may run in the tick. REQUIRES: the
  // sequence has a lease and is in the batch.
  int32_t advance(Sequence* s, int32_t num_samples = 1);
  bool comes_in_pass(const Sequence& s) const { return overlap_.has(s); }
  // What runs is known: who has no rows goes on as before.
  void begin_pass(std::span<const RowRun> runs);
  LayerGate* gate() { return overlap_.size() > 0 ? &overlap_ : nullptr; }  // of the pass
  double held_ms(double pass_ms) { return overlap_.held_ms(pass_ms); }     // of a paced worker
  double waited_seconds() const { return overlap_.waited_seconds(); }      // in the pass, for copies
  // The pass is over: the next sequence whose copies came in it, and how many positions; or 0: they are lost, and what its rows
  // found is not to be kept: runs_to is before all of them. Null: no more.
  Sequence* end_pass(int32_t* copied);
  // The sequence leaves, or its pages go: nothing more is copied, and the copies go too.
  void drop(Sequence* s);
  // A tick has run, with so many rows of sequences that are more than a token behind; without the waits in it.
  void end_tick(int64_t rows, double seconds);
  // Until the link brings another page, or has so little left to bring that a pass may begin; 0: not known, as something else
  // is missing.
  double seconds_to_wait() const;
  bool has_copied() const { return has_copied_; }  // since begin_tick()

  // What it holds, for PagePool::check().
  void add_leases(std::vector<int32_t>* references, std::vector<int32_t>* leases) const;

 private:
  struct Rate {  // of the recent past: older parts count ever less
    double tokens = 0, seconds = 0;
    void add(double more_tokens, double more_seconds);
    double value() const { return seconds > 0 ? tokens / seconds : 0; }
  };
  bool throttled() const { return options_.link_bytes_per_second > 0; }
  bool copy(Sequence* s, int32_t first_wanted);
  int32_t join(Sequence* s);
  void begin_early(Sequence* s, int32_t num_samples);
  void undo(const KvOverlap::Entry& e);
  static void end_lease(Sequence* s);
  bool leaves_link_out(const Sequence& s) const;
  double least_tick(const KvLease& lease) const;
  RebuildRates rates(const Sequence& s, bool copies_come) const;
  void give_back(const LentPages& lease);

  ModelRunner* const target_;
  WorkerMailbox* const own_;
  const RebuildOptions options_;
  const Pace* const pace_;
  const int32_t chunk_;
  KvOverlap overlap_;
  std::vector<std::shared_ptr<LentPages>> lent_;
  Rate computed_, copied_;  // the latter where there is no link
  double least_tick_ = 0;   // seconds; of the recent past and of few rows
  PacedStopwatch since_tick_;
  double budget_ = 0;    // bytes that may be copied now; < 0: so many more come in the pass
  double early_in_ = 0;  // seconds until a pass may begin while its copies come; infinite: nobody waits for that
  bool active_ = false;  // since the last tick something was to come
  bool has_copied_ = false;
};

}  // namespace otr
