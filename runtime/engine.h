// Engine: requests in, samples out. One thread inside it ticks; every tick is step().
//
// Thread safety: the public functions may be called from any thread. They meet the engine thread at `mutex_`: new work goes into
// the inbox, finished sequences come out of the outbox; everything else belongs to the engine thread.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "graph/row_batch_builder.h"
#include "memory/draft_paths.h"
#include "runtime/draft_penalties.h"
#include "runtime/history_store.h"
#include "runtime/request.h"
#include "runtime/speculator.h"
#include "runtime/trace.h"
#include "runtime/device.h"
#include "sched/batcher.h"

namespace otr {

struct EngineOptions {
  DeviceOptions device;
  std::string policy = "auto";
  std::vector<std::string> drafters;  // "NAME=model:PATH"
  std::vector<CustomDrafter> custom_drafters;
  std::string profile;                // a file of measured costs; empty: none
  std::vector<CostModel> costs;       // by drafter of the policy, instead of measured ones: for proofs
  int64_t preempt_at_tick = -1;  // a sequence is preempted before this tick, need or not: for proofs that it changes nothing
  HistoryContent history = HistoryContent::kNone;  // a policy that names it makes it kLogprobs
  std::string trace_path;             // "": no trace
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
  double kernel_seconds = 0;      // inside the target's launches
  double draft_seconds = 0;       // inside the drafters
  double decide_seconds = 0;      // inside the policy
  double quantize_seconds = 0;    // the last making of "self"
  int32_t trace_error = 0;        // errno of the write that ended the trace
  SpecCounts spec;
};

class Engine final : private BatchHost {
 public:
  static Result<std::unique_ptr<Engine>> create(const EngineOptions& options);
  ~Engine() override;

  Result<uint64_t> submit(const otr_group_request& request);
  Result<uint64_t> score(const otr_score_request& request);
  Status cancel(uint64_t group_id);
  // Between pause() and resume() no tick begins. pause() returns when the running one has ended; kInvalidHandle when the engine is shut
  // down meanwhile.
  Status pause();
  void resume();
  // New weights for the target, in place, between steps: see the ABI. Errors: kBusy while samples are unfinished; kInvalidArgument where
  // no update has begun, or one already has, and as ModelWeights::put.
  Status begin_weights(uint64_t version);
  Status put_weight(const HostTensor& tensor);
  Status commit_weights();
  // kTimeout, kIdle, or kInvalidHandle when the engine is shut down meanwhile. timeout_ms < 0: no limit.
  Result<std::unique_ptr<Sequence>> wait(int64_t timeout_ms);
  std::string stats_json() const;
  HistoryStore* history() { return history_.get(); }  // null: none is kept
  // Ends the engine thread and wakes every waiter. Called by the destructor; may be called before.
  void shutdown();

 private:
  Engine(const EngineOptions& options, std::unique_ptr<Device> device, int32_t max_draft_rows);

  Status check_updating(bool expected) const;
  Result<uint64_t> enqueue(std::vector<std::unique_ptr<Sequence>> sequences);
  void reserve_outbox(size_t outstanding);
  void loop();

  // ---- A tick, on the engine thread ----
  // Where a run of the tick has its rows, its logits and its draws.
  struct Place {
    int32_t row, logit, draw;
    int32_t first_path;  // of the forest's second path, in paths_
  };
  // What a tick began with, for the trace; parts in seconds from its beginning.
  struct TickMarks {
    Stopwatch clock;
    double draft_at = 0, verify_at = 0;
    int64_t generated_tokens = 0, prefill_tokens = 0, verify_steps = 0, draft_tokens = 0, accepted_tokens = 0;
  };
  bool step();
  void draft(const std::vector<RowRun>& runs);
  void assemble(const std::vector<RowRun>& runs);
  void draw(const std::vector<RowRun>& runs);
  void commit(const std::vector<RowRun>& runs);

  int32_t draft_depth(const Sequence& s, const RowRun& run, int32_t most) const;
  void fork(size_t run, const Sequence& s, int32_t begin);
  void add_paths(size_t run, const Sequence& s, int32_t begin);
  void draw_draft(const Sequence& s, const Forest& forest, const RowRun& run, int32_t first_logit);
  void commit_decode(Sequence* s, const Forest& forest, const Place& at);
  // Whether a sequence ends with the token just committed, and how.
  struct Ending {
    bool ended = false;
    otr_finish_reason reason = OTR_FINISH_STOP;
    const char* error = "";
  };
  static const Ending kFaulted;
  Ending commit_token(Sequence* s, const SampleResult& drawn, int32_t* num_new);
  void commit_score(Sequence* s, const RowRun& run, const Place& at);
  void record_score(Sequence* s, const SampleResult& scored);
  bool rows_faulted(int32_t first_row, int32_t num_rows) const;
  ModelRunner& target() { return device_->target(); }
  const ModelRunner& target() const { return device_->target(); }
  bool scores_row_by_row(const Sequence& s) const { return s.group->is_score && s.group->sampling.penalised(); }

