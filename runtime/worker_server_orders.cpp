// What a worker process is told.
#include <algorithm>
#include <string>

#include "runtime/kv_file.h"
#include "runtime/worker_server_impl.h"

namespace otr {

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
    case WireType::kEndStep:
      pass(ProtocolStep::kEndStep);
      mailbox.end_step();
      return {};
    case WireType::kPause:
      pass(ProtocolStep::kPause);
      mailbox.pause();
      return {};
    case WireType::kResume:
      pass(ProtocolStep::kResume);
      mailbox.resume();
      return {};
    case WireType::kWeights: pass(ProtocolStep::kWeights); return change_weights();
    case WireType::kWithdraw: pass(ProtocolStep::kWithdraw); return withdraw();
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
    case WireType::kHistory: {
      pass(ProtocolStep::kHistory);
      OTR_ASSIGN_OR_RETURN(std::vector<OwnedFd> file, channel_.take_files(1));
      if (history_ == nullptr) return bad_input("there is nobody to draft from a history");
      if (file.front().get() >= 0) loader_->take(std::move(file.front()));  // else it drafts from what it has
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
    case WireType::kNetOrder: {
      pass(ProtocolStep::kNetOrder);
      OTR_ASSIGN_OR_RETURN(const NetOrder order, decode_net_order(frame.payload, setup_.num_workers));
      if (net_ == nullptr) return bad_input("there is no net");
      net_->follow(order);
      return {};
    }
    default: return bad_input("the engine sends no order");
  }
}

// The engine has seen it rest, or it has just begun: then it rests soon.
Status WorkerServer::await_rest() {
  const Clock::time_point limit = Clock::now() + std::chrono::milliseconds(setup_.timeout_ms);
  while (!worker_->mailbox().at_rest()) {
    if (Clock::now() >= limit) return bad_input("a worker that runs is told what is for one at rest");
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return {};
}

Status WorkerServer::change_weights() {
  OTR_RETURN_IF_ERROR(await_rest());
  worker_->target().weights_changed();
  return {};
}

// The engine has all that was reported, and gives the samples anew.
Status WorkerServer::withdraw() {
  OTR_RETURN_IF_ERROR(await_rest());
  {
    SequenceQueue withdrawn;
    worker_->withdraw(&withdrawn);
  }
  const std::lock_guard<std::recursive_mutex> lock(mutex_);
  races_.clear();
  pending_.load = worker_->load();
  has_news_ = true;
  return {};
}

StartLimits WorkerServer::start_limits() const {
  const ModelConfig& config = worker_->target().config();
  return {.vocab_size = config.vocab_size,
          .context_limit = context_limit(config),
          .num_pages = worker_->target().page_pool().num_pages()};
}

Status WorkerServer::start(WireView payload) {
  StartPages pages;
  OTR_ASSIGN_OR_RETURN(std::unique_ptr<Sequence> s, decode_start(payload, start_limits(), &pages));
  if (pages.num_positions > 0) OTR_RETURN_IF_ERROR(take_pages(pages, s.get()));
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

// Whatever is wrong with the file, the sequence is not: it is computed anew then.
Status WorkerServer::take_pages(const StartPages& pages, Sequence* s) {
  if (pages.parcel != 0) {
    const RemotePages passed(pages.worker, pages.generation, pages.parcel, pages.num_positions);
    if (net_ != nullptr) (void)KvRebuild::take(std::make_shared<RemotePages>(net_.get(), passed), s);
    return {};
  }
  OTR_ASSIGN_OR_RETURN(std::vector<OwnedFd> file, channel_.take_files(1));
  Result<std::shared_ptr<KvFile>> opened = KvFile::open(std::move(file.front()), kv_file_name(s->group->id, s->sample),
                                                        pages.num_positions, worker_->target().kv_layout());
  if (opened.ok()) (void)KvRebuild::take(std::move(opened.value()), s);
  return {};
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

}  // namespace otr
