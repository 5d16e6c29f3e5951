// What worker_server.h says, as a class: worker_server.cpp has a process's way from its first frame to its last,
// worker_server_orders.cpp what it is told, worker_server_reports.cpp what it tells.
//
// Thread safety: orders by the serving thread, reports by the worker's; what both touch says what guards it.
#pragma once

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "runtime/history_loader.h"
#include "runtime/history_store.h"
#include "runtime/link_relay.h"
#include "runtime/page_net.h"
#include "runtime/race.h"
#include "runtime/report_wire.h"
#include "runtime/worker.h"
#include "runtime/worker_channel.h"

namespace otr {

class WorkerServer final : private WorkerHost, private TraceSink, private NetHost {
 public:
  explicit WorkerServer(OwnedFd fd) : channel_(std::move(fd)) {}
  ~WorkerServer() override {
    if (net_ != nullptr) net_->stop();
  }
  Status run();

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::milliseconds kReportPeriod{10}, kStatsPeriod{50}, kParentPeriod{1000};

  Status read_setup();
  Status make_worker();
  Status serve();
  Status follow(const WorkerChannel::Frame& frame);
  Status pump_links();
  Status await_rest(), change_weights(), withdraw();
  StartLimits start_limits() const;
  Status start(WireView payload);
  Status take_pages(const StartPages& pages, Sequence* s);
  void cancel(uint64_t group);
  std::shared_ptr<Race> race_of(uint64_t group, uint32_t sample);
  void drop(const SampleName& name);
  Status leap(WireView payload);
  void announce_rest();
  bool tell_counts();
  void give_up();
  void end_with_parent() const;

  // ---- The worker's thread ----
  void report(int32_t worker, const WorkerStats& stats, const WorkerLoad& load, WorkerReport* report) override;
  void tries(const Sequence* s) override;
  void rested() override;
  void broke(const Status& why) override;
  void tick(const TraceTick& tick) override;
  void sample(const TraceSample&) override {}  // its end goes with a report
  void flush() override {}                     // so do ticks
  int error() const override { return 0; }

  // ---- Any thread's ----
  void tell(const NetNews& news) override;
  void end_process(const Status& why) override;
  void pass(ProtocolStep step) override;

  // ---- Under mutex_ ----
  void take(WorkerReport* report);
  void send_report();
  void send_ticks();
  void give_pages(Sequence* s, SampleGiven* given);
  Status send(WireType type, const WireBytes& payload, std::vector<OwnedFd> files = {});

  void strike(const WorkerFault& fault);

  const pid_t parent_ = getppid();  // the engine, or who has run us for it
  WorkerSetup setup_;
  std::vector<OwnedFd> weight_files_;  // that setup_ names, until the models have them
  Policy policy_;
  std::optional<FaultSchedule> faults_;
  std::unique_ptr<HistoryStore> history_;  // null: nobody drafts from it
  std::unique_ptr<HistoryLoader> loader_;  // likewise
  std::unique_ptr<LinkRelay> links_;       // null: nobody drafts for others
  std::unique_ptr<PageNet> net_;           // null: pages go by file; outlives the worker, whose sequences use it
  std::unique_ptr<PaceClock> pace_clock_;  // null: it is not paced
  std::unique_ptr<Worker> worker_;
  std::unordered_multimap<uint64_t, std::weak_ptr<Group>> groups_;  // by id; the serving thread's
  size_t groups_after_sweep_ = 64;
  std::atomic<uint64_t> turns_ = 0;

  std::recursive_mutex mutex_;  // recursive: a planted fault strikes inside
  // Guarded by mutex_, but for receiving.
  WorkerChannel channel_;
  ProcessReport pending_;
  std::map<std::pair<uint64_t, uint32_t>, std::shared_ptr<Race>> races_;  // by group and sample: of the replicas here
  WorkerStats stats_;
  WireBytes bytes_, ticks_, net_bytes_;
  std::vector<OwnedFd> files_;                 // that go with pending_
  int32_t unreported_ = 0;                     // tokens of one sample in it, at most
  bool tries_ = false;                         // a sample is on trial: every tick is told
  bool has_news_ = false, stats_due_ = false;  // stats_ are newer than what was sent; are to be sent
  Clock::time_point reported_ = Clock::now(), counted_ = reported_;
  uint64_t followed_ = 0, announced_ = 0;
  int64_t full_sockets_ = 0;
};

}  // namespace otr
