// Worker: one thread that ticks, with its device: it runs the sequences it is given and says what became of them.
//
// It is told what to do through its mailbox: start these sequences, look for cancelled groups, give some to another worker,
// rest. After every tick it reports to its host: what has finished, what it gives away, how loaded it is. Every tick is step().
//
// Thread safety: mailbox() may be used from any thread; target() while the worker is at rest; everything else belongs to its
// thread.
#pragma once

#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "graph/row_batch_builder.h"
#include "memory/draft_paths.h"
#include "runtime/draft_penalties.h"
#include "runtime/growing_wait.h"
#include "runtime/kv_rebuild.h"
#include "runtime/tick_parts.h"
#include "runtime/trace.h"
#include "runtime/worker_mailbox.h"
#include "runtime/worker_options.h"
#include "runtime/worker_report.h"
#include "sched/batcher.h"

namespace otr {

class Worker final : private BatchHost {
 public:
  // `device`: its target has the bucket of the options. Errors: as Speculator::create.
  static Result<std::unique_ptr<Worker>> create(const WorkerOptions& options, std::unique_ptr<Device> device);
  // What its drafters' models will need beside the target of its device, one by which it drafts for others included. Errors: as
  // open_model.
  static Result<RoomBeside> room_beside(const WorkerOptions& options, bool drafts_for_others);
  ~Worker() override;

  void begin() {
    thread_ = std::thread([this] { loop(); });
  }
  WorkerMailbox& mailbox() { return mailbox_; }
  // Returns when the thread has ended. After mailbox().stop().
  void join();

  const Device& device() const { return *device_; }
  ModelRunner& target() { return device_->target(); }
  const ModelRunner& target() const { return device_->target(); }
  const Speculator& speculator() const { return *speculator_; }
  const DraftServer* server() const { return server_.get(); }  // null: it drafts for nobody
  WorkerLoad load() const;
  int64_t weight_bytes_written() const;  // by all its models. Any thread
  // Pages, buffers and captured programs of all its models give their memory back, or get it again; an error of the latter
  // leaves them asleep. REQUIRES: it is at rest, and has no sequence.
  Status sleep_pages(), wake_pages();
  // All sequences, running or not, go to `to`, with their tokens and nothing that was computed of them. REQUIRES: it is at
  // rest.
  void withdraw(SequenceQueue* to);
  // Visits them, with those that wait for them. REQUIRES: likewise.
  template <typename Visit>
  void for_each_sequence(const Visit& visit) {
    const auto visit_all = [&visit](Sequence& s) {
      visit(s);
      for (const auto& waiting : s.group->blocked) visit(*waiting);
    };
    for (const auto& s : live_) {
      if (s != nullptr) visit_all(*s);
    }
    orders_.arrived.for_each(visit_all);
    mailbox_.for_each_arrived(visit_all);
  }
  // A replica of those that were withdrawn is not to go on.
  void count_lost(const Sequence& replica);

 private:
  Worker(const WorkerOptions& options, std::unique_ptr<Device> device);

  template <typename Visit>
  Status for_each_model(const Visit& visit);  // until one fails

  // ---- Between ticks ----
  void loop();
  bool busy() const;
  void follow_orders();
  void start_arrived();
  void start(std::unique_ptr<Sequence>* s);
  std::unique_ptr<Sequence> leave(Sequence* s);
  std::unique_ptr<Sequence> detach(Sequence* s);
  void finish(Sequence* s, otr_finish_reason reason, const Failure& failure = {});
  void conclude(std::unique_ptr<Sequence> s, otr_finish_reason reason, const Failure& failure);
  void conclude_blocked(Group* group, otr_finish_reason reason, const Failure& failure);
  void abort_cancelled();
  void give(const Move&move), give(Sequence*s, int32_t to);
  void lend(Lend* order);
  bool lose(const Sequence& s, otr_finish_reason reason);
  bool stays(const Sequence& s) const { return s.is_on_trial || (options_.replicas_stay && s.race != nullptr); }
  void adopt_tokens();
  void migrate_at_random();
  void advance_rebuilds(), settle_copies();
  void note_copied(const Sequence& s, int32_t positions);
  bool waits_for_sibling(const Sequence& s) const;
  bool wait_for_pages(), await_drafts();
  Sequence* cheapest_running() const;
  void fail_all(const Status& why);
  void report();

