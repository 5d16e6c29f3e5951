// Workers that are processes: how they begin, what their reports mean, and what becomes of samples whose process is lost.
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <new>
#include <utility>

#include "kernels/base/descriptor.h"
#include "runtime/engine.h"
#include "runtime/history_file.h"
#include "runtime/kv_file.h"
#include "runtime/page_net.h"
#include "runtime/race.h"
#include "runtime/worker_share.h"

namespace otr {

Status check_process_options(const EngineOptions& o) {
  if (o.worker_executable.empty()) return invalid_argument("worker_processes needs a worker_executable");
  if (o.worker_timeout_ms < 1) return invalid_argument("worker_timeout_ms must be at least 1");
  if (o.max_worker_restarts < 0) return invalid_argument("max_worker_restarts must not be negative");
  const NcclOptions& n = o.nccl;
  if (!n.library.empty() && o.num_workers < 2) return unsupported("NCCL: there is one worker process alone");
  constexpr int32_t kShare = PageNet::kTimeoutShare;
  if (!n.library.empty() && o.worker_timeout_ms < kShare) {
    return invalid_argument("worker_timeout_ms " + std::to_string(o.worker_timeout_ms) + " must be at least " +
                            std::to_string(kShare) + " with an nccl_library");
  }
  if (!n.library.empty() && n.patience_ms > o.worker_timeout_ms / kShare) {
    return invalid_argument("nccl_timeout_ms " + std::to_string(n.patience_ms) + " must be at most " +
                            std::to_string(o.worker_timeout_ms / kShare) + ", which is worker_timeout_ms / " +
                            std::to_string(kShare));
  }
  if (n.id && (n.first_rank < 0 || n.num_ranks < n.first_rank || n.num_ranks - n.first_rank < o.num_workers)) {
    return invalid_argument("nccl_first_rank " + std::to_string(n.first_rank) + " and " + std::to_string(o.num_workers) +
                            " workers are not ranks of " + std::to_string(n.num_ranks));
  }
  if (!o.custom_drafters.empty() || o.device.kernels != nullptr)
    return unsupported("drafters and kernels of the program's own in worker processes");
  if (o.dial.on()) return unsupported("an acceptance dial in worker processes");
  if (!o.pace) return {};
  if (o.pace->scale == 0)
    return invalid_argument("pace with worker_processes needs a time scale: time cannot stand still for other processes");
  // Who holds a pass that long says nothing meanwhile.
  const double rows = o.max_batch + o.prefill_chunk, pass_ms = o.pace->scale * o.pace->target.verify_ms(o.max_batch, rows, 0);
  if (2 * pass_ms < o.worker_timeout_ms) return {};
  return invalid_argument("a paced pass may take " + std::to_string(std::llround(pass_ms)) +
                          " ms, and worker_timeout_ms is less than twice that");
}

// What all processes have alike. The engine's own worker has loaded the models and measured the costs; it keeps out of the way
// from now on. On GPUs the first process measures costs, and how many pages there is room for.
WorkerSetup Engine::process_setup(const WorkerOptions& w) {
  const Worker& model = first_worker();
  WorkerSetup s;
  s.build = own_build();
  s.num_workers = options_.num_workers;
  s.prefill_chunk = options_.prefill_chunk;
  s.policy = options_.policy;
  s.drafters = w.speculation.policy.drafters;
  s.isa = isa();
  if (on_gpu_processes()) {
    s.num_pages = options_.device.target.num_pages / options_.num_workers;
    s.kv_bytes = options_.device.target.kv_bytes / static_cast<uint64_t>(options_.num_workers);
    s.profile = options_.profile;
    s.costs = options_.costs;
    s.nccl_library = options_.nccl.library;
    s.nccl_patience_ms = options_.nccl.patience_ms;
  } else {
    s.num_pages = model.target().page_pool().num_pages();
    s.costs = costs_;
  }
  s.pin_threads = options_.device.pin_threads;
  s.timeout_ms = options_.worker_timeout_ms;
  s.proofs = options_.proofs;
  s.pace = options_.pace;
  if (options_.pace) {
    s.pace_start_ns = pace_clock_->start_ns();
    s.proofs.rebuild = paced_rebuild(*options_.pace, model.target().page_bytes(), s.proofs.rebuild);
  }
  s.target = model.target().share();
  s.models = model.speculator().shared_models();
  if (std::find(s.drafters.begin(), s.drafters.end(), "history") != s.drafters.end()) s.history = options_.history;
  s.traces = trace_ != nullptr;
  s.engine_batch = options_.max_batch;
  if (options_.num_draft_workers == 0) return s;
  s.num_draft_workers = options_.num_draft_workers;
  s.decoupled = w.speculation.decoupled;
  s.draft_model = draft_model_;
  if (model.speculator().model_of(draft_model_) == nullptr) {
    DrafterModel drafter = w.server.model;
    drafter.shared = model.server()->model().share();
    s.models.push_back(std::move(drafter));
  }
  return s;
}

Status Engine::add_processes(const WorkerOptions& w) {
  const int32_t num_workers = options_.num_workers;
  ProcessOptions p{.executable = options_.worker_executable,
                   .timeout_ms = options_.worker_timeout_ms,
                   .start_timeout_ms = std::max(options_.worker_start_timeout_ms, options_.worker_timeout_ms),
                   .max_restarts = options_.max_worker_restarts,
                   .setup = process_setup(w),
                   .host = this};
  drafts_history_ = p.setup.history != HistoryContent::kNone;
  if (options_.num_draft_workers > 0)
    accounts_.assign(static_cast<size_t>(num_workers),
                     LinkAccount(static_cast<uint32_t>(link_capacity(options_.max_batch, options_.proofs))));
  for (int32_t i = 0; i < num_workers; ++i) {
    const WorkerShare share(options_, w.speculation.policy, i);
    p.setup.index = i;
    p.setup.max_batch = share.max_batch;
    p.setup.max_draft_rows = share.max_draft_rows;
    p.setup.num_threads = share.num_threads;
    p.setup.first_cpu = num_workers > 1 ? share.first_cpu : -1;
    if (on_gpu_processes()) p.setup.gpu = options_.gpus[static_cast<size_t>(i)];
    processes_.push_back(std::make_unique<ProcessWorker>(p));
    ports_.push_back(processes_.back().get());
  }
  if (!options_.nccl.library.empty()) make_net();
  OTR_RETURN_IF_ERROR(begin_processes());
  const std::lock_guard<std::mutex> lock(mutex_);
  plan_step();
  return {};
}

void Engine::make_net() {
  auto spare = std::make_shared<SpareId>([library = options_.nccl.library] { return make_nccl_id(library); },
                                         std::chrono::milliseconds(options_.nccl.patience_ms));
  NetOptions o{.make_id = [spare = std::move(spare)] { return spare->take(); },
               .first_id = options_.nccl.id,
               .num_ranks = options_.nccl.num_ranks,
               .first_rank = options_.nccl.first_rank};
  net_.emplace(options_.num_workers, std::move(o), [this](int32_t worker, const NetOrder& order) {
    WireBytes bytes;
    encode_net_order(order, &bytes);
    processes_[static_cast<size_t>(worker)]->hand_on(WireType::kNetOrder, bytes);
  });
}

Status Engine::process_net(int32_t worker, WireView payload) {
  OTR_ASSIGN_OR_RETURN(const NetNews news, decode_net_news(payload, options_.num_workers));
  const std::lock_guard<std::mutex> lock(mutex_);
  return net_ ? net_->news(worker, news) : bad_input("there is no net");
}

// On GPUs the first one by itself: what it has found, pages and costs, the others, and its own successors, are told. What one
// worker can run, all can.
Status Engine::begin_processes() {
  auto first = processes_.begin();
  if (on_gpu_processes()) {
    OTR_RETURN_IF_ERROR((*first)->begin());
    OTR_RETURN_IF_ERROR((*first)->wait_ready());
    const std::lock_guard<std::mutex> lock(mutex_);
    limits_.num_pages = facts_.front().num_pages;
    for (const auto& process : processes_) process->settle(facts_.front().num_pages, costs_);
    ++first;
  }
  for (auto process = first; process != processes_.end(); ++process) OTR_RETURN_IF_ERROR((*process)->begin());
  for (auto process = first; process != processes_.end(); ++process) OTR_RETURN_IF_ERROR((*process)->wait_ready());
  return {};
}

// Processes draft from what the history was when the last group came. Where there is no room to say it, they draft from what
// they had.
void Engine::share_history() try {
  if (!drafts_history_) return;
  const std::shared_ptr<const HistoryIndex> index = history_->index();
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (index == shared_history_) return;
    shared_history_ = index;
  }
  const OwnedFd file(above_standard(memfd_create("otr-history", MFD_CLOEXEC)));
  if (file.get() < 0 || !write_history(file.get(), *index).ok()) return;
  for (const auto& process : processes_) process->set_history(file.duplicate());
} catch (const std::bad_alloc&) {
}

