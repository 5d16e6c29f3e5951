// What a worker process tells.
#include <unistd.h>

#include <exception>

#include "runtime/kv_file.h"
#include "runtime/worker_server_impl.h"

namespace otr {

void WorkerServer::report(int32_t, const WorkerStats& stats, const WorkerLoad& load, WorkerReport* report) try {
  ++turns_;
  pass(ProtocolStep::kTick);
  const std::lock_guard<std::recursive_mutex> lock(mutex_);
  stats_ = stats;
  pending_.load = load;
  has_news_ = true;
  take(report);
  const Clock::time_point now = Clock::now();
  // What one replica has found saves the others its computing; what one on trial has found is not to be blamed on it.
  const bool is_urgent = !pending_.finished.empty() || !pending_.given.empty() || pending_.answered || pending_.lent ||
                         !races_.empty() || tries_ || unreported_ >= kMostUnreported;
  stats_due_ = stats_due_ || !pending_.finished.empty() || now - counted_ >= kStatsPeriod;
  if (is_urgent || now - reported_ >= kReportPeriod) send_report();
} catch (const std::exception& e) {
  broke(status_of(e));
}

void WorkerServer::take(WorkerReport* report) {
  Progress& to = pending_.progress;
  const Progress& from = report->progress;
  unreported_ += from.longest();
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
      if (!s->race->over()) races_.insert_or_assign({s->group->id, s->sample}, s->race);  // it may have ended in the same tick
      continue;
    }
    pending_.given.push_back({.group = s->group->id,
                              .sample = s->sample,
                              .to = s->goes_to,
                              .num_blocked = static_cast<int32_t>(s->group->blocked.size())});
    give_pages(s.get(), &pending_.given.back());
    s->group->disband();
  }
  if (report->answered) pending_.answered = report->answered;
}

// What the sequence has computed goes along in a file, or stays here as a parcel. Nothing does where the pages were taken back
// meanwhile, or where the report has as many files as may go with it: then it is computed anew.
void WorkerServer::give_pages(Sequence* s, SampleGiven* given) {
  constexpr size_t kMostFiles = 64;
  if (s->lease == nullptr) return;
  const std::shared_ptr<LentPages> lent = std::static_pointer_cast<LentPages>(std::exchange(s->lease, nullptr));
  if (lent->over()) return lent->end();
  if (const PageNet::Parcel parcel = net_ != nullptr ? net_->offer(lent) : PageNet::Parcel(); parcel.number != 0) {
    given->generation = parcel.generation;
    given->parcel = parcel.number;
    given->num_positions = lent->num_positions();
    return;  // it ends when nobody pulls from it any more
  }
  OwnedFd file;
  if (files_.size() < kMostFiles)
    file = write_kv_file(kv_file_name(s->group->id, s->sample), lent->pages(), lent->num_positions(), &worker_->target());
  lent->end();
  if (file.get() < 0) return;
  given->num_positions = lent->num_positions();
  files_.push_back(std::move(file));
}

void WorkerServer::tell(const NetNews& news) try {
  if (news.kind == NetNews::Kind::kPull) ++turns_;  // a tick may have several, one after the other
  const std::lock_guard<std::recursive_mutex> lock(mutex_);
  net_bytes_.clear();
  encode_net_news(news, &net_bytes_);
  if (!send(WireType::kNetNews, net_bytes_).ok()) worker_->mailbox().stop();
} catch (const std::exception& e) {  // what the engine does not hear others would wait for
  broke(status_of(e));
}

// Not by return: the worker's thread waits for pages that something may write to, and would go on with them.
void WorkerServer::end_process(const Status& why) {
  try {
    const std::lock_guard<std::recursive_mutex> lock(mutex_);
    net_bytes_.clear();
    encode_failed(why, &net_bytes_);
    (void)send(WireType::kFailed, net_bytes_);
  } catch (const std::exception&) {  // no memory: the engine sees the socket closed
  }
  _exit(1);
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
    pending_.stats->full_sockets = full_sockets_;
    counted_ = reported_;
    has_news_ = false;
  }
  bytes_.clear();
  encode_report(pending_, &bytes_);
  pending_.clear();
  unreported_ = 0;
  if (!send(WireType::kReport, bytes_, std::exchange(files_, {})).ok())
    worker_->mailbox().stop();  // nobody is there to work for
  pass(ProtocolStep::kReported);
}

void WorkerServer::tries(const Sequence* s) try {
  const std::lock_guard<std::recursive_mutex> lock(mutex_);
  if (!pending_.progress.empty()) send_report();  // what the others have is safe
  tries_ = s != nullptr;
  bytes_.clear();
  encode_name(tries_ ? SampleName{.group = s->group->id, .sample = s->sample} : SampleName(), &bytes_);
  if (!send(WireType::kTries, bytes_).ok()) worker_->mailbox().stop();
} catch (const std::exception& e) {
  broke(status_of(e));
}

void WorkerServer::rested() try {
  ++turns_;
  announce_rest();
  if (links_ != nullptr) links_->ring();  // else what it has counted may wait for a heartbeat: see tell_counts()
} catch (const std::exception& e) {
  broke(status_of(e));
}

void WorkerServer::announce_rest() {
  const std::lock_guard<std::recursive_mutex> lock(mutex_);
  // What it has followed before it rests, read before: an order that comes in between wakes it.
  if (announced_ == followed_ || !worker_->mailbox().at_rest()) return;
  pass(ProtocolStep::kRest);
  // Who drafts for others rests after every window: tell_counts() tells what it has counted, but in a pause, whose caller may
  // read it.
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
void WorkerServer::broke(const Status& why) {
  {
    const std::lock_guard<std::recursive_mutex> lock(mutex_);
    bytes_.clear();
    encode_failed(why, &bytes_);
    (void)send(WireType::kFailed, bytes_);
  }
  _exit(1);
}

}  // namespace otr
