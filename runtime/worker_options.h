// What a worker is made with.
#pragma once

#include <algorithm>
#include <cstdint>

#include "runtime/speculator.h"

namespace otr {

class HistoryStore;
class Trace;
class WorkerHost;

// What is done to a worker for proofs that it changes no sample.
struct WorkerProofs {
  int64_t preempt_at_tick = -1;  // a sequence is preempted before this tick, need or not
  int32_t migrate_every = 0;     // a random sequence goes to a random worker before one tick in so many; 0: none
  uint32_t migration_seed = 0;
};

struct WorkerOptions {
  int32_t index = 0;  // among its engine's num_workers
  int32_t num_workers = 1;
  int32_t max_batch = 0;
  int32_t prefill_chunk = 0;
  int32_t max_draft_rows = 0;  // of a tick
  SpeculatorOptions speculation;
  WorkerProofs proofs;
  // These outlive the worker.
  WorkerHost* host = nullptr;
  HistoryStore* history = nullptr;  // may be null
  Trace* trace = nullptr;           // may be null

  // Every running sample wants one row of logits a tick; scores want one for every token, so a small batch gets some more.
  int32_t max_logit_rows() const { return std::max(max_batch, 64); }
  ProgramBucket bucket() const {
    return {.max_rows = max_batch + prefill_chunk + max_draft_rows, .max_logit_rows = max_logit_rows() + max_draft_rows,
            .max_copies = max_draft_rows * kMaxDraftDepth};
  }
};

}  // namespace otr