void Engine::process_ready(int32_t worker, const ReadyMessage& ready) {
  const std::lock_guard<std::mutex> lock(mutex_);
  facts_[static_cast<size_t>(worker)] = ready.facts;
  costs_ = ready.costs;
  if (net_) net_->ready(worker);
  placement_.report(worker, ready.load);
}

// Takes one after the other and drops what is taken: out of memory, the rest is still there.
template <typename T, typename Take>
Status take_each(std::vector<T>* all, const Take& take) {
  size_t taken = 0;
  Status status;
  try {
    for (; taken < all->size() && status.ok(); ++taken) status = take((*all)[taken]);
  } catch (const std::bad_alloc&) {
    status = Status(StatusCode::kOutOfMemory, "");
  }
  all->erase(all->begin(), all->begin() + static_cast<std::ptrdiff_t>(taken));
  return status;
}

Status Engine::process_report(int32_t worker, ProcessReport* from) {
  const std::lock_guard<std::mutex> lock(mutex_);
  WorkerReport report;
  // A sample that ends with this very report does not race.
  const auto ends = [from](const SampleName& name) {
    const auto is_it = [&name](const auto& other) { return other.group == name.group && other.sample == name.sample; };
    return std::any_of(from->finished.begin(), from->finished.end(), is_it) ||
           std::any_of(from->dropped.begin(), from->dropped.end(), is_it);
  };
  counted_before_[static_cast<size_t>(worker)].replicas -= static_cast<int64_t>(std::erase_if(from->replicas, ends));
  OTR_RETURN_IF_ERROR(ledger_.append(worker, from->progress, limits_.vocab_size));
  from->progress.clear();
  const Status ended = take_each(&from->finished, [&](const SampleEnd& end) { return take_end(worker, end, &report); });
  pass_leaps(worker);
  Status given;
  if (ended.ok()) {
    given = take_each(&from->given, [&](const SampleGiven& moved) {
      OwnedFd none;
      const bool has_file = moved.has_file();
      OTR_RETURN_IF_ERROR(take_given(worker, moved, has_file ? &from->files.front() : &none, &report));
      if (has_file) from->files.erase(from->files.begin());
      return Status();
    });
  }
  if (ended.ok() && given.ok()) given = take_replicas(worker, from, &report);
  if (ended.code() == StatusCode::kOutOfMemory || given.code() == StatusCode::kOutOfMemory) {
    follow_up(worker, from->load, &report);
    return Status(StatusCode::kOutOfMemory, "");
  }
  if (from->answered && (from->answered->from != worker || !placement_.is_ordered(*from->answered))) {
    if (given.ok()) given = bad_input("it answers what nobody ordered");
  } else {
    report.answered = from->answered;
  }
  if (from->stats) {
    WorkerStats& stats = stats_[static_cast<size_t>(worker)];
    stats = counted_before_[static_cast<size_t>(worker)];
    stats.add(*from->stats);
    if (trace_ != nullptr) stats.trace_error = trace_->error();
  }
  follow_up(worker, from->load, &report);  // what was right of it counts
  try_suspects();
  if (trace_ != nullptr && unfinished_.empty()) trace_->flush();  // whoever takes the last sample finds it complete
  return ended.ok() ? given : ended;
}

