// ProcessWorker: a worker that is a process, as its engine sees it. It starts the process, passes orders on and reports back,
// and sees when the process is dead, hangs or errs: then it ends it, tells the engine, and starts another one in its place.
//
// One thread does all of that. It waits for the socket, for orders and for the clock, and never for the process: a process that
// does not read its orders, is not heard of, or has something to do and comes no further, for timeout_ms, is taken for hung.
// Nothing of the process' memory is ever read; what it says is checked before it is believed.
//
// Thread safety: WorkerPort's functions, weights_changed(), withdraw(), relink(), hand_on() and discard_orders() may be called
// from any thread. Orders never allocate, but for cancel() and hand_on(). The host is called by the thread, without a lock
// held.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "runtime/child_process.h"
#include "runtime/process_orders.h"
#include "runtime/report_wire.h"
#include "runtime/worker_channel.h"
#include "runtime/worker_port.h"

namespace otr {

// Whom processes report to.
class ProcessHost {
 public:
  virtual ~ProcessHost() = default;
  // A process is ready for orders. Called before begin() returns, and again for each that takes its place.
  virtual void process_ready(int32_t worker, const ReadyMessage& ready) = 0;
  // Takes what is in the report. kBadInput: it contradicts what the host knows; the process is at fault. kOutOfMemory: what is
  // left in the report is to be given again, later.
  virtual Status process_report(int32_t worker, ProcessReport* report) = 0;
  // A message for the other end of a link (link_wire.h). kBadInput likewise.
  virtual Status process_links(int32_t worker, WireView payload) = 0;
  virtual Status process_trace(int32_t worker, WireView payload) = 0;
  virtual Status process_net(int32_t worker, WireView payload) = 0;
  virtual void process_rested() = 0;
  // What the worker says of trials (suspects.h): see Suspects::tries. Whether one runs there.
  virtual void process_tries(int32_t worker, const SampleName& name) = 0;
  virtual bool process_is_trying(int32_t worker) = 0;
  // The process is gone, with what it had. `broke`: of nothing from outside, as far as can be seen. `comes_back`: another one
  // takes its place. The host discards the orders of the worker before it gives it new ones.
  virtual void process_lost(int32_t worker, const Status& why, bool broke, bool comes_back) = 0;
};

struct ProcessOptions {
  std::string executable;
  int32_t timeout_ms = 0;
  int32_t start_timeout_ms = 0;  // to be ready
  // In a row, none of which has finished a sample, lived for a minute, or broken on a sample on trial. Those that the system
  // does not let begin, being short of memory or files, are tried again for start_timeout_ms, and none of these.
  int32_t max_restarts = 0;
  WorkerSetup setup;            // its life is set here
  ProcessHost* host = nullptr;  // outlives the worker
};

class ProcessWorker final : public WorkerPort {
 public:
  explicit ProcessWorker(const ProcessOptions& options);
  ~ProcessWorker() override;

  // Starts the first process; wait_ready() returns once it is ready, or with what kept it from that.
  Status begin();
  Status wait_ready();
  void settle(int32_t num_pages, const std::vector<CostModel>& costs);  // of processes to come: see WorkerSetup
  // After stop(). Returns when process and thread have ended.
  void join();

  void start(std::unique_ptr<Sequence> s) override;
  void cancel(uint64_t group) override;
  void give(const Move& move) override;
  void end_step() override;
  void set_roles(const DraftRoles& roles) override;
  void lend(const Lend& lend) override;
  void pause() override;
  void resume() override;
  void stop() override;
  bool at_rest() const override;
  bool rests_in_pause() const override;
  int32_t max_batch() const { return options_.setup.max_batch; }
  // Times that the socket did not take all orders at once, of all processes so far.
  int64_t full_sockets() const { return full_sockets_; }
  void weights_changed();          // REQUIRES: at rest, and paused
  void withdraw();                 // it forgets its samples and says no more of them. REQUIRES: likewise
  void set_history(OwnedFd file);  // what processes draft from: this one, and its successors
  void relink(const Relink& relink);
  // An order that came from elsewhere, as it is: kLinked, kDrop, kLeap or kNetOrder. They come in the order in which they are
  // given.
  void hand_on(WireType type, WireView payload);
  // Forgets the orders that no process has got, but for pause().
  void discard_orders();
  void discard_starts();  // of these those that bring samples

 private:
  using Clock = std::chrono::steady_clock;
  enum class State { kStarting, kReady, kLost, kGone };  // lost: another one comes, and the host has not heard of it

  void run();
  Status live();
  Status set_up(WorkerChannel* channel);
  Status serve(WorkerChannel* channel);
  Status receive(WorkerChannel* channel);
  Status follow(const WorkerChannel::Frame& frame, WorkerChannel* channel);
  std::optional<WireType> take_order(std::unique_ptr<Sequence>* s, std::vector<OwnedFd>* files);
  bool send_orders(WorkerChannel* channel);
  void say_stop(WorkerChannel* channel);
  Status check_signs(Clock::time_point now);
  void note_lost(const Status& why, bool broke, bool comes_back);
  Status pass_on_report();
  bool may_come_back(bool was_ready, bool was_short, bool tried, Clock::time_point born);
  void pause_before_restart();
  void wake(), hear_wake();
  bool stopping() const, rests() const;  // of these rests() with mutex_ held
  bool has_orders() const;
  Status failure(const std::string& what) const;

  const ProcessOptions options_;
  const OwnedFd wake_;  // an eventfd
  std::thread thread_;
  // The thread's own.
  ChildProcess process_;
  ProcessReport report_;
  WireBytes bytes_;
  int32_t life_ = -1, failures_ = 0;
  int32_t idle_lives_ = 0;                        // in a row, of which nothing came
  std::optional<Clock::time_point> short_since_;  // processes did not begin for want of memory or files
  uint64_t turns_ = 0;
  bool was_at_rest_ = true;
  Clock::time_point heard_, turned_;       // the last sign of the process; of the worker in it
  std::atomic<int64_t> full_sockets_ = 0;  // read by any

  mutable std::mutex mutex_;
  std::condition_variable first_, stopped_;
  // Guarded by mutex_.
  ProcessOrders orders_;
  int32_t num_pages_;
  std::vector<CostModel> costs_;
  OwnedFd history_;
  bool history_due_ = false;  // the process has not got it
  State state_ = State::kStarting;
  Status first_failure_;
  bool first_over_ = false;  // the first process is ready, or has failed
  bool paused_ = false, pause_sent_ = false, stop_ = false;
  uint64_t last_order_ = 0, rested_after_ = 0;  // numbers of frames; each process counts from 1
};

}  // namespace otr
