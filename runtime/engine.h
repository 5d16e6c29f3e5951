// Engine: requests in, samples out. It owns the workers that run them, and sched's placement says who runs what.
//
// Thread safety: the public functions may be called from any thread. They and the workers' reports meet at `mutex_`, which is
// taken before any worker's mailbox.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "runtime/history_store.h"
#include "runtime/worker.h"

namespace otr {

struct EngineOptions {
  DeviceOptions device;  // threads and pages: of all workers together
  std::vector<int32_t> gpus;  // workers go round them, at least one each; empty: the CPU
  int32_t num_workers = 1;
  std::string policy = "auto";
  std::vector<std::string> drafters;  // "NAME=model:PATH"
  std::vector<CustomDrafter> custom_drafters;
  std::string profile;           // a file of measured costs; empty: none
  std::vector<CostModel> costs;  // by drafter of the policy, instead of measured ones: for proofs
  WorkerProofs proofs;
  HistoryContent history = HistoryContent::kNone;  // a policy that names it makes it kLogprobs
  std::string trace_path;                          // "": no trace
  int32_t max_batch = 256;                         // of all workers together
  int32_t prefill_chunk = 512;
};

class Engine final : private WorkerHost {
 public:
  static Result<std::unique_ptr<Engine>> create(const EngineOptions& options);
  ~Engine() override;

  Result<uint64_t> submit(const otr_group_request& request);
  Result<uint64_t> score(const otr_score_request& request);
  Status cancel(uint64_t group_id);
  // Between pause() and resume() no tick begins. pause() returns when the running ones have ended; kInvalidHandle when the
  // engine is shut down meanwhile.
  Status pause();
  void resume();
  // New weights for the target, in place, between steps: see the ABI. Errors: kBusy while samples are unfinished;
  // kInvalidArgument where no update has begun, or one already has, and as ModelWeights::put.
  Status begin_weights(uint64_t version);
  Status put_weight(const HostTensor& tensor);
  Status commit_weights();
  // kTimeout, kIdle, or kInvalidHandle when the engine is shut down meanwhile. timeout_ms < 0: no limit.
  Result<std::unique_ptr<Sequence>> wait(int64_t timeout_ms);
  std::string stats_json() const;
  HistoryStore* history() { return history_.get(); }  // null: none is kept
  // Ends the workers' threads and wakes every waiter. Called by the destructor; may be called before.
  void shutdown();

 private:
  // What is left of a group.
  struct Unfinished {
    int64_t samples = 0;
    std::shared_ptr<Group> group;
  };

  explicit Engine(const EngineOptions& options);
  Status add_workers(WorkerOptions w);
  // The first worker on the GPU of this one, or on the CPU: the one that loads what all there share.
  int32_t first_beside(int32_t worker) const;
  Status check_updating(bool expected) const;
  std::string gpu_json() const;
  Result<uint64_t> enqueue(std::vector<std::unique_ptr<Sequence>> sequences);
  bool at_rest() const;

  // ---- WorkerHost ----
  void report(int32_t worker, const WorkerStats& stats, const WorkerLoad& load, WorkerReport* report) override;
  void rested() override;

  void publish(std::unique_ptr<Sequence> s);
  Worker& worker(int32_t index) { return *workers_[static_cast<size_t>(index)]; }
  const Worker& first_worker() const { return *workers_.front(); }

  const EngineOptions options_;
  const std::string unavailable_paths_;           // JSON: path -> why it cannot run here
  RequestLimits limits_;                          // from here on set by create()
  std::unique_ptr<HistoryStore> history_;         // may be null; shared by workers and callers
  std::unique_ptr<Trace> trace_;                  // may be null; shared by workers
  std::vector<std::unique_ptr<Worker>> workers_;  // those of one GPU, or of the CPU, on the first one's weights

  std::mutex weights_mutex_;  // of calls that change the weights; taken before mutex_
  mutable std::mutex mutex_;
  std::condition_variable result_arrived_, at_rest_changed_;
  // Guarded by mutex_.
  Placement placement_;
  SequenceQueue outbox_;
  std::unordered_map<uint64_t, Unfinished> unfinished_;  // by group id
  int64_t outstanding_ = 0;                              // samples not yet taken by wait()
  uint64_t next_group_ = 1, next_age_ = 0;
  std::vector<WorkerStats> stats_;  // by worker
  double quantize_seconds_ = 0;     // the last making of "self"
  uint64_t weight_version_ = 0, next_weight_version_ = 0;
  bool updating_ = false;  // between begin_weights and commit_weights: the workers are at rest and get no work
  bool paused_ = false;
  bool stop_ = false;
};

}  // namespace otr
