#include "runtime/worker_server.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <map>
#include <mutex>
#include <new>
#include <optional>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "runtime/draft_roles.h"
#include "runtime/link_relay.h"
#include "runtime/race.h"
#include "runtime/worker.h"
#include "runtime/worker_channel.h"

namespace otr {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kReportPeriod{10}, kStatsPeriod{50};
constexpr int64_t kSetupMs = 60'000;
constexpr int32_t kHeartbeatsPerTimeout = 8;

int64_t ms_until(Clock::time_point limit) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(limit - Clock::now()).count() + 1;
}

class WorkerServer final : private WorkerHost, private TraceSink {
 public:
  explicit WorkerServer(OwnedFd fd) : channel_(std::move(fd)) {}
  Status run();

 private:
  Status read_setup();
  Status make_worker();
  Status serve();
  Status follow(const WorkerChannel::Frame& frame);
  Status pump_links();
  Status change_weights();
  StartLimits start_limits() const;
  Status start(WireView payload);
  void cancel(uint64_t group);
  std::shared_ptr<Race> race_of(uint64_t group, uint32_t sample);
  void drop(const SampleName& name);
  Status leap(WireView payload);
  void announce_rest();
  bool tell_counts();
  void give_up();

  // ---- The worker's thread ----
  void report(int32_t worker, const WorkerStats& stats, const WorkerLoad& load, WorkerReport* report) override;
  void rested() override;
  void broke(const std::string& why) override;
  void tick(const TraceTick& tick) override;
  void sample(const TraceSample&) override {}  // its end goes with a report
  void flush() override {}                     // so do ticks
  int error() const override { return 0; }

  // ---- Under mutex_ ----
  void take(WorkerReport* report);
  void send_report();
  void send_ticks();
  Status send(WireType type, const WireBytes& payload);

  void pass(ProtocolStep step);
  void strike(const WorkerFault& fault);

  WorkerSetup setup_;
  Policy policy_;
  std::optional<FaultSchedule> faults_;
  std::unique_ptr<LinkRelay> links_;  // null: nobody drafts for others
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
  WireBytes bytes_, ticks_;
  bool has_news_ = false, stats_due_ = false;  // stats_ are newer than what was sent; are to be sent
  Clock::time_point reported_ = Clock::now(), counted_ = reported_;
  uint64_t followed_ = 0, announced_ = 0;
};

// ---- From the first frame to the last ------------------------------------------------------------------------------------

Status WorkerServer::run() {
  Status status = read_setup();
  if (status.ok()) {
    try {
      status = make_worker();
      if (status.ok()) status = serve();
    } catch (const std::bad_alloc&) {
      status = Status(StatusCode::kOutOfMemory, "out of memory");
    } catch (const std::exception& e) {
      status = Status(StatusCode::kInternal, e.what());
    }
  }
  if (!status.ok()) {
    const std::lock_guard<std::recursive_mutex> lock(mutex_);
    bytes_.clear();
    encode_failed(status, &bytes_);
    (void)send(WireType::kFailed, bytes_);  // whoever would hear it may be gone
  }
  give_up();
  return status;
}

Status WorkerServer::read_setup() {
  const Clock::time_point limit = Clock::now() + std::chrono::milliseconds(kSetupMs);
  WorkerChannel::Frame frame;
  for (;;) {
    OTR_ASSIGN_OR_RETURN(const bool is_open, channel_.fill());
    OTR_ASSIGN_OR_RETURN(const bool has_frame, channel_.next(&frame));
    if (has_frame) break;
    if (!is_open) return io_error("the engine has closed the socket");
    if (Clock::now() >= limit) return Status(StatusCode::kTimeout, "the engine does not say what to do");
    wait_for_channel(channel_, false, -1, ms_until(limit));
  }
  if (frame.type != WireType::kSetup) return bad_input("the first message is no setup");
  std::vector<OwnedFd> files = channel_.take_files();
  std::vector<int> fds;
  for (const OwnedFd& file : files) fds.push_back(file.get());
  OTR_ASSIGN_OR_RETURN(setup_, decode_setup(frame.payload, fds));
  for (OwnedFd& file : files) (void)file.release();  // the setup's models have them
  followed_ = announced_ = frame.number;
  faults_.emplace(setup_.proofs.faults, setup_.index, setup_.life);
  pass(ProtocolStep::kSetup);
  if (setup_.version != otr_version()) {
    return unsupported("the worker's executable has version " + std::string(otr_version()) + " of the library, its engine " + setup_.version);
  }
  return {};
}

