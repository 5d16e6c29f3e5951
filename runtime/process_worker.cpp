#include "runtime/process_worker.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <new>
#include <utility>

#include "kernels/base/descriptor.h"
#include "runtime/kv_file.h"
#include "runtime/page_net.h"

namespace otr {
namespace {

constexpr size_t kMostQueued = size_t{1} << 20;  // bytes: more orders wait where they are
constexpr int64_t kStopMs = 2000;                // for a process to end by itself
constexpr std::chrono::milliseconds kRetry{100};
// A process that has worked comes back at once. One that dies again and again, of what it finds in the system, waits longer
// each time.
constexpr std::chrono::milliseconds kFirstPause{20}, kLongestPause{2000};
constexpr std::chrono::minutes kLongLife{1};

// What goes with a sequence; without a file that was to go it is computed anew.
StartPages start_pages(const Sequence& s, std::vector<OwnedFd>* files) {
  if (s.lease == nullptr) return {};
  StartPages pages{.num_positions = s.lease->num_positions()};
  if (const RemotePages* const remote = s.lease->remote(); remote != nullptr) {
    pages.worker = remote->worker(), pages.generation = remote->generation(), pages.parcel = remote->parcel();
    return pages;
  }
  OwnedFd file = static_cast<const KvFile&>(*s.lease).duplicate();
  if (file.get() < 0) return {};
  files->push_back(std::move(file));
  return pages;
}

}  // namespace

ProcessWorker::ProcessWorker(const ProcessOptions& options)
    : options_(options),
      wake_(above_standard(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK))),
      num_pages_(options.setup.num_pages),
      costs_(options.setup.costs) {
  orders_.relinks.reserve(static_cast<size_t>(options.setup.num_workers));
}

ProcessWorker::~ProcessWorker() {
  stop();
  join();
}

Status ProcessWorker::begin() {
  if (wake_.get() < 0) return io_error("the system refuses an event file for a worker process");
  thread_ = std::thread([this] { run(); });
  return {};
}

Status ProcessWorker::wait_ready() {
  std::unique_lock<std::mutex> lock(mutex_);
  first_.wait(lock, [this] { return first_over_; });  // the thread gives each process start_timeout_ms
  return first_failure_;
}

void ProcessWorker::settle(int32_t num_pages, const std::vector<CostModel>& costs) {
  const std::lock_guard<std::mutex> lock(mutex_);
  num_pages_ = num_pages;
  costs_ = costs;
}

void ProcessWorker::join() {
  if (thread_.joinable()) thread_.join();
}

// ---- The thread: one process after the other -----------------------------------------------------------------------------

Status ProcessWorker::failure(const std::string& what) const {
  return Status(StatusCode::kLost, "worker " + std::to_string(options_.setup.index) + ": " + what);
}