// A worker drafts for others, or has somebody draft for it: what they say goes through here, checked and unchanged.
Status Engine::process_links(int32_t worker, WireView payload) {
  OTR_ASSIGN_OR_RETURN(
      const LinkMessage message,
      decode_link(
          payload,
          {.start = {.vocab_size = limits_.vocab_size, .context_limit = limits_.context_limit, .num_pages = limits_.num_pages},
           .num_workers = options_.num_workers,
           .capacity = static_cast<uint32_t>(link_capacity(options_.max_batch, options_.proofs))}));
  const std::lock_guard<std::mutex> lock(mutex_);
  const bool has_link = !accounts_.empty() && server_of(message.link) != message.link;
  const int32_t server = has_link ? server_of(message.link) : -1;
  if (!has_link || (worker != message.link && worker != server)) return bad_input("it speaks on a link that is not its own");
  LinkAccount& account = accounts_[static_cast<size_t>(message.link)];
  if (message.generation != account.generation()) return {};  // it has not heard yet that the other end was lost
  OTR_RETURN_IF_ERROR(account.pass(message, worker == server));
  processes_[static_cast<size_t>(worker == server ? message.link : server)]->hand_on(WireType::kLinked, payload);
  return {};
}

Status Engine::process_trace(int32_t worker, WireView payload) {
  if (trace_ == nullptr) return bad_input("it tells of ticks that nobody asked for");
  const int64_t now_ns =
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
  return decode_ticks(payload, worker, now_ns, [this](const TraceTick& tick) { trace_->tick(tick); });
}