Status WorkerServer::make_worker() {
  OTR_ASSIGN_OR_RETURN(policy_, parse_policy(setup_.policy));
  setup_.proofs.rebuild.mode = RebuildMode::kRecompute;  // nobody reads another process' pages
  policy_.drafters = setup_.drafters;
  WorkerOptions w{.index = setup_.index,
                  .num_workers = setup_.num_workers,
                  .max_batch = setup_.max_batch,
                  .prefill_chunk = setup_.prefill_chunk,
                  .max_draft_rows = setup_.max_draft_rows,
                  .speculation = {},
                  .proofs = setup_.proofs,
                  .reports_progress = true,
                  .replicas_stay = true,
                  .host = this,
                  .trace = setup_.traces ? this : nullptr};
  w.speculation = {.policy = policy_,
                   .models = setup_.models,
                   .custom = {},
                   .history = [] { return std::shared_ptr<const HistoryIndex>(); },
                   .profile = {},
                   .costs = setup_.costs,
                   .max_batch = setup_.max_batch,
                   .prefill_chunk = setup_.prefill_chunk,
                   .max_draft_rows = setup_.max_draft_rows};
  if (setup_.num_draft_workers > 0) {
    OTR_ASSIGN_OR_RETURN(links_, LinkRelay::create({.worker = setup_.index, .num_workers = setup_.num_workers, .num_draft_workers = setup_.num_draft_workers,
                                                    .capacity = link_capacity(setup_.engine_batch), .delay_seed = setup_.proofs.delay_seed}));
    w.speculation.link = links_->own();
    w.speculation.decoupled = setup_.decoupled;
    w.serves = links_->served();
    const auto model = std::find_if(setup_.models.begin(), setup_.models.end(), [this](const DrafterModel& m) { return m.name == setup_.draft_model; });
    w.server = draft_server_options(w, *model, setup_.num_draft_workers);
  }
  DeviceOptions d;
  d.isa = setup_.isa;
  d.num_threads = setup_.num_threads;
  d.pin_threads = setup_.pin_threads;
  d.first_cpu = setup_.first_cpu;
  d.target.num_pages = setup_.num_pages;
  d.target.bucket = w.bucket();
  d.target.attach = &setup_.target;
  OTR_ASSIGN_OR_RETURN(std::unique_ptr<Device> device, Device::create(d));
  OTR_ASSIGN_OR_RETURN(worker_, Worker::create(w, std::move(device)));
  const ModelRunner& target = worker_->target();
  if (links_ != nullptr) {
    links_->set_limits(start_limits());
    links_->connect(&worker_->mailbox());
  }
  const ReadyMessage ready{
      .facts = {.num_threads = worker_->device().num_threads(),
                .num_pages = target.page_pool().num_pages(),
                .activation_bytes = target.activation_bytes() + worker_->speculator().drafter_activation_bytes()},
      .load = worker_->load()};
  pass(ProtocolStep::kReady);
  const std::lock_guard<std::recursive_mutex> lock(mutex_);
  bytes_.clear();
  encode_ready(ready, &bytes_);
  return send(WireType::kReady, bytes_);
}