void ProcessWorker::run() {
  for (;;) {
    ++life_;
    Status end;
    bool is_ours = false;  // what ended it is our own
    const Clock::time_point born = Clock::now();
    try {
      end = live();
    } catch (const std::bad_alloc&) {
      end = Status(StatusCode::kOutOfMemory, "out of memory");  // a text that needs none itself
      is_ours = true;
    } catch (const std::exception& e) {
      end = failure(std::string("its engine cannot serve it: ") + e.what());
      is_ours = true;
    }
    // The system kills where it has granted too much.
    const bool was_short = end.code() == StatusCode::kOutOfMemory || process_.was_killed();
    const bool broke = !was_short && !is_ours && !process_.was_ended_from_outside(),
               tried = broke && options_.host->process_is_trying(options_.setup.index);
    process_.kill();
    if (stopping()) break;
    std::unique_lock<std::mutex> lock(mutex_);
    if (!first_over_) {
      state_ = State::kGone;
      first_failure_ = end;
      break;
    }
    const bool was_ready = state_ == State::kReady;
    const bool comes_back = may_come_back(was_ready, was_short, tried, born);
    ++idle_lives_;
    state_ = comes_back ? State::kLost : State::kGone;
    pause_sent_ = false;
    history_due_ = history_.get() >= 0;
    last_order_ = rested_after_ = 0;
    lock.unlock();
    note_lost(end, was_ready && broke, comes_back);
    if (!comes_back) return;
    lock.lock();
    state_ = State::kStarting;
    lock.unlock();
    options_.host->process_rested();  // if it is paused
    pause_before_restart();
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  first_over_ = true;
  first_.notify_all();
}

// One that could not begin is no failure, as long as such do not take longer than a start may.
bool ProcessWorker::may_come_back(bool was_ready, bool was_short, bool tried, Clock::time_point born) {
  if (was_ready) short_since_.reset();
  if (was_ready && Clock::now() - born > kLongLife)
    failures_ = idle_lives_ = 0;  // one that drafts for others finishes nothing itself
  if (tried) return true;         // it was the sample's fault: the machine has run some of it
  if (was_ready || !was_short) return ++failures_ <= options_.max_restarts;
  if (!short_since_) short_since_ = Clock::now();
  return Clock::now() - *short_since_ < std::chrono::milliseconds(options_.start_timeout_ms);
}

// Samples are queued again whatever it takes: without memory for that, once there is some.
void ProcessWorker::note_lost(const Status& why, bool broke, bool comes_back) {
  for (;;) {
    try {
      return options_.host->process_lost(options_.setup.index, why, broke, comes_back);
    } catch (const std::bad_alloc&) {
      if (stopping()) return;
      std::this_thread::sleep_for(kRetry);
    }
  }
}

void ProcessWorker::pause_before_restart() {
  constexpr int32_t kMostDoublings = 16;
  if (idle_lives_ < 2) return;
  const auto pause = std::min(kFirstPause * (1 << std::min(idle_lives_ - 2, kMostDoublings)), kLongestPause);
  std::unique_lock<std::mutex> lock(mutex_);
  stopped_.wait_for(lock, pause, [this] { return stop_; });
}

// A report is the engine's once it is decoded: what there is no memory for is given again when there may be some.
Status ProcessWorker::pass_on_report() {
  for (;;) {
    const Status taken = options_.host->process_report(options_.setup.index, &report_);
    if (taken.code() != StatusCode::kOutOfMemory || stopping()) return taken;
    std::this_thread::sleep_for(kRetry);
  }
}

// A process from its start to its end: ok if that was ordered.
Status ProcessWorker::live() {
  process_ = ChildProcess();
  OwnedFd socket;
  Result<ChildProcess> spawned = ChildProcess::spawn(options_.executable, &socket);
  OTR_ASSIGN_OR_RETURN(process_, std::move(spawned));
  const std::string who = "process " + std::to_string(process_.pid());
  WorkerChannel channel(std::move(socket));
  if (options_.setup.proofs.socket_bytes > 0) channel.shrink(options_.setup.proofs.socket_bytes);
  Status status = set_up(&channel);
  if (status.ok()) status = serve(&channel);
  if (status.ok()) say_stop(&channel);
  if (status.ok() || status.code() == StatusCode::kUnsupported || status.code() == StatusCode::kOutOfMemory) return status;
  constexpr int64_t kDyingMs = 1000;  // it may be about to end of what it has just said; a driver has much to tidy up
  std::string how = status.message();
  if (status.code() == StatusCode::kIoError && process_.wait(kDyingMs)) how = process_.end();
  return failure(who + ": " + how);
}

Status ProcessWorker::set_up(WorkerChannel* channel) {
  WorkerSetup setup = options_.setup;
  setup.life = life_;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    setup.num_pages = num_pages_;
    setup.costs = costs_;
  }
  std::vector<int> files;
  bytes_.clear();
  encode_setup(setup, &bytes_, &files);
  std::vector<OwnedFd> copies;
  for (const int file : files) {
    copies.emplace_back(duplicate_descriptor(file));
    if (copies.back().get() < 0) return Status(StatusCode::kOutOfMemory, "the system refuses a worker process its files");
  }
  channel->queue(WireType::kSetup, bytes_, std::move(copies));
  const Clock::time_point limit = Clock::now() + std::chrono::milliseconds(options_.start_timeout_ms);
  for (hear_wake(); !stopping(); hear_wake()) {  // in this order: a stop that comes between them is heard the next time
    const Status sent = channel->flush();
    OTR_RETURN_IF_ERROR(receive(channel));  // first: it may say why it takes no more
    OTR_RETURN_IF_ERROR(sent);
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (state_ == State::kReady) break;
    }
    if (Clock::now() >= limit)
      return Status(StatusCode::kTimeout, "was not ready within " + std::to_string(options_.start_timeout_ms) + " ms");
    wait_for_channel(*channel, channel->queued_bytes() > 0, wake_.get(), ms_until(limit));
  }
  heard_ = turned_ = Clock::now();
  was_at_rest_ = true;
  return {};
}