  void start(std::unique_ptr<Sequence>* s);
  void finish(Sequence* s, otr_finish_reason reason, std::string error = {});
  void trace_tick(size_t batch, double draft, double verify, double tick);
  void trace_finished();
  void publish_finished();
  void drain_inbox();
  void finish_unstarted(std::unique_ptr<Sequence> s, const std::string& error);
  void abort_group(uint64_t group_id);
  void fail_all(const std::string& why);
  Status check_pages() const;

  // ---- BatchHost ----
  SequenceView view(int32_t slot) const override;
  int32_t pages_available() const override { return target().page_pool().num_free() + target().page_pool().num_evictable(); }
  int32_t pages_held(int32_t slot) const override { return live(slot).pages.num_pages(); }
  int32_t pages_private(int32_t slot) const override { return live(slot).pages.num_private(target().page_pool()); }
  int32_t pages_to_write(int32_t slot, int32_t begin, int32_t end) const override {
    return live(slot).pages.pages_to_write(target().page_pool(), begin, end);
  }
  void attach_prefix(int32_t slot) override;
  void drop_pages(int32_t slot, bool counted) override;
  void take_pages(int32_t slot, int32_t begin, int32_t end) override;

  Sequence& live(int32_t slot) const { return *live_[static_cast<size_t>(slot)]; }

  const EngineOptions options_;
  std::unique_ptr<Device> device_;
  const RequestLimits limits_;
  const std::string unavailable_paths_;  // JSON: path -> why it cannot run here

  // Engine thread only.
  Batcher batcher_;
  RowBatchBuilder rows_;
  PageWork page_work_, fork_work_;
  std::vector<std::unique_ptr<Sequence>> live_;  // by slot; null where free
  std::unique_ptr<HistoryStore> history_;        // may be null; shared with callers
  std::unique_ptr<Speculator> speculator_;       // set by create()
  const int32_t max_draft_rows_;                 // of a tick
  std::vector<int32_t> free_slots_;
  std::vector<std::unique_ptr<Sequence>> arrived_;  // taken from the inbox; from next_arrival_ on not started
  size_t next_arrival_ = 0;
  std::vector<std::unique_ptr<Sequence>> unblocked_;  // of a prompt just run; null once started
  int64_t num_blocked_ = 0;
  std::vector<Place> places_;             // by run
  DraftPaths paths_;
  std::vector<int32_t> draft_tokens_;     // of one path
  std::vector<SampleDraw> draws_;
  DraftPenalties penalties_;
  std::vector<SampleResult> results_;
  std::vector<int32_t> drawn_, accepted_;  // of one forest: the target's tokens; the nodes that were kept
  std::vector<std::unique_ptr<Sequence>> finished_;  // of this tick
  EngineStats tick_stats_;
  TickMarks marks_;
  std::unique_ptr<Trace> trace_;  // may be null

  std::mutex weights_mutex_;  // of calls that change the weights; taken before mutex_
  mutable std::mutex mutex_;
  std::condition_variable work_arrived_, result_arrived_, at_rest_changed_;
  // Guarded by mutex_.
  std::vector<std::unique_ptr<Sequence>> inbox_;
  std::vector<uint64_t> cancels_;
  std::vector<std::unique_ptr<Sequence>> outbox_;  // from taken_ on; room for all that are outstanding
  size_t taken_ = 0;
  std::unordered_map<uint64_t, int64_t> unfinished_;  // group id -> samples not yet finished
  int64_t outstanding_ = 0;                           // samples not yet taken by wait()
  uint64_t next_group_ = 1, next_age_ = 0;
  EngineStats stats_;
  uint64_t weight_version_ = 0, next_weight_version_ = 0;
  bool updating_ = false;  // between begin_weights and commit_weights: the engine thread is at rest and gets no work
  bool at_rest_ = false;   // the engine thread waits for work, or for resume()
  bool paused_ = false;
  bool stop_ = false;

  std::thread thread_;
};

}  // namespace otr