// Until the engine says stop; an error if it is gone, or sends what cannot be followed.
Status WorkerServer::serve() {
  worker_->begin();
  const std::chrono::milliseconds period(std::max(1, setup_.timeout_ms / kHeartbeatsPerTimeout));
  for (Clock::time_point next = Clock::now();;) {
    OTR_ASSIGN_OR_RETURN(const bool is_open, channel_.fill());
    for (;;) {
      WorkerChannel::Frame frame;
      OTR_ASSIGN_OR_RETURN(const bool has_frame, channel_.next(&frame));
      if (!has_frame) break;
      if (frame.type == WireType::kStop) {
        pass(ProtocolStep::kStop);
        return {};
      }
      OTR_RETURN_IF_ERROR(follow(frame));
      const std::lock_guard<std::recursive_mutex> lock(mutex_);
      followed_ = frame.number;
    }
    if (!is_open) return io_error("the engine has closed the socket");
    announce_rest();
    if (Clock::now() >= next) {
      pass(ProtocolStep::kHeartbeat);
      const std::lock_guard<std::recursive_mutex> lock(mutex_);
      bytes_.clear();
      encode_heartbeat({.turns = turns_, .at_rest = worker_->mailbox().at_rest()}, &bytes_);
      OTR_RETURN_IF_ERROR(send(WireType::kHeartbeat, bytes_));
      next = Clock::now() + period;
    }
    if (links_ == nullptr) {
      wait_for_channel(channel_, false, -1, ms_until(next));
      continue;
    }
    OTR_RETURN_IF_ERROR(pump_links());
    constexpr std::chrono::milliseconds kSoon{1};
    Clock::time_point limit = links_->owes() ? std::min(next, Clock::now() + kSoon) : next;
    if (tell_counts()) limit = std::min(limit, Clock::now() + kStatsPeriod);
    wait_for_channel(channel_, false, links_->fd(), ms_until(limit));
  }
}

Status WorkerServer::pump_links() {
  return links_->pump([this](const LinkMessage& message) -> Status {
    pass(ProtocolStep::kLink);
    const std::lock_guard<std::recursive_mutex> lock(mutex_);
    bytes_.clear();
    encode_link(message, &bytes_);
    return send(WireType::kLinks, bytes_);
  });
}

// The worker ends with the tick that it is in. One that does not must not outlive its engine for ever.
void WorkerServer::give_up() {
  if (worker_ == nullptr) return;
  worker_->mailbox().stop();
  std::mutex over_mutex;
  std::condition_variable over_changed;
  bool over = false;
  std::thread watch([&] {
    std::unique_lock<std::mutex> lock(over_mutex);
    if (!over_changed.wait_for(lock, std::chrono::milliseconds(setup_.timeout_ms), [&] { return over; })) _exit(1);
  });
  worker_->join();
  {
    const std::lock_guard<std::mutex> lock(over_mutex);
    over = true;
  }
  over_changed.notify_all();
  watch.join();
}

// ---- Orders --------------------------------------------------------------------------------------------------------------

