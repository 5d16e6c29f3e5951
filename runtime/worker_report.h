// What a worker says after a tick, and to whom.
#pragma once

#include <cstdint>
#include <exception>
#include <new>
#include <optional>

#include "runtime/ledger.h"
#include "runtime/sequence_queue.h"
#include "runtime/worker_mailbox.h"
#include "runtime/worker_stats.h"
#include "sched/placement.h"

namespace otr {

struct WorkerReport {
  SequenceQueue finished;
  SequenceQueue given;           // each to the worker that it goes to
  std::optional<Move> answered;  // the order that is over
  bool pages_returned = false;   // what was lent is back: the load has changed
  std::optional<Lend> lent;      // likewise: `most` is what was lent
  SequenceQueue dropped;         // replicas that have lost their race: there is room
  Progress progress;             // of all its samples, those above too; empty unless the worker is to report it

  bool pending() const { return !finished.empty() || !given.empty() || answered || pages_returned || lent || !dropped.empty(); }
};

inline Status status_of(const std::exception& e) {
  return dynamic_cast<const std::bad_alloc*>(&e) != nullptr ? Status(StatusCode::kOutOfMemory, "out of memory")
                                                            : Status(StatusCode::kInternal, e.what());
}

// Whom workers report to. Called by their threads.
class WorkerHost {
 public:
  virtual ~WorkerHost() = default;
  // After a tick. Takes what is in the report.
  virtual void report(int32_t worker, const WorkerStats& stats, const WorkerLoad& load, WorkerReport* report) = 0;
  // From now on this sample's trial runs; null: none does any more.
  virtual void tries(const Sequence*) {}
  // The worker begins to wait for orders.
  virtual void rested() = 0;
  // Something went wrong that is no sample's fault. Where samples can go elsewhere, does not return; else the samples that the
  // worker has fail.
  virtual void broke(const Status&) {}
};

}  // namespace otr