// Until stop(), or something is wrong.
Status ProcessWorker::serve(WorkerChannel* channel) {
  for (hear_wake(); !stopping(); hear_wake()) {
    const bool waits_for_room = !send_orders(channel);
    const Status sent = channel->flush();
    OTR_RETURN_IF_ERROR(receive(channel));
    OTR_RETURN_IF_ERROR(sent);
    OTR_RETURN_IF_ERROR(check_signs(Clock::now()));
    const bool to_write = channel->queued_bytes() > 0;
    full_sockets_ += to_write;
    if (!to_write && (waits_for_room || has_orders())) continue;
    const Clock::time_point limit = std::min(heard_, turned_) + std::chrono::milliseconds(options_.timeout_ms);
    wait_for_channel(*channel, to_write, wake_.get(), ms_until(limit));
  }
  return {};
}

Status ProcessWorker::check_signs(Clock::time_point now) {
  const std::chrono::milliseconds limit(options_.timeout_ms);
  if (was_at_rest_) turned_ = now;
  if (now - heard_ > limit)
    return Status(StatusCode::kTimeout, "was not heard of for " + std::to_string(options_.timeout_ms) + " ms");
  if (now - turned_ > limit)
    return Status(StatusCode::kTimeout, "came no further for " + std::to_string(options_.timeout_ms) + " ms");
  return {};
}

// The next order, with its contents in bytes_, but for a start, which is *s. A pause before all else and a resume after: what
// comes between them arrives together. None: nothing is to be said.
std::optional<WireType> ProcessWorker::take_order(std::unique_ptr<Sequence>* s, std::vector<OwnedFd>* files) {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::optional<WireType> type;
  bytes_.clear();
  if (paused_ && !pause_sent_) {
    type = WireType::kPause, pause_sent_ = true;
  } else if (OwnedFd history = std::exchange(history_due_, false) ? history_.duplicate() : OwnedFd(); history.get() >= 0) {
    files->push_back(std::move(history));
    type = WireType::kHistory;
  } else {
    type = orders_.take(&bytes_, s);
  }
  if (!type && !paused_ && pause_sent_) type = WireType::kResume, pause_sent_ = false;
  if (type) ++last_order_;  // the number that the frame will have
  return type;
}

// False: the socket has to take some first.
bool ProcessWorker::send_orders(WorkerChannel* channel) {
  const int32_t forced = options_.setup.proofs.socket_bytes;
  const size_t most = forced > 0 ? static_cast<size_t>(forced) : kMostQueued;
  for (;;) {
    if (channel->queued_bytes() > most) return false;
    std::unique_ptr<Sequence> s;
    std::vector<OwnedFd> files;
    const std::optional<WireType> type = take_order(&s, &files);
    if (!type) return true;
    if (s != nullptr) {
      encode_start(*s, &bytes_, start_pages(*s, &files));
      if (s->num_waiting() > 0) s->group->disband();
    }
    channel->queue(*type, bytes_, std::move(files));
  }
}