// The sample's result is made before the ledger says that it is finished: nothing is lost between the two.
Status Engine::take_end(int32_t worker, const SampleEnd& end, WorkerReport* to) {
  const LedgerGroup* const group = ledger_.find(end.group);
  const LedgerSample* const sample = group != nullptr ? group->find(end.sample) : nullptr;
  std::unique_ptr<Sequence> s;
  WireBytes name;
  if (sample != nullptr) {
    s = restore(*group, *sample);
    s->finish_reason = end.reason;
    s->error = end.error;
    if (end.reason == OTR_FINISH_ERROR && s->group->is_score) s->raw_logprobs.clear();
    encode_name({.group = end.group, .sample = end.sample}, &name);
  }
  OTR_ASSIGN_OR_RETURN(const bool is_its_end, ledger_.finish(worker, end.group, end.sample, end.reason, end.error));
  if (!is_its_end) {  // it has counted what it lost as won
    WorkerStats& before = counted_before_[static_cast<size_t>(worker)];
    --before.finished_samples;
    ++before.lost_replicas;
    return {};
  }
  note_end(worker, s.get());
  to->finished.push(std::move(s));
  try {
    for (const int32_t other : sample->replicas) processes_[static_cast<size_t>(other)]->hand_on(WireType::kDrop, name);
  } catch (const std::bad_alloc&) {  // whoever has not heard comes to the same end in vain
  }
  return {};
}

