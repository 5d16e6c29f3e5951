// Engine: requests in, samples out. It owns the workers that run them, and sched's placement says who runs what.
//
// Workers are threads, or processes: then the engine has one worker of its own that never runs, whose weights, in shared memory, the
// processes read, and a ledger, from which the samples of a process that is lost are queued again.
//
// Thread safety: the public functions may be called from any thread. They and the workers' reports meet at `mutex_`, which is
// taken before any worker's port.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "runtime/checkpoint_file.h"
#include "runtime/engine_options.h"
#include "runtime/history_store.h"
#include "runtime/kv_export.h"
#include "runtime/ledger.h"
#include "runtime/link_wire.h"
#include "runtime/process_worker.h"
#include "runtime/worker.h"

namespace otr {

class Engine final : private WorkerHost, private ProcessHost {
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
  // OTR_MEMORY_…, any of them: memory goes back to the system or the GPUs, and comes again: see the ABI. Errors: kBusy, of sleep();
  // kUnsupported with worker processes; kOutOfMemory, of wake(), after which what was asked is asleep as before.
  Status sleep(uint32_t what);
  Status wake(uint32_t what);
  // The cached pages of the longest beginning of `tokens` that a worker has, as runtime/kv_export.h lays them out; returns the tokens that
  // they cover, and what `bytes` needs to hold in *size. kInvalidArgument: it is smaller; kBusy and as the ABI says.
  Result<size_t> export_kv(std::span<const int32_t> tokens, std::span<std::byte> bytes, size_t* size);
  // Into every worker's prefix cache. Returns the tokens that all of them have then. Errors: as open_kv.
  Result<size_t> import_kv(std::span<const std::byte> bytes);
  // What is unfinished, or finished and not taken, with `user` bytes of the caller's, to a file; and into an engine that has nothing.
  // Errors: kInvalidArgument: it keeps none; kIoError; kBusy; as CheckpointFile.
  Status save_checkpoint(const std::string& path, std::span<const std::byte> user);
  Status load_checkpoint(const std::string& path);
  // kTimeout, kIdle, or kInvalidHandle when the engine is shut down meanwhile. timeout_ms < 0: no limit.
  Result<std::unique_ptr<Sequence>> wait(int64_t timeout_ms);
  std::string stats_json() const;
  const RequestLimits& limits() const { return limits_; }
  std::string plan_text() const;  // why workers draft for others, or do not; "": there was no choice
  PaceStats pace_stats() const;   // of all workers
  PaceClock* pace_clock() { return pace_clock_.get(); }  // null: it is not paced
  HistoryStore* history() { return history_.get(); }  // null: none is kept
  // Ends the workers' threads and wakes every waiter. Called by the destructor; may be called before.
  void shutdown();

 private:
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
  class Standstill;
  // A group from a checkpoint.
  struct Restored {
    std::vector<std::unique_ptr<Sequence>> sequences;
    std::vector<bool> finished;
    int32_t to = 0, placed = 0;
  };
  struct CaptureFacts {  // of all workers' captured programs
    int32_t captures = 0;
    int64_t target_bytes = 0, draft_bytes = 0;
    double seconds = 0;
  };

  explicit Engine(const EngineOptions& options);
  Status add_workers(WorkerOptions w);
  Status add_processes(const WorkerOptions& w);
  Status name_decoupled(std::span<const DrafterModel> models, Policy* policy, WorkerOptions* w);
  void add_links();
  void link_worker(WorkerOptions* w) const;
  void connect_links();
  void plan_step();
  void plan_roles();
  void assign_roles();
  std::string plan_json() const;
  void plan_races();
  void start_races();
  bool start_race(int32_t to, int32_t rung);
  void note_lent(const Lend& lent);
  int32_t server_of(int32_t worker) const;
  void share_history();
  Status check_updating(bool expected) const;
  Status check_not_updating() const;
  Status check_awake(uint32_t needed) const;
  Status wait_until_done(std::unique_lock<std::mutex>* lock);
  Status stop_workers(std::unique_lock<std::mutex>* lock);
  Status give_memory(uint32_t what), take_memory(uint32_t what);
  // The first worker on the GPU of this one, or on the CPU: the one that loads what all there share.
  int32_t first_beside(int32_t worker) const;
  std::string gpu_json() const;
  CaptureFacts count_captures() const;  // REQUIRES: the workers are at rest, or have not begun
  Result<uint64_t> enqueue(std::vector<std::unique_ptr<Sequence>> sequences);
  bool at_rest() const;
  void resume_workers();
  Result<uint64_t> weights_digest();
  Result<KvIdentity> kv_identity();
  Status check_pages_readable() const;  // from this process, on the host
  Result<CheckpointIdentity> checkpoint_identity();
  void record(int32_t worker, const WorkerReport& report);
  Restored open_restored(std::vector<CheckpointFile::Sample> samples);
  void close_restored(const Restored& r);
  void resubmit(Restored r);
  static Result<size_t> import_pages(std::span<const int32_t> tokens, const Element* transfer, ModelRunner* target);