Status ProcessWorker::receive(WorkerChannel* channel) {
  OTR_ASSIGN_OR_RETURN(const bool is_open, channel->fill());
  for (;;) {
    WorkerChannel::Frame frame;
    OTR_ASSIGN_OR_RETURN(const bool has_frame, channel->next(&frame));
    if (!has_frame) break;
    heard_ = Clock::now();
    OTR_RETURN_IF_ERROR(follow(frame, channel));
  }
  if (is_open) return {};
  return io_error(channel->is_torn() ? "its last message is torn" : "has closed its socket");
}

Status ProcessWorker::follow(const WorkerChannel::Frame& frame, WorkerChannel* channel) {
  const int32_t worker = options_.setup.index;
  switch (frame.type) {
    case WireType::kReady: {
      OTR_ASSIGN_OR_RETURN(const ReadyMessage ready, decode_ready(frame.payload));
      options_.host->process_ready(worker, ready);
      {
        const std::lock_guard<std::mutex> lock(mutex_);
        if (state_ == State::kReady) return bad_input("it says twice that it is ready");
        state_ = State::kReady;
        last_order_ = rested_after_ = 1;  // the setup
        first_over_ = true;               // here: what comes in the same read may be its end, and is not that of its start
        first_.notify_all();
      }
      options_.host->process_rested();  // unless orders wait
      return {};
    }
    case WireType::kReport: {
      OTR_RETURN_IF_ERROR(decode_report(frame.payload, options_.setup.num_workers, &report_));
      if (!report_.finished.empty()) failures_ = 0;
      if (!report_.finished.empty() || !report_.progress.segments.empty()) idle_lives_ = 0;
      const auto num_files =
          std::count_if(report_.given.begin(), report_.given.end(), [](const SampleGiven& g) { return g.has_file(); });
      OTR_ASSIGN_OR_RETURN(report_.files, channel->take_files(static_cast<size_t>(num_files)));
      const Status taken = pass_on_report();
      heard_ = turned_ = Clock::now();  // it may have taken long
      return taken;
    }
    case WireType::kRested: {
      OTR_ASSIGN_OR_RETURN(const uint64_t number, decode_u64(frame.payload));
      {
        const std::lock_guard<std::mutex> lock(mutex_);
        if (number > last_order_) return bad_input("it has followed an order that it was not given");
        rested_after_ = std::max(rested_after_, number);
      }
      was_at_rest_ = true;
      options_.host->process_rested();
      return {};
    }
    case WireType::kHeartbeat: {
      OTR_ASSIGN_OR_RETURN(const Heartbeat heartbeat, decode_heartbeat(frame.payload));
      was_at_rest_ = heartbeat.at_rest;
      options_.host->process_rested();  // or not: what lacked memory is tried again
      if (std::exchange(turns_, heartbeat.turns) != heartbeat.turns) turned_ = heard_;
      return {};
    }
    case WireType::kTries: {
      OTR_ASSIGN_OR_RETURN(const SampleName name, decode_name(frame.payload));
      options_.host->process_tries(worker, name);
      return {};
    }
    case WireType::kLinks: return options_.host->process_links(worker, frame.payload);
    case WireType::kTrace: return options_.host->process_trace(worker, frame.payload);
    case WireType::kNetNews: return options_.host->process_net(worker, frame.payload);
    case WireType::kFailed: return decode_failed(frame.payload);
    default: return bad_input("it sends an order");
  }
}

void ProcessWorker::say_stop(WorkerChannel* channel) {
  channel->queue(WireType::kStop, {});
  const Clock::time_point limit = Clock::now() + std::chrono::milliseconds(kStopMs);
  while (Clock::now() < limit) {
    const Result<bool> is_open = channel->fill();  // nobody wants what it still says, but it must be able to say it
    if (!channel->flush().ok() || !is_open.ok() || !is_open.value()) break;
    WorkerChannel::Frame frame;
    for (Result<bool> has_frame = true; has_frame.ok() && has_frame.value();) has_frame = channel->next(&frame);
    wait_for_channel(*channel, channel->queued_bytes() > 0, -1, ms_until(limit));
  }
  (void)process_.wait(std::max<int64_t>(1, ms_until(limit)));
}

}  // namespace otr