  // ---- A tick ----
  static const Ending kFaulted;
  bool step();
  const std::vector<RowRun>& schedule();
  int32_t slot_on_trial() const;
  void try_alone(), stop_alone(), end_trial();
  void break_on(const std::vector<RowRun>& runs) const;
  void hold_pass(size_t batch);
  void draft(const std::vector<RowRun>& runs);
  void assemble(const std::vector<RowRun>& runs);
  void draw(const std::vector<RowRun>& runs);
  void commit(const std::vector<RowRun>& runs);
  int32_t draft_depth(const Sequence& s, const RowRun& run, int32_t most) const;
  void fork(size_t run, const Sequence& s, const RowRun& rows);
  void add_paths(size_t run, const Sequence& s, int32_t begin);
  void draw_draft(const Sequence& s, const Forest& forest, const RowRun& run, int32_t first_logit);
  void commit_decode(Sequence* s, const Forest& forest, const RunPlace& at);
  Ending commit_token(Sequence* s, const SampleResult& drawn, int32_t* num_new);
  void commit_score(Sequence* s, const RowRun& run, const RunPlace& at);
  void record_score(Sequence* s, const SampleResult& scored);
  bool rows_faulted(int32_t first_row, int32_t num_rows) const;
  bool scores_row_by_row(const Sequence& s) const { return s.group->is_score && s.group->sampling.penalised(); }
  void trace_tick(size_t batch, double draft, double verify, double tick);
  Status check_pages() const;
  Sequence& live(int32_t slot) const { return *live_[static_cast<size_t>(slot)]; }

  // ---- BatchHost ----
  SequenceView view(int32_t slot) const override;
  int32_t pages_available() const override { return target().prefix_cache().num_available(); }
  bool reclaim_pages() override { return rebuild_.reclaim(); }
  int32_t pages_held(int32_t slot) const override { return live(slot).pages.num_pages() + live(slot).num_copied_pages(); }
  int32_t pages_private(int32_t slot) const override;
  int32_t pages_to_write(int32_t slot, int32_t begin, int32_t end) const override;
  void attach_prefix(int32_t slot) override;
  void drop_pages(int32_t slot, bool counted) override;
  void take_pages(int32_t slot, int32_t begin, int32_t end) override;

  const WorkerOptions options_;
  const std::unique_ptr<Device> device_;
  const std::unique_ptr<Pace> pace_;  // null: passes take what they take
  WorkerMailbox mailbox_;
  WorkerOrders orders_;  // taken from the mailbox, not followed yet
  WorkerReport report_;  // of this tick
  WorkerStats stats_;
  Batcher batcher_;
  std::vector<std::unique_ptr<Sequence>> live_;  // by slot; null where free
  std::vector<int32_t> free_slots_;
  std::vector<std::unique_ptr<Sequence>> unblocked_;  // of a prompt just run; null once started
  int64_t num_blocked_ = 0;
  int64_t num_arrived_ = 0;                 // samples
  std::unique_ptr<Speculator> speculator_;  // set by create()
  KvRebuild rebuild_;
  std::unique_ptr<DraftServer> server_;  // likewise; may be null
  bool served_ = false;                  // in this round it has drafted for others
  Alone alone_;
  GrowingWait blind_;    // while nothing runs, since the last order, tick or draft
  std::mt19937 random_;  // for proofs
  std::thread thread_;

  // Of the tick.
  RowBatchBuilder rows_;
  PageWork page_work_, fork_work_;
  std::vector<RunPlace> places_;  // by run
  DraftPaths paths_;
  std::vector<int32_t> draft_tokens_;  // of one path
  std::vector<SampleDraw> draws_;
  DraftPenalties penalties_;
  std::vector<SampleResult> results_;
  std::vector<int32_t> drawn_, accepted_;  // of one forest: the target's tokens; the nodes that were kept
  TickMarks marks_{.clock = PacedStopwatch(pace_.get())};
};

}  // namespace otr
