// Engine: requests in, samples out. It owns the workers that run them, and sched's placement says who runs what.
//
// Workers are threads, or processes: then the engine has one worker of its own that never runs, whose weights, in shared
// memory, the processes read, and a ledger, from which the samples of a process that is lost are queued again.
//
// Thread safety: the public functions may be called from any thread. They and the workers' reports meet at `mutex_`, which is
// taken before any worker's port.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "runtime/checkpoint_file.h"
#include "runtime/engine_state.h"
#include "runtime/kv_export.h"

namespace otr {

class Engine final : private EngineState, private WorkerHost, private ProcessHost {
 public:
  static Result<std::unique_ptr<Engine>> create(const EngineOptions& options);
  ~Engine() override;

  Result<uint64_t> submit(const otr_group_request& request);
  Result<uint64_t> score(const otr_score_request& request);
  Result<uint64_t> append(const Sequence& ended, const otr_append_request& request);
  Status cancel(uint64_t group_id);
  // Between pause() and resume() no tick begins. pause() returns when the running ones have ended; kInvalidHandle when the
  // engine is shut down meanwhile.
  Status pause();
  void resume();
  // New weights for the target, in place: see the ABI. Errors: kBusy while samples are unfinished and run; kInvalidArgument
  // where no update has begun, and as ModelWeights::put.
  Status begin_weights(uint64_t version);
  Status put_weight(const HostTensor& tensor);
  Status expect_all_weights(), commit_weights();
  // OTR_MEMORY_…, any of them: memory goes back to the system or the GPUs, and comes again: see the ABI. Errors: kBusy, of
  // sleep(); kUnsupported with worker processes; kOutOfMemory, of wake(), after which what was asked is asleep as before.
  Status sleep(uint32_t what);
  Status wake(uint32_t what);
  // The cached pages of the longest beginning of `tokens` that a worker has, as runtime/kv_export.h lays them out; returns the
  // tokens that they cover, and what `bytes` needs to hold in *size. kInvalidArgument: it is smaller; kBusy: as the ABI says.
  Result<size_t> export_kv(std::span<const int32_t> tokens, std::span<std::byte> bytes, size_t* size);
  // Into every worker's prefix cache. Returns the tokens that all of them have then. Errors: as open_kv.
  Result<size_t> import_kv(std::span<const std::byte> bytes);
  // What is unfinished, or finished and not taken, with `user` bytes of the caller's, to a file; and into an engine that has
  // nothing. Errors: kInvalidArgument: it keeps none; kIoError; kBusy; as CheckpointFile.
  Status save_checkpoint(const std::string& path, std::span<const std::byte> user);
  Status load_checkpoint(const std::string& path);
  // kTimeout, kIdle, or kInvalidHandle when the engine is shut down meanwhile. timeout_ms < 0: no limit.
  Result<std::unique_ptr<Sequence>> wait(int64_t timeout_ms);
  std::string stats_json() const;
  const RequestLimits& limits() const { return limits_; }
  std::string plan_text() const;                         // why workers draft for others, or do not; "": there was no choice
  PaceStats pace_stats() const;                          // of all workers
  PaceClock* pace_clock() { return pace_clock_.get(); }  // null: it is not paced
  HistoryStore* history() { return history_.get(); }     // null: none is kept
  // Ends the workers' threads and wakes every waiter. Called by the destructor; may be called before.
  void shutdown();

 private:
  class Standstill;
  // A group from a checkpoint.
  struct Restored {
    std::vector<std::unique_ptr<Sequence>> sequences;
    std::vector<bool> finished;
    int32_t to = 0, placed = 0;
  };
  explicit Engine(const EngineOptions& options);
  Status add_workers(WorkerOptions w);
  Status add_processes(const WorkerOptions& w);
  WorkerSetup process_setup(const WorkerOptions& w);
  Status begin_processes();
  void make_net();
  Status name_decoupled(std::span<const DrafterModel> models, Policy* policy, WorkerOptions* w);
  void add_links();
  void link_worker(WorkerOptions* w) const;
  void connect_links();
  void plan_step();
  void plan_roles();
  void assign_roles();
  std::string plan_json() const;
  const char* isa() const;  // that samples are computed on
  void plan_races();
  void start_races();
  bool start_race(int32_t to, int32_t rung);
  void note_lent(const Lend& lent);
  int32_t server_of(int32_t worker) const;
  void share_history();
  Status check_updating() const, check_not_updating() const, check_awake(uint32_t needed) const;
  Status wait_until_done(std::unique_lock<std::mutex>*lock), stop_workers(std::unique_lock<std::mutex>*lock);
  Status give_memory(uint32_t what), take_memory(uint32_t what);
  bool on_gpu_processes() const { return options_.worker_processes && !options_.gpus.empty(); }
  // The first worker on the GPU of this one, or on the CPU: the one that loads what all there share.
  int32_t first_beside(int32_t worker) const;
  std::string gpu_json() const, model_json() const;
  CaptureFacts count_captures() const;  // REQUIRES: the workers are at rest, or have not begun
  Result<uint64_t> enqueue(std::vector<std::unique_ptr<Sequence>> sequences);
  bool at_rest() const;
  void resume_workers();
  Result<uint64_t> weights_digest();
  Result<KvIdentity> kv_identity();
  Status check_pages_readable() const;  // from this process, on the host
  Result<CheckpointIdentity> checkpoint_identity();
  void record(int32_t worker, const WorkerReport& report) noexcept;
  void note(int32_t worker, const WorkerReport& report);
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
  void process_rested() override;
  Status process_links(int32_t worker, WireView payload) override;
  Status process_trace(int32_t worker, WireView payload) override;
  Status process_net(int32_t worker, WireView payload) override;
  void process_tries(int32_t worker, const SampleName& name) override;
  bool process_is_trying(int32_t worker) override;
  void process_lost(int32_t worker, const Status& why, bool broke, bool comes_back) override;

  // ---- With mutex_ held ----
  void follow_up(int32_t worker, const WorkerLoad& load, WorkerReport* report);
  Status take_end(int32_t worker, const SampleEnd& end, WorkerReport* to);
  Status take_given(int32_t worker, const SampleGiven& given, OwnedFd* file, WorkerReport* to);
  Status take_replicas(int32_t worker, ProcessReport* from, WorkerReport* to);
  Status take_replica(int32_t worker, const Lend& lent, const SampleName& name, WorkerReport* to);
  void pass_leaps(int32_t worker);
  void lose_replicas(int32_t worker);
  void restore_all(int32_t worker, SequenceQueue* to) const;
  void requeue_unfinished(), requeue_at_threads(), requeue_at_processes();
  void relink(int32_t worker, bool comes_back);
  void queue_again(int32_t worker);
  void conclude(int32_t worker, std::unique_ptr<Sequence> s, otr_finish_reason reason, const char* error = "");
  void send(std::unique_ptr<Sequence> s), send_suspects(), try_suspects();
  void fail(std::unique_ptr<Sequence> s, const std::string& why);
  void note_end(int32_t worker, Sequence* s);
  void publish(std::unique_ptr<Sequence> s);

  Worker& worker(int32_t index) { return *workers_[static_cast<size_t>(index)]; }
  WorkerPort& port(int32_t index) { return *ports_[static_cast<size_t>(index)]; }
  const Worker& first_worker() const { return *workers_.front(); }
};

}  // namespace otr
