#include "runtime/worker_server.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <csignal>
#include <new>

#include "runtime/draft_roles.h"
#include "runtime/worker_server_impl.h"

namespace otr {
namespace {

constexpr int64_t kSetupMs = 60'000;
constexpr int32_t kHeartbeatsPerTimeout = 8;
static_assert(kHeartbeatsPerTimeout >= PageNet::kTimeoutShare);  // else a turn shows later than PageNet's slack allows

}  // namespace

// ---- From the first frame to the last ------------------------------------------------------------------------------------

Status WorkerServer::run() {
  Status status;
  try {
    status = read_setup();
    if (status.ok()) status = make_worker();
    if (status.ok()) status = serve();
  } catch (const std::bad_alloc&) {
    status = Status(StatusCode::kOutOfMemory, "out of memory");
  } catch (const std::exception& e) {
    status = Status(StatusCode::kInternal, e.what());
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
  OTR_ASSIGN_OR_RETURN(const std::string build, decode_setup_build(frame.payload));
  if (build != own_build()) {
    return unsupported("the worker's executable has version " + own_build() + " of the library, its engine " + build);
  }
  OTR_ASSIGN_OR_RETURN(weight_files_, channel_.take_files(channel_.num_files()));
  std::vector<int> fds;
  for (const OwnedFd& file : weight_files_) {
    if (file.get() < 0) return Status(StatusCode::kOutOfMemory, "the system refuses the worker the files of the weights");
    fds.push_back(file.get());
  }
  OTR_ASSIGN_OR_RETURN(setup_, decode_setup(frame.payload, fds));
  followed_ = announced_ = frame.number;
  faults_.emplace(setup_.proofs.faults, setup_.index, setup_.life);
  if (setup_.proofs.socket_bytes > 0) channel_.shrink(setup_.proofs.socket_bytes);
  pass(ProtocolStep::kSetup);
  return {};
}

Status WorkerServer::make_worker() {
  OTR_ASSIGN_OR_RETURN(policy_, parse_policy(setup_.policy));
  policy_.drafters = setup_.drafters;
  if (setup_.pace) pace_clock_ = std::make_unique<PaceClock>(setup_.pace->scale, /*num_sleepers=*/1, setup_.pace_start_ns);
  if (setup_.history != HistoryContent::kNone) {
    history_ = std::make_unique<HistoryStore>(setup_.history, setup_.target.config.vocab_size);
    // A file that is damaged costs speed.
    loader_ = std::make_unique<HistoryLoader>([this](int fd) { (void)history_->load("/proc/self/fd/" + std::to_string(fd)); });
  }
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
                  .pace = setup_.pace ? &*setup_.pace : nullptr,
                  .pace_clock = pace_clock_.get(),
                  .trace = setup_.traces ? this : nullptr};
  w.speculation = {.policy = policy_,
                   .models = setup_.models,
                   .custom = {},
                   .history = [this] { return history_ == nullptr ? nullptr : history_->index(); },
                   .profile = setup_.profile,
                   .costs = setup_.costs,
                   .max_batch = setup_.max_batch,
                   .prefill_chunk = setup_.prefill_chunk,
                   .max_draft_rows = setup_.max_draft_rows};
  if (setup_.num_draft_workers > 0) {
    OTR_ASSIGN_OR_RETURN(links_, LinkRelay::create({.worker = setup_.index,
                                                    .num_workers = setup_.num_workers,
                                                    .num_draft_workers = setup_.num_draft_workers,
                                                    .capacity = link_capacity(setup_.engine_batch, setup_.proofs),
                                                    .delay_seed = setup_.proofs.delay_seed}));
    w.speculation.link = links_->own();
    w.speculation.decoupled = setup_.decoupled;
    w.serves = links_->served();
    const auto model = std::find_if(setup_.models.begin(), setup_.models.end(),
                                    [this](const DrafterModel& m) { return m.name == setup_.draft_model; });
    w.server = draft_server_options(w, *model, setup_.num_draft_workers);
  }
  DeviceOptions d;
  d.isa = setup_.isa;
  d.num_threads = setup_.num_threads;
  d.pin_threads = setup_.pin_threads;
  d.first_cpu = setup_.first_cpu;
  d.ordinal = std::max(setup_.gpu, 0);
  d.target.num_pages = setup_.num_pages;
  d.target.kv_bytes = setup_.kv_bytes;
  d.target.bucket = w.bucket();
  d.target.attach = &setup_.target;
  OTR_ASSIGN_OR_RETURN(d.target.beside, Worker::room_beside(w, !w.serves.empty()));
  OTR_ASSIGN_OR_RETURN(std::unique_ptr<Device> device, Device::create(d));
  OTR_ASSIGN_OR_RETURN(worker_, Worker::create(w, std::move(device)));
  weight_files_.clear();
  const ModelRunner& target = worker_->target();
  if (!setup_.nccl_library.empty()) {
    OTR_ASSIGN_OR_RETURN(
        std::unique_ptr<PagePort> port,
        open_nccl_port(setup_.nccl_library, setup_.gpu, worker_->device().accelerator(), setup_.nccl_patience_ms));
    net_ = std::make_unique<PageNet>(std::move(port), &worker_->target(), static_cast<NetHost*>(this), setup_.nccl_patience_ms);
  }
  if (links_ != nullptr) {
    links_->set_limits(start_limits());
    links_->connect(&worker_->mailbox());
  }
  const ReadyMessage ready{
      .facts = {.num_threads = worker_->device().num_threads(),
                .num_pages = target.page_pool().num_pages(),
                .activation_bytes = target.activation_bytes() + worker_->speculator().drafter_activation_bytes(),
                .captures = worker_->device().captures()},
      .costs = worker_->speculator().costs(),
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
    end_with_parent();
    announce_rest();
    if (Clock::now() >= next) {
      if (net_ != nullptr && net_->busy_ms() > setup_.timeout_ms) {
        return Status(StatusCode::kTimeout, "its net came no further for " + std::to_string(setup_.timeout_ms) + " ms");
      }
      pass(ProtocolStep::kHeartbeat);
      const std::lock_guard<std::recursive_mutex> lock(mutex_);
      bytes_.clear();
      encode_heartbeat({.turns = turns_, .at_rest = worker_->mailbox().at_rest()}, &bytes_);
      OTR_RETURN_IF_ERROR(send(WireType::kHeartbeat, bytes_));
      next = Clock::now() + period;
    }
    Clock::time_point limit = std::min(next, Clock::now() + kParentPeriod);
    if (links_ == nullptr) {
      wait_for_channel(channel_, false, -1, ms_until(limit));
      continue;
    }
    OTR_RETURN_IF_ERROR(pump_links());
    constexpr std::chrono::milliseconds kSoon{1};
    if (links_->owes()) limit = std::min(limit, Clock::now() + kSoon);
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

// The engine's end of the socket may be open when the engine is gone: in a process that its own has forked. Nobody is there to
// be told anything.
void WorkerServer::end_with_parent() const {
  if (getppid() != parent_) _exit(1);
}

// The worker ends with the tick that it is in, and the net with what its port is in: an abort takes as long as it takes.
// Whoever does not come to an end must not outlive its engine for ever.
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
  if (net_ != nullptr) net_->stop();  // the worker may wait for pages
  worker_->join();
  if (loader_ != nullptr) loader_->stop();
  {
    const std::lock_guard<std::mutex> lock(over_mutex);
    over = true;
  }
  over_changed.notify_all();
  watch.join();
}

// Waits for room in the socket as long as the engine would wait for us.
Status WorkerServer::send(WireType type, const WireBytes& payload, std::vector<OwnedFd> files) {
  channel_.queue(type, payload, std::move(files));
  const Clock::time_point limit = Clock::now() + std::chrono::milliseconds(std::max(setup_.timeout_ms, 1));
  for (;;) {
    OTR_RETURN_IF_ERROR(channel_.flush());
    if (channel_.queued_bytes() == 0) return {};
    ++full_sockets_;
    if (Clock::now() >= limit) return Status(StatusCode::kTimeout, "the engine does not read");
    end_with_parent();
    wait_for_channel(channel_, true, -1, ms_until(std::min(limit, Clock::now() + kParentPeriod)));
  }
}

// ---- Proofs --------------------------------------------------------------------------------------------------------------

void WorkerServer::pass(ProtocolStep step) {
  if (const WorkerFault* fault = faults_->strike(step); fault != nullptr) strike(*fault);
}

void WorkerServer::strike(const WorkerFault& fault) {
  while (fault.kind == FaultKind::kHang) pause();
  if (fault.kind == FaultKind::kLate) std::this_thread::sleep_for(std::chrono::milliseconds(setup_.timeout_ms / 2));
  const std::lock_guard<std::recursive_mutex> lock(mutex_);
  const SampleEnd liar = {.group = ~uint64_t{0}, .sample = 1, .reason = OTR_FINISH_STOP, .error = {}};
  WireBytes lie;
  encode_report({.load = {},
                 .stats = {},
                 .progress = {},
                 .finished = {liar},
                 .given = {},
                 .files = {},
                 .answered = {},
                 .lent = {},
                 .replicas = {},
                 .dropped = {}},
                &lie);
  switch (fault.kind) {
    case FaultKind::kHang:
    case FaultKind::kLate: return;
    case FaultKind::kTear:
      channel_.queue_half(WireType::kReport, lie);
      (void)channel_.flush();
      [[fallthrough]];
    case FaultKind::kDie: (void)raise(SIGKILL); return;
    case FaultKind::kCorrupt: channel_.corrupt_next(); return;
    case FaultKind::kLie:
      if (fault.step == ProtocolStep::kReport)
        pending_.finished.insert(pending_.finished.begin(), liar);  // before what is true
      else (void)send(WireType::kReport, lie);
      return;
    case FaultKind::kRefuse: throw std::bad_alloc();
  }
}

Status serve_worker(int fd) {
  if (fcntl(fd, F_GETFD) < 0) return invalid_argument("file " + std::to_string(fd) + " is not open");
  (void)fcntl(fd, F_SETFD, FD_CLOEXEC);
  WorkerServer server{OwnedFd(fd)};
  return server.run();
}

}  // namespace otr