Status Engine::take_given(int32_t worker, const SampleGiven& given, OwnedFd* file, WorkerReport* to) {
  const LedgerGroup* group = ledger_.find(given.group);
  const LedgerSample* sample = group != nullptr ? group->find(given.sample) : nullptr;
  if (sample == nullptr || sample->worker != worker || sample->is_over() || !sample->replicas.empty()) {
    return bad_input("it gives a sample that it does not have");
  }
  std::vector<std::unique_ptr<Sequence>> blocked;
  if (given.num_blocked > 0) {
    for (const LedgerSample& other : group->samples) {
      const bool waits = !other.is_over() && other.worker == worker && other.num_accepted() == 0 && &other != sample;
      if (waits) blocked.push_back(restore(*group, other));
    }
  }
  if (static_cast<int32_t>(blocked.size()) != given.num_blocked || (given.num_blocked > 0 && sample->num_accepted() > 0)) {
    return bad_input("it gives samples that do not wait for one another");
  }
  // A worker that is lost is not to get it: whoever has given it has not heard.
  const int32_t to_worker = placement_.is_there(given.to) ? given.to : worker;
  std::unique_ptr<Sequence> s = restore(*group, *sample);
  s->goes_to = to_worker;
  if (file->get() >= 0 && given.num_positions < s->num_tokens())
    s->lease = std::make_shared<KvFile>(std::move(*file), given.num_positions);
  if (given.parcel != 0 && net_ && to_worker != worker && given.num_positions < s->num_tokens()) {
    s->lease = std::make_shared<RemotePages>(worker, given.generation, given.parcel, given.num_positions);
  } else if (given.parcel != 0 && net_) {
    net_->end_parcel(worker, given.generation, given.parcel);
  }
  for (const auto& b : blocked) ledger_.move(given.group, b->sample, worker, to_worker);
  ledger_.move(given.group, given.sample, worker, to_worker);
  if (!blocked.empty()) s->group->blocked = std::move(blocked);  // else others of the group may be on their way to processes
  to->given.push(std::move(s));
  return {};
}

// Replicas that it has lent are made here, of what the ledger has; and those that it has dropped are gone.
Status Engine::take_replicas(int32_t worker, ProcessReport* from, WorkerReport* to) {
  OTR_RETURN_IF_ERROR(
      take_each(&from->dropped, [&](const SampleName& name) { return ledger_.drop(worker, name.group, name.sample); }));
  if (!from->lent) return from->replicas.empty() ? Status() : bad_input("it lends what nobody asked for");
  const Lending& lending = lending_[static_cast<size_t>(from->lent->to)];
  if (!lending.asked || lending.from != worker) return bad_input("it lends to whom it was not told to");
  if (from->lent->rung != lending.rung) return bad_input("it lends of another rung than it was told to");
  OTR_RETURN_IF_ERROR(
      take_each(&from->replicas, [&](const SampleName& name) { return take_replica(worker, *from->lent, name, to); }));
  to->lent = from->lent;
  return {};
}

Status Engine::take_replica(int32_t worker, const Lend& lent, const SampleName& name, WorkerReport* to) {
  const LedgerGroup* group = ledger_.find(name.group);
  const LedgerSample* sample = group != nullptr ? group->find(name.sample) : nullptr;
  const bool is_there = sample != nullptr && sample->is_at(worker) && !sample->is_over();
  if (!is_there && !ledger_.is_straggler(worker, name.group, name.sample))
    return bad_input("it lends a sample that it does not have");
  if (is_there && (group->group->is_score || sample->num_accepted() == 0))
    return bad_input("it lends a sample that cannot race");
  if (!is_there || sample->is_at(lent.to) || !placement_.is_there(lent.to)) {
    --counted_before_[static_cast<size_t>(worker)].replicas;
    return {};
  }
  std::unique_ptr<Sequence> s = restore(*group, *sample);
  s->rung = lending_[static_cast<size_t>(lent.to)].rung;
  s->goes_to = lent.to;
  s->race = std::make_shared<Race>(*s, race_ == RaceMode::kLeapfrog);
  (void)ledger_.lend(name.group, name.sample, s->goes_to, s->race->leaps());
  to->given.push(std::move(s));
  return {};
}

