// KvRebuild: how a sequence that goes on at another worker gets its keys and values there: computed anew from the front, in chunks as a
// prompt is, and copied from the back, page by page, from the worker that had it. They meet where sched's KvSplit says, by the rates
// that both ends show (SpecActor §4.3 scales the KV cache of a new verifier so).
//
//   tokens    0 ……………… num_computed        copied pages ……… lease's end
//             computed ▸▸▸▸▸▸▸│  gap    │◂◂◂◂◂◂◂ copied              met: one table, as if nothing had been
//
// Copies are made between ticks, by this worker's threads: as many pages as the link has carried meanwhile, or a bounded number.
//
// A worker's: single-threaded. Nothing is allocated but in lend(). Invariant: num_computed never passes the first copied page.
#pragma once

#include <memory>
#include <vector>

#include "runtime/kv_lease.h"
#include "runtime/pace.h"
#include "runtime/request.h"
#include "runtime/worker_options.h"
#include "sched/kv_split.h"

namespace otr {

class KvRebuild {
 public:
  // All outlive it. `pace`: by whose clock rates are; null: the wall's.
  KvRebuild(ModelRunner* target, WorkerMailbox* own, const RebuildOptions& options, const Pace* pace = nullptr)
      : target_(target), own_(own), options_(options), pace_(pace), since_tick_(pace) {}

  // ---- Who gives a sequence ----
  // Lends what the sequence has computed to whoever goes on with it. Nothing where that is less than a page, where copying is off, or
  // where there is no memory for it.
  void lend(Sequence* s);
  // Pages that nobody copies any more come back. False: there were none.
  bool take_back();
  // All that is lent comes back.
  bool reclaim();

  // ---- Who goes on with it ----
  // What has come with a sequence from another process. False: there is no memory for it, and the sequence is computed anew.
  static bool take(std::shared_ptr<KvLease> lease, Sequence* s);
  void begin_tick();
  // Copies what the link has brought, joins the ends if they have met, and sets how far rows may run in the next tick. Returns the
  // positions that were copied, where they have met, else 0. REQUIRES: the sequence has a lease and is in the batch.
  int32_t advance(Sequence* s);
  // The sequence leaves, or its pages go: nothing more is copied, and the copies go too.
  void drop(Sequence* s);
  // A tick has run, with so many rows of sequences that are more than a token behind.
  void end_tick(int64_t rows, double seconds);
  // Until the link brings another page.
  double seconds_to_wait() const;

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
  RebuildRates rates(const KvLease& lease, bool copies_come) const;
  void give_back(const LentPages& lease);

  ModelRunner* const target_;
  WorkerMailbox* const own_;
  const RebuildOptions options_;
  const Pace* const pace_;
  std::vector<std::shared_ptr<LentPages>> lent_;
  Rate computed_, copied_;  // the latter where there is no link
  double least_tick_ = 0;   // seconds; of the recent past and of few rows
  PacedStopwatch since_tick_;
  double budget_ = 0;     // bytes that may be copied now
  bool active_ = false;   // since the last tick something was to come
};

}  // namespace otr
