// EngineState: what an engine has. What it does with that is Engine.
//
// Thread safety: what is set by create() is only read from then on; the rest says what guards it. mutex_ is taken before any
// worker's port. Invariant: a sample is at a worker, on its way to one, among the suspects, in the outbox, or taken.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "runtime/engine_options.h"
#include "runtime/history_store.h"
#include "runtime/ledger.h"
#include "runtime/link_wire.h"
#include "runtime/net_account.h"
#include "runtime/process_worker.h"
#include "runtime/suspects.h"
#include "runtime/trace.h"
#include "runtime/worker.h"
#include "sched/home_table.h"

namespace otr {

class EngineState {
 protected:
  // What is left of a group.
  struct Unfinished {
    int64_t samples = 0;
    std::shared_ptr<Group> group;
  };

  struct Lending {
    bool asked = false;   // for replicas, and not answered
    int32_t from = 0;     // who was
    int32_t rung = 0;     // of those that it has
    uint32_t lacks = 0;   // bit r: it had no sample to lend for rung r
    int32_t rest = 0;     // reports of its own until it is asked for those again
    int64_t arrived = 0;  // samples at it, when that was so
  };

  EngineState(const EngineOptions& options, std::string unavailable_paths)
      : options_(options),
        unavailable_paths_(std::move(unavailable_paths)),
        placement_(options.num_workers),
        homes_(options.num_workers),
        stats_(static_cast<size_t>(options.num_workers)),
        counted_before_(stats_.size()),
        losing_(stats_.size()),
        facts_(stats_.size()),
        lending_(stats_.size()) {}

  const EngineOptions options_;
  const std::string unavailable_paths_;    // JSON: path -> why it cannot run here
  std::string draft_model_;                // the drafter that draft workers run; "": there are none
  RequestLimits limits_;                   // from here on set by create()
  std::unique_ptr<PaceClock> pace_clock_;  // may be null
  std::unique_ptr<HistoryStore> history_;  // may be null; shared by workers and callers
  std::unique_ptr<Trace> trace_;           // may be null; shared by workers
  // Those of one GPU, or of the CPU, on the first one's weights there; one, at rest and on the CPU, where they are processes.
  std::vector<std::unique_ptr<Worker>> workers_;
  std::vector<std::unique_ptr<ProcessWorker>> processes_;
  bool drafts_history_ = false;                    // processes do; set by create()
  std::vector<WorkerPort*> ports_;                 // to the threads or the processes
  std::vector<std::unique_ptr<DraftLink>> links_;  // by worker, to the one that drafts for it; none if nobody does

  std::mutex weights_mutex_;                // of calls that change the weights, or need them to stay; taken before mutex_
  std::optional<uint64_t> weights_digest_;  // once somebody has asked; changes with both mutexes held
  mutable std::mutex mutex_;
  std::condition_variable result_arrived_, at_rest_changed_;
  // Guarded by mutex_.
  Placement placement_;
  HomeTable homes_;
  SequenceQueue outbox_;
  std::unordered_map<uint64_t, Unfinished> unfinished_;  // by group id
  int64_t outstanding_ = 0;                              // samples not yet taken by wait()
  uint64_t next_group_ = 1, next_age_ = 0;
  std::vector<WorkerStats> stats_;           // by worker
  std::vector<WorkerStats> counted_before_;  // by worker: what its lost processes had counted
  std::vector<bool> losing_;                 // by worker: its process is lost, and not all of its samples are queued again
  std::vector<WorkerFacts> facts_;           // by worker
  std::vector<CostModel> costs_;             // of passes, by drafter; none where the policy needs none
  Ledger ledger_;                            // empty unless workers are processes or checkpoints are kept
  std::shared_ptr<const HistoryIndex> shared_history_;  // what processes draft from
  std::vector<LinkAccount> accounts_;  // by worker: the links between processes; none if nobody drafts for others
  std::optional<NetAccount> net_;      // none: pages between processes go by file
  Status ledger_status_;               // what was wrong with a thread's report
  int64_t worker_restarts_ = 0, requeued_samples_ = 0;
  Suspects suspects_;
  std::string last_loss_;        // why the last process was given up; "": none was
  double quantize_seconds_ = 0;  // the last making of "self"
  CaptureFacts captures_;
  uint64_t weight_version_ = 0, next_weight_version_ = 0;
  bool updating_ = false;      // between begin_weights and commit_weights: the workers are at rest and get no work
  uint32_t asleep_ = 0;        // OTR_MEMORY_…: the workers are at rest and get no work
  bool weights_lost_ = false;  // in a sleep, and not all committed since
  int32_t standstills_ = 0;
  std::vector<Lending> lending_;    // by worker
  std::vector<int32_t> rungs_;      // of the replicas that a sample may have, the best first
  RaceMode race_ = RaceMode::kOff;  // set by create()
  DraftRoles roles_;                // whether the first num_draft_workers draft for the others
  std::string plan_text_;           // why; "": there was no choice
  bool paused_ = false;
  bool stop_ = false;
};

}  // namespace otr