Status WorkerServer::follow(const WorkerChannel::Frame& frame) {
  WorkerMailbox& mailbox = worker_->mailbox();
  switch (frame.type) {
    case WireType::kStart: pass(ProtocolStep::kStart); return start(frame.payload);
    case WireType::kCancel: {
      pass(ProtocolStep::kCancel);
      OTR_ASSIGN_OR_RETURN(const uint64_t group, decode_u64(frame.payload));
      cancel(group);
      return {};
    }
    case WireType::kGive: {
      pass(ProtocolStep::kGive);
      OTR_ASSIGN_OR_RETURN(const Move move, decode_move(frame.payload, setup_.num_workers));
      mailbox.give(move);
      return {};
    }
    case WireType::kEndStep: pass(ProtocolStep::kEndStep); mailbox.end_step(); return {};
    case WireType::kPause: pass(ProtocolStep::kPause); mailbox.pause(); return {};
    case WireType::kResume: pass(ProtocolStep::kResume); mailbox.resume(); return {};
    case WireType::kWeights:
      pass(ProtocolStep::kWeights);
      return change_weights();
    case WireType::kRoles: {
      pass(ProtocolStep::kRoles);
      OTR_ASSIGN_OR_RETURN(const DraftRoles roles, decode_roles(frame.payload));
      mailbox.set_roles(roles);
      return {};
    }
    case WireType::kLend: {
      pass(ProtocolStep::kLend);
      OTR_ASSIGN_OR_RETURN(const Lend lend, decode_lend(frame.payload, setup_.num_workers));
      mailbox.lend(lend);
      return {};
    }
    case WireType::kDrop: {
      pass(ProtocolStep::kDrop);
      OTR_ASSIGN_OR_RETURN(const SampleName name, decode_name(frame.payload));
      drop(name);
      return {};
    }
    case WireType::kLeap: pass(ProtocolStep::kLeap); return leap(frame.payload);
    case WireType::kRelink: {
      pass(ProtocolStep::kRelink);
      OTR_ASSIGN_OR_RETURN(const Relink relink, decode_relink(frame.payload, setup_.num_workers));
      return links_ == nullptr ? bad_input("there are no links") : links_->follow(relink);
    }
    case WireType::kLinked:
      pass(ProtocolStep::kLinked);
      return links_ == nullptr ? bad_input("there are no links") : links_->receive(frame.payload);
    default: return bad_input("the engine sends no order");
  }
}