  // ---- WorkerHost ----
  void report(int32_t worker, const WorkerStats& stats, const WorkerLoad& load, WorkerReport* report) override;
  void rested() override;

  // ---- ProcessHost ----
  void process_ready(int32_t worker, const ReadyMessage& ready) override;
  Status process_report(int32_t worker, ProcessReport* report) override;
  void process_rested() override { rested(); }
  Status process_links(int32_t worker, WireView payload) override;
  Status process_trace(int32_t worker, WireView payload) override;
  void process_lost(int32_t worker, const Status& why, bool comes_back) override;

  // ---- With mutex_ held ----
  void follow_up(int32_t worker, const WorkerLoad& load, WorkerReport* report);
  Status take_end(int32_t worker, const SampleEnd& end, WorkerReport* to);
  Status take_given(int32_t worker, const SampleGiven& given, OwnedFd* file, WorkerReport* to);
  Status take_replicas(int32_t worker, ProcessReport* from, WorkerReport* to);
  Status take_replica(int32_t worker, const Lend& lent, const SampleName& name, WorkerReport* to);
  void pass_leaps(int32_t worker);
  void lose_replicas(int32_t worker);
  void relink(int32_t worker, bool comes_back);
  void queue_again(int32_t worker, const Status& why);
  void send(std::unique_ptr<Sequence> s, const Status& why);
  void publish(std::unique_ptr<Sequence> s);

  Worker& worker(int32_t index) { return *workers_[static_cast<size_t>(index)]; }
  WorkerPort& port(int32_t index) { return *ports_[static_cast<size_t>(index)]; }
  const Worker& first_worker() const { return *workers_.front(); }

  const EngineOptions options_;
  const std::string unavailable_paths_;           // JSON: path -> why it cannot run here
  std::string draft_model_;                       // the drafter that draft workers run; "": there are none
  RequestLimits limits_;                          // from here on set by create()
  std::unique_ptr<PaceClock> pace_clock_;         // may be null
  std::unique_ptr<HistoryStore> history_;         // may be null; shared by workers and callers
  std::unique_ptr<Trace> trace_;                  // may be null; shared by workers
  // Those of one GPU, or of the CPU, on the first one's weights there; one, at rest, where they are processes.
  std::vector<std::unique_ptr<Worker>> workers_;
  std::vector<std::unique_ptr<ProcessWorker>> processes_;
  bool drafts_history_ = false;  // processes do; set by create()
  std::vector<WorkerPort*> ports_;                // to the threads or the processes
  std::vector<std::unique_ptr<DraftLink>> links_;  // by worker, to the one that drafts for it; none if nobody does

  std::mutex weights_mutex_;  // of calls that change the weights, or need them to stay; taken before mutex_
  std::optional<uint64_t> weights_digest_;  // once somebody has asked; guarded by weights_mutex_
  mutable std::mutex mutex_;
  std::condition_variable result_arrived_, at_rest_changed_;
  // Guarded by mutex_.
  Placement placement_;
  SequenceQueue outbox_;
  std::unordered_map<uint64_t, Unfinished> unfinished_;  // by group id
  int64_t outstanding_ = 0;                              // samples not yet taken by wait()
  uint64_t next_group_ = 1, next_age_ = 0;
  std::vector<WorkerStats> stats_;  // by worker
  std::vector<WorkerStats> counted_before_;  // by worker: what its lost processes had counted
  std::vector<bool> losing_;                 // by worker: its process is lost, and not all of its samples are queued again
  std::vector<WorkerFacts> facts_;           // by worker
  Ledger ledger_;                            // empty unless workers are processes or checkpoints are kept
  std::shared_ptr<const HistoryIndex> shared_history_;  // what processes draft from
  std::vector<LinkAccount> accounts_;        // by worker: the links between processes; none if nobody drafts for others
  Status ledger_status_;                     // what was wrong with a thread's report
  int64_t worker_restarts_ = 0, requeued_samples_ = 0;
  std::string last_loss_;  // why the last process was given up; "": none was
  double quantize_seconds_ = 0;     // the last making of "self"
  CaptureFacts captures_;
  uint64_t weight_version_ = 0, next_weight_version_ = 0;
  bool updating_ = false;  // between begin_weights and commit_weights: the workers are at rest and get no work
  uint32_t asleep_ = 0;        // OTR_MEMORY_…: the workers are at rest and get no work
  bool weights_lost_ = false;  // in a sleep, and not all committed since
  int32_t standstills_ = 0;
  std::vector<Lending> lending_;    // by worker
  std::vector<int32_t> rungs_;      // of the replicas that a sample may have, the best first
  RaceMode race_ = RaceMode::kOff;  // set by create()
  DraftRoles roles_;  // whether the first num_draft_workers draft for the others
  std::string plan_text_;   // why; "": there was no choice
  bool paused_ = false;
  bool stop_ = false;
};

}  // namespace otr