// What the report has brought of samples whose replicas leap, to all others that have one. Out of memory, they find it
// themselves.
void Engine::pass_leaps(int32_t worker) try {
  for (const ProgressSegment& p : ledger_.leaps()) {
    const LedgerGroup* group = ledger_.find(p.group);
    const LedgerSample* sample = group != nullptr ? group->find(p.sample) : nullptr;
    if (sample == nullptr || sample->is_over() || sample->replicas.empty()) continue;
    Progress news;
    news.segments.push_back(p);
    const auto copy = [&p](const auto& from, auto* to) {
      to->assign(from.begin() + p.first, from.begin() + p.first + p.count);
    };
    copy(sample->tokens, &news.tokens);
    copy(sample->logprobs, &news.logprobs);
    copy(sample->raw_logprobs, &news.raw_logprobs);
    WireBytes bytes;
    encode_progress(news, &bytes);
    for (int32_t other = 0; other < options_.num_workers; ++other) {
      if (other != worker && sample->is_at(other)) processes_[static_cast<size_t>(other)]->hand_on(WireType::kLeap, bytes);
    }
  }
} catch (const std::bad_alloc&) {
}

// ---- Loss ----------------------------------------------------------------------------------------------------------------

void Engine::process_rested() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    try_suspects();
  }
  rested();
}

void Engine::process_tries(int32_t worker, const SampleName& name) {
  const std::lock_guard<std::mutex> lock(mutex_);
  suspects_.tries(worker, name, ledger_);
  try_suspects();
}

bool Engine::process_is_trying(int32_t worker) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return suspects_.has_begun_at(worker, ledger_);
}

void Engine::process_lost(int32_t worker, const Status& why, bool broke, bool comes_back) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (stop_) return;
  const size_t w = static_cast<size_t>(worker);
  if (losing_[w]) {  // a second attempt: there was no memory to queue all again
    processes_[w]->discard_starts();
  } else {
    processes_[w]->discard_orders();
    last_loss_ = why.message();
    placement_.lost(worker, comes_back);
    relink(worker, comes_back);
    if (net_) net_->lost(worker, comes_back);
    stats_[w].kv_pages_in_use = stats_[w].kv_pages_leased = stats_[w].drafting.kv_pages_in_use = 0;
    counted_before_[w] = stats_[w];
    if (!comes_back) facts_[w] = {};
    lose_replicas(worker);
    if (broke) suspects_.broke(worker, processes_[w]->max_batch(), ledger_);
    worker_restarts_ += comes_back;
  }
  losing_[w] = true;
  queue_again(worker);
  losing_[w] = false;
  at_rest_changed_.notify_all();
  result_arrived_.notify_all();
}

// What is at the other ends of its links begins anew, with its successor if there is one.
void Engine::relink(int32_t worker, bool comes_back) {
  if (accounts_.empty()) return;
  for (int32_t link = 0; link < options_.num_workers; ++link) {
    const int32_t server = server_of(link);
    if (server == link || (link != worker && server != worker)) continue;
    const Relink order{.link = link, .generation = accounts_[static_cast<size_t>(link)].lose()};
    processes_[static_cast<size_t>(link == worker ? server : link)]->relink(order);
    if (comes_back) processes_[static_cast<size_t>(worker)]->relink(order);
  }
  assign_roles();
}

// What races elsewhere goes on there. Whoever was to lend, and has not, will not.
void Engine::lose_replicas(int32_t worker) {
  WorkerStats& before = counted_before_[static_cast<size_t>(worker)];
  before.lost_replicas += ledger_.lose_stragglers(worker);
  for (const auto& [id, group] : ledger_.groups()) {
    for (const LedgerSample& sample : group.samples) {
      if (sample.is_over() || !sample.is_at(worker)) continue;
      before.lost_replicas += ledger_.lose(worker, id, sample.sample);
    }
  }
  for (Lending& lending : lending_) {
    if (lending.asked && lending.from == worker) lending.asked = false;
  }
}

}  // namespace otr
