// What a worker is made with.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/page/page.h"
#include "runtime/draft_server.h"
#include "runtime/speculator.h"
#include "runtime/worker_fault.h"

namespace otr {

class HistoryStore;
class TraceSink;
class WorkerHost;

// Where a sequence that has moved gets its keys and values from.
enum class RebuildMode {
  kBothEnds,   // computed from the front, copied from the back (KvRebuild)
  kRecompute,  // computed: its old worker's memory cannot be read
  kTransfer,   // copied, where that can be: for comparison
};

struct RebuildOptions {
  RebuildMode mode = RebuildMode::kBothEnds;
  double link_bytes_per_second = 0;  // no more is copied than a link of this rate would carry; 0: as fast as memory is
  bool whole_pages = false;          // for comparison: copies come between ticks alone (KvOverlap)
  // For proofs:
  int32_t revoke_every = 0;      // all that is lent is taken back before one tick in so many; 0: never
  int32_t revoke_at_layer = -1;  // what comes in a pass is lost before this layer of it
};

// Of paced workers: keys and values move as fast as the profile's token does.
inline RebuildOptions paced_rebuild(const PaceOptions& pace, int64_t page_bytes, RebuildOptions rebuild) {
  if (pace.kv_transfer_ms == 0) rebuild.mode = RebuildMode::kRecompute;
  else rebuild.link_bytes_per_second = static_cast<double>(page_bytes) / (1e-3 * pace.kv_transfer_ms * kPageTokens);
  return rebuild;
}

// What is done to a worker for proofs that it changes no sample.
struct WorkerProofs {
  int64_t preempt_at_tick = -1;  // a sequence is preempted before this tick, need or not
  int32_t migrate_every = 0;     // a random sequence goes to a random worker before one tick in so many; 0: none
  uint32_t migration_seed = 0;
  int64_t migrate_at_tick = -1;  // all that the first worker runs goes to the next one before this tick of its own
  RebuildOptions rebuild = {};
  std::vector<WorkerFault> faults = {};  // of processes
  // A process breaks in a tick that runs position breaks_at, or a later one, of a sample of this group; 0: none does.
  uint64_t breaks_of_group = 0;
  int64_t breaks_of_sample = -1;  // of this one alone; -1: of any
  int32_t breaks_at = 0;
  uint32_t delay_seed = 0;       // not 0: messages between workers are seen late, at random
  bool alternate_roles = false;  // who drafts for others in one step, does not in the next, whatever is planned
  int32_t link_capacity = 0;     // of the queues between them; 0: what their batch may fill
  int32_t socket_bytes =
      0;  // that may wait at an end of a process' socket, or as few as the system lets; 0: what it is used to
};

struct WorkerOptions {
  int32_t index = 0;  // among its engine's num_workers
  int32_t num_workers = 1;
  int32_t max_batch = 0;
  int32_t prefill_chunk = 0;
  int32_t max_draft_rows = 0;  // of a tick
  SpeculatorOptions speculation;
  DraftServerOptions server = {};       // of a worker that drafts for others
  std::vector<DraftLink*> serves = {};  // whom it drafts for; none: nobody
  const ModelRunner* share_server_model =
      nullptr;  // another worker's, whose weights its own uses; null: what speculation has, or none
  WorkerProofs proofs;
  bool reports_progress = false;
  bool replicas_stay = false;  // who races is given to nobody: a process is one place in a race
  // These outlive the worker.
  WorkerHost* host = nullptr;
  const PaceOptions* pace = nullptr;  // what passes take; null: as long as they do
  PaceClock* pace_clock = nullptr;    // then: all workers'
  TraceSink* trace = nullptr;         // may be null

  // Every running sample wants one row of logits a tick; scores want one for every token, so a small batch gets some more.
  int32_t max_logit_rows() const { return std::max(max_batch, 64); }
  ProgramBucket bucket() const {
    return {.max_rows = max_batch + prefill_chunk + max_draft_rows,
            .max_logit_rows = max_logit_rows() + max_draft_rows,
            .max_copies = max_draft_rows * kMaxDraftDepth};
  }
};

}  // namespace otr
