// Engine: requests in, samples out. One thread inside it ticks; every tick is step().
//
// Thread safety: the public functions may be called from any thread. They meet the engine thread at `mutex_`: new work goes into
// the inbox, finished sequences come out of the outbox; everything else belongs to the engine thread.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "graph/row_batch_builder.h"
#include "runtime/request.h"
#include "runtime/worker.h"
#include "sched/batcher.h"
#include "spec/policy.h"

namespace otr {

struct EngineOptions {
  WorkerOptions worker;
  std::string policy = "off";
  int32_t max_batch = 256;
  int32_t prefill_chunk = 512;
};

struct EngineStats {
  int64_t ticks = 0;
  int64_t generated_tokens = 0;
  int64_t prefill_tokens = 0;     // rows that were not the newest token of their sequence
  int64_t scored_tokens = 0;
  int64_t finished_samples = 0;
  int64_t preemptions = 0;
  int64_t prefix_hit_tokens = 0;
  int32_t kv_pages_in_use = 0;    // held by live sequences
  int32_t kv_pages_peak = 0;
  int32_t batch_peak = 0;
  double busy_seconds = 0;        // inside step()
  double kernel_seconds = 0;      // inside launches
};

class Engine final : private BatchHost {
 public:
  static Result<std::unique_ptr<Engine>> create(const EngineOptions& options);
  ~Engine() override;

  Result<uint64_t> submit(const otr_group_request& request);
  Result<uint64_t> score(const otr_score_request& request);
  Status cancel(uint64_t group_id);
  // kTimeout, kIdle, or kInvalidHandle when the engine is shut down meanwhile. timeout_ms < 0: no limit.
  Result<std::unique_ptr<Sequence>> wait(int64_t timeout_ms);
  std::string stats_json() const;
  // Ends the engine thread and wakes every waiter. Called by the destructor; may be called before.
  void shutdown();

 private:
  Engine(const EngineOptions& options, std::unique_ptr<Worker> worker);

  Result<uint64_t> enqueue(std::vector<std::unique_ptr<Sequence>> sequences);
  void loop();

  // ---- A tick, on the engine thread ----
  bool step();
  void assemble(const std::vector<RowRun>& runs);
  void draw(const std::vector<RowRun>& runs);
  void commit(const std::vector<RowRun>& runs);

  void commit_sequence(Sequence* s, const SampleResult& drawn);
  void commit_score(Sequence* s, const RowRun& run, int32_t first_logit);
  void release_blocked(Sequence* leader);
  void record_score(Sequence* s, const SampleResult& scored);
  bool rows_faulted(int32_t first_row, int32_t num_rows) const;
  bool scores_row_by_row(const Sequence& s) const { return s.group->is_score && s.group->sampling.penalised(); }

  void start(std::unique_ptr<Sequence> s);
  void finish(Sequence* s, otr_finish_reason reason, std::string error = {});
  void publish_finished();
  void drain_inbox();
  void abort_group(uint64_t group_id);
  void fail_all(const std::string& why);
  Status check_pages() const;

  // ---- BatchHost ----
  SequenceView view(int32_t slot) const override;
  int32_t pages_available() const override { return worker_->page_pool().num_free() + worker_->page_pool().num_evictable(); }
  int32_t pages_held(int32_t slot) const override { return live(slot).pages.num_pages(); }
  int32_t pages_private(int32_t slot) const override { return live(slot).pages.num_private(worker_->page_pool()); }
  int32_t pages_to_write(int32_t slot, int32_t begin, int32_t end) const override {
    return live(slot).pages.pages_to_write(worker_->page_pool(), begin, end);
  }
  void attach_prefix(int32_t slot) override;
  void drop_pages(int32_t slot, bool counted) override;
  void take_pages(int32_t slot, int32_t begin, int32_t end) override;

  Sequence& live(int32_t slot) const { return *live_[static_cast<size_t>(slot)]; }

  const EngineOptions options_;
  std::unique_ptr<Worker> worker_;
  const RequestLimits limits_;
  const std::string unavailable_paths_;  // JSON: path -> why it cannot run here

  // Engine thread only.
  Batcher batcher_;
  RowBatchBuilder rows_;
  PageWork page_work_;
  std::vector<std::unique_ptr<Sequence>> live_;  // by slot; null where free
  std::vector<int32_t> free_slots_;
  int64_t num_blocked_ = 0;
  std::vector<int32_t> first_logits_;  // per run of the tick: its first row in the logits buffer
  std::vector<SampleDraw> draws_;
  std::vector<SampleResult> results_;
  std::vector<std::unique_ptr<Sequence>> finished_;  // of this tick
  EngineStats tick_stats_;

  mutable std::mutex mutex_;
  std::condition_variable work_arrived_, result_arrived_;
  // Guarded by mutex_.
  std::vector<std::unique_ptr<Sequence>> inbox_;
  std::vector<uint64_t> cancels_;
  std::deque<std::unique_ptr<Sequence>> outbox_;
  std::unordered_map<uint64_t, int64_t> unfinished_;  // group id -> samples not yet finished
  int64_t outstanding_ = 0;                           // samples not yet taken by wait()
  uint64_t next_group_ = 1, next_age_ = 0;
  EngineStats stats_;
  bool stop_ = false;

  std::thread thread_;
};

}  // namespace otr