// The engine has seen it rest, or it has just begun: then it rests soon.
Status WorkerServer::change_weights() {
  const Clock::time_point limit = Clock::now() + std::chrono::milliseconds(setup_.timeout_ms);
  while (!worker_->mailbox().at_rest()) {
    if (Clock::now() >= limit) return bad_input("the weights have changed under a worker that runs");
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  worker_->target().weights_changed();
  return {};
}

StartLimits WorkerServer::start_limits() const {
  const ModelConfig& config = worker_->target().config();
  return {.vocab_size = config.vocab_size, .context_limit = context_limit(config), .num_pages = worker_->target().page_pool().num_pages()};
}

Status WorkerServer::start(WireView payload) {
  OTR_ASSIGN_OR_RETURN(std::unique_ptr<Sequence> s, decode_start(payload, start_limits()));
  if (groups_.size() >= groups_after_sweep_) {
    std::erase_if(groups_, [](const auto& entry) { return entry.second.expired(); });
    groups_after_sweep_ = 2 * groups_.size() + 64;
  }
  groups_.emplace(s->group->id, s->group);
  if (s->race != nullptr) {
    const std::lock_guard<std::recursive_mutex> lock(mutex_);
    races_.insert_or_assign({s->group->id, s->sample}, s->race);
  }
  worker_->mailbox().start(std::move(s));
  return {};
}

void WorkerServer::cancel(uint64_t group) {
  const auto [first, last] = groups_.equal_range(group);
  for (auto it = first; it != last; ++it) {
    if (const std::shared_ptr<Group> live = it->second.lock(); live != nullptr) live->cancelled = true;
  }
  worker_->mailbox().cancel(group);
}

std::shared_ptr<Race> WorkerServer::race_of(uint64_t group, uint32_t sample) {
  const std::lock_guard<std::recursive_mutex> lock(mutex_);
  const auto at = races_.find({group, sample});
  return at == races_.end() ? nullptr : at->second;
}

// Another replica was first. One that has ended meanwhile has said so itself.
void WorkerServer::drop(const SampleName& name) {
  const std::shared_ptr<Race> race = race_of(name.group, name.sample);
  if (race == nullptr) return;
  race->decide();
  worker_->mailbox().cancel(name.group);
}

Status WorkerServer::leap(WireView payload) {
  OTR_ASSIGN_OR_RETURN(const Progress found, decode_progress(payload, worker_->target().config().vocab_size));
  size_t at = 0;
  for (const ProgressSegment& p : found.segments) {
    const size_t count = static_cast<size_t>(p.count);
    const std::shared_ptr<Race> race = race_of(p.group, p.sample);
    const auto part = [at, count](const auto& all) { return std::span(all).subspan(at, count); };
    if (race != nullptr) race->publish(p.first, part(found.tokens), part(found.logprobs), part(found.raw_logprobs));
    at += count;
  }
  return {};
}

// ---- Reports -------------------------------------------------------------------------------------------------------------

void WorkerServer::report(int32_t, const WorkerStats& stats, const WorkerLoad& load, WorkerReport* report) try {
  ++turns_;
  pass(ProtocolStep::kTick);
  const std::lock_guard<std::recursive_mutex> lock(mutex_);
  stats_ = stats;
  pending_.load = load;
  has_news_ = true;
  take(report);
  const Clock::time_point now = Clock::now();
  // What one replica has found saves the others its computing.
  const bool is_urgent = !pending_.finished.empty() || !pending_.given.empty() || pending_.answered || pending_.lent || !races_.empty();
  stats_due_ = stats_due_ || !pending_.finished.empty() || now - counted_ >= kStatsPeriod;
  if (is_urgent || now - reported_ >= kReportPeriod) send_report();
} catch (const std::exception& e) {
  broke(e.what());
}

void WorkerServer::take(WorkerReport* report) {
  Progress& to = pending_.progress;
  const Progress& from = report->progress;
  to.segments.insert(to.segments.end(), from.segments.begin(), from.segments.end());
  to.tokens.insert(to.tokens.end(), from.tokens.begin(), from.tokens.end());
  to.logprobs.insert(to.logprobs.end(), from.logprobs.begin(), from.logprobs.end());
  to.raw_logprobs.insert(to.raw_logprobs.end(), from.raw_logprobs.begin(), from.raw_logprobs.end());
  report->progress.clear();
  while (const std::unique_ptr<Sequence> s = report->finished.pop()) {
    pending_.finished.push_back({.group = s->group->id, .sample = s->sample, .reason = s->finish_reason, .error = s->error});
    if (s->race != nullptr) races_.erase({s->group->id, s->sample});
  }
  while (const std::unique_ptr<Sequence> s = report->dropped.pop()) {
    pending_.dropped.push_back({.group = s->group->id, .sample = s->sample});
    races_.erase({s->group->id, s->sample});
  }
  if (report->lent) pending_.lent = report->lent;
  while (const std::unique_ptr<Sequence> s = report->given.pop()) {
    if (s->is_new_replica()) {  // the engine makes it, of what it knows
      pending_.replicas.push_back({.group = s->group->id, .sample = s->sample});
      s->race->leave();
      races_.insert_or_assign({s->group->id, s->sample}, s->race);
      continue;
    }
    pending_.given.push_back({.group = s->group->id,
                              .sample = s->sample,
                              .to = s->goes_to,
                              .num_blocked = static_cast<int32_t>(s->group->blocked.size())});
    s->group->disband();
  }
  if (report->answered) pending_.answered = report->answered;
}

void WorkerServer::tick(const TraceTick& tick) {
  constexpr size_t kMostBytes = size_t{1} << 15;
  const std::lock_guard<std::recursive_mutex> lock(mutex_);
  encode_tick(tick, std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch()).count(), &ticks_);
  if (ticks_.size() >= kMostBytes) send_ticks();
}

void WorkerServer::send_ticks() {
  if (ticks_.empty()) return;
  pass(ProtocolStep::kTrace);
  if (!send(WireType::kTrace, ticks_).ok()) worker_->mailbox().stop();
  ticks_.clear();
}

void WorkerServer::send_report() {
  send_ticks();  // before the samples that they have ended
  pass(ProtocolStep::kReport);
  reported_ = Clock::now();
  if (std::exchange(stats_due_, false)) {
    pending_.stats = stats_;
    counted_ = reported_;
    has_news_ = false;
  }
  bytes_.clear();
  encode_report(pending_, &bytes_);
  pending_.clear();
  if (!send(WireType::kReport, bytes_).ok()) worker_->mailbox().stop();  // nobody is there to work for
  pass(ProtocolStep::kReported);
}

void WorkerServer::rested() try {
  ++turns_;
  announce_rest();
} catch (const std::exception& e) {
  broke(e.what());
}

void WorkerServer::announce_rest() {
  const std::lock_guard<std::recursive_mutex> lock(mutex_);
  // What it has followed before it rests, read before: an order that comes in between wakes it.
  if (announced_ == followed_ || !worker_->mailbox().at_rest()) return;
  pass(ProtocolStep::kRest);
  // Who drafts for others rests after every window: tell_counts() tells what it has counted, but in a pause, whose caller may read it.
  const bool may_wait = worker_->server() != nullptr && !worker_->mailbox().is_paused();
  if (has_news_ && !may_wait) {
    stats_due_ = true;
    send_report();
  }
  announced_ = followed_;
  bytes_.clear();
  encode_u64(announced_, &bytes_);
  if (!send(WireType::kRested, bytes_).ok()) worker_->mailbox().stop();
  pass(ProtocolStep::kRested);
}

// What a drafting worker has counted before it came to rest. True: there is something to tell later.
bool WorkerServer::tell_counts() {
  const std::lock_guard<std::recursive_mutex> lock(mutex_);
  if (!has_news_ || !worker_->mailbox().at_rest()) return false;
  if (Clock::now() - counted_ < kStatsPeriod) return true;
  stats_due_ = true;
  send_report();
  return false;
}

// Its samples are better off elsewhere.
void WorkerServer::broke(const std::string& why) {
  {
    const std::lock_guard<std::recursive_mutex> lock(mutex_);
    bytes_.clear();
    encode_failed(Status(StatusCode::kInternal, why), &bytes_);
    (void)send(WireType::kFailed, bytes_);
  }
  _exit(1);
}

// Waits for room in the socket as long as the engine would wait for us.
Status WorkerServer::send(WireType type, const WireBytes& payload) {
  channel_.queue(type, payload);
  const Clock::time_point limit = Clock::now() + std::chrono::milliseconds(std::max(setup_.timeout_ms, 1));
  for (;;) {
    OTR_RETURN_IF_ERROR(channel_.flush());
    if (channel_.queued_bytes() == 0) return {};
    if (Clock::now() >= limit) return Status(StatusCode::kTimeout, "the engine does not read");
    wait_for_channel(channel_, true, -1, ms_until(limit));
  }
}

// ---- Proofs --------------------------------------------------------------------------------------------------------------

void WorkerServer::pass(ProtocolStep step) {
  if (const WorkerFault* fault = faults_->strike(step); fault != nullptr) strike(*fault);
}

void WorkerServer::strike(const WorkerFault& fault) {
  while (fault.kind == FaultKind::kHang) pause();
  const std::lock_guard<std::recursive_mutex> lock(mutex_);
  WireBytes lie;
  encode_report({.load = {}, .stats = {}, .progress = {}, .finished = {{.group = ~uint64_t{0}, .sample = 1, .reason = OTR_FINISH_STOP, .error = {}}},
                 .given = {}, .answered = {}, .lent = {}, .replicas = {}, .dropped = {}}, &lie);
  switch (fault.kind) {
    case FaultKind::kHang: return;
    case FaultKind::kTear:
      channel_.queue_half(WireType::kReport, lie);
      (void)channel_.flush();
      [[fallthrough]];
    case FaultKind::kDie: (void)raise(SIGKILL); return;
    case FaultKind::kCorrupt: channel_.corrupt_next(); return;
    case FaultKind::kLie: (void)send(WireType::kReport, lie); return;
    case FaultKind::kRefuse: throw std::bad_alloc();
  }
}

}  // namespace

Status serve_worker(int fd) {
  if (fcntl(fd, F_GETFD) < 0) return invalid_argument("file " + std::to_string(fd) + " is not open");
  (void)fcntl(fd, F_SETFD, FD_CLOEXEC);
  WorkerServer server{OwnedFd(fd)};
  return server.run();
}

}  // namespace otr
