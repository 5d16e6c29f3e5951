// Create, requests in, results out. New weights are in engine_weights.cpp, processes in engine_processes.cpp, numbers in
// engine_stats.cpp; what workers do in worker.cpp.
#include "runtime/engine.h"

#include <algorithm>
#include <chrono>
#include <new>
#include <utility>

#include "runtime/file_fields.h"
#include "runtime/worker_share.h"

namespace otr {
namespace {

Status check_options(const EngineOptions& o) {
  constexpr int32_t kMaxBatch = 65536, kMaxChunk = 1 << 20, kMaxThreads = 4096, kMaxWorkers = 256;
  if (o.max_batch < 1 || o.max_batch > kMaxBatch) return invalid_argument("max_batch must be between 1 and 65536");
  if (o.prefill_chunk < 1 || o.prefill_chunk > kMaxChunk)
    return invalid_argument("prefill_chunk must be between 1 and 1048576");
  if (o.device.num_threads < 0 || o.device.num_threads > kMaxThreads)
    return invalid_argument("num_threads must be between 0 and 4096");
  if (o.num_workers < 1 || o.num_workers > kMaxWorkers) return invalid_argument("num_workers must be between 1 and 256");
  if (o.num_workers > o.max_batch)
    return invalid_argument("num_workers must not exceed max_batch, of which each worker has its share");
  if (o.worker_processes && !o.gpus.empty() && o.num_workers > static_cast<int32_t>(o.gpus.size())) {
    return unsupported("worker_processes on GPUs: " + std::to_string(o.num_workers) + " workers have " +
                       std::to_string(o.gpus.size()) +
                       " GPUs, and each process has one of its own, with a copy of the weights");
  }
  if (!o.nccl.library.empty() && (!o.worker_processes || o.gpus.empty()))
    return unsupported("NCCL: it joins worker processes on GPUs");
  if (o.nccl.id && o.nccl.library.empty()) return invalid_argument("nccl_unique_id needs an nccl_library");
  if (o.nccl.patience_ms < 1) return invalid_argument("nccl_timeout_ms must be at least 1");
  return o.worker_processes ? check_process_options(o) : Status();
}

// All that are there: those that look up first.
std::vector<std::string> drafters_of_auto(const EngineOptions& o, const std::vector<std::string>& models) {
  std::vector<std::string> names;
  if (o.history != HistoryContent::kNone) names.push_back("history");
  names.push_back("ngram");
  for (const CustomDrafter& custom : o.custom_drafters) names.push_back(custom.name);
  names.insert(names.end(), models.begin(), models.end());
  names.push_back("self");
  return names;
}

RequestLimits request_limits(const Device& d) {
  const ModelConfig& config = d.target().config();
  return {.vocab_size = config.vocab_size,
          .context_limit = context_limit(config),
          .num_pages = d.target().page_pool().num_pages(),
          .eos_ids = config.eos_ids};
}

RaceMode race_mode(RaceMode asked, const Policy& policy) {
  if (asked != RaceMode::kByPolicy) return asked;
  if (policy.kind == PolicyKind::kSpecactor) return RaceMode::kFastestOfN;
  return policy.leapfrog ? RaceMode::kLeapfrog : RaceMode::kOff;
}

// {"cpu-amx":"why it cannot run here", …}: so that nobody wonders which path `auto` passed over.
std::string unavailable_paths_json() {
  std::string text = "{";
  for (const PathInfo& path : list_paths()) {
    if (!path.available)
      text += std::string(text.size() > 1 ? "," : "") + "\"" + path.table->path + "\":\"" + path.reason + "\"";
  }
  return text + "}";
}

}  // namespace

Result<std::unique_ptr<Engine>> Engine::create(const EngineOptions& options) {
  OTR_RETURN_IF_ERROR(check_options(options));
  OTR_ASSIGN_OR_RETURN(Policy policy, parse_policy(options.policy));
  std::vector<DrafterModel> models;
  std::vector<std::string> model_names;
  for (const std::string& text : options.drafters) {
    OTR_ASSIGN_OR_RETURN(DrafterModel model, parse_drafter_model(text));
    if (std::find(model_names.begin(), model_names.end(), model.name) != model_names.end()) {
      return invalid_argument("drafter '" + text + "': the name is given twice");
    }
    model_names.push_back(model.name);
    models.push_back(std::move(model));
  }
  if (policy.kind == PolicyKind::kAuto) policy.drafters = drafters_of_auto(options, model_names);
  OTR_RETURN_IF_ERROR(name_drafters(model_names, &policy));
  // What is not in the profile is not there; a fixed policy that names it is refused with the drafter's name.
  if (options.pace && policy.kind != PolicyKind::kFixed && options.pace->drafter("self") == nullptr)
    std::erase(policy.drafters, "self");
  EngineOptions o = options;
  const bool drafts_history = std::find(policy.drafters.begin(), policy.drafters.end(), "history") != policy.drafters.end();
  if (drafts_history && o.history == HistoryContent::kNone) {
    o.history = uses_history_logprobs(policy) ? HistoryContent::kLogprobs : HistoryContent::kTokens;
  }
  std::unique_ptr<Engine> engine(new Engine(o));
  if (o.pace) engine->pace_clock_ = std::make_unique<PaceClock>(o.pace->scale, static_cast<size_t>(o.num_workers));
  if (!o.trace_path.empty()) {
    OTR_ASSIGN_OR_RETURN(engine->trace_, Trace::create(o.trace_path, engine->pace_clock_.get()));
  }
  WorkerOptions w{.num_workers = o.num_workers,
                  .prefill_chunk = o.prefill_chunk,
                  .speculation = {},
                  .server = {},
                  .serves = {},
                  .proofs = o.proofs,
                  .reports_progress = o.keeps_checkpoints,
                  .host = engine.get(),
                  .pace = engine->options_.pace ? &*engine->options_.pace : nullptr,
                  .pace_clock = engine->pace_clock_.get(),
                  .trace = engine->trace_.get()};
  w.speculation = {.policy = policy,
                   .models = std::move(models),
                   .custom = o.custom_drafters,
                   .history = {},
                   .profile = o.profile,
                   .costs = o.costs,
                   .dial = o.dial,
                   .decoupled = {},
                   .max_batch = 0,
                   .prefill_chunk = o.prefill_chunk,
                   .max_draft_rows = 0};
  engine->race_ = race_mode(o.race, policy);
  OTR_RETURN_IF_ERROR(engine->name_decoupled(w.speculation.models, &w.speculation.policy, &w));
  OTR_RETURN_IF_ERROR(engine->add_workers(w));
  if (o.worker_processes) OTR_RETURN_IF_ERROR(engine->add_processes(w));
  int32_t num_threads = 0;
  for (const WorkerFacts& facts : engine->facts_) num_threads += facts.num_threads;
  if (engine->trace_ != nullptr) {
    OTR_RETURN_IF_ERROR(engine->trace_->begin(engine->isa(), o.num_workers, num_threads, o.max_batch, o.policy,
                                              engine->first_worker().speculator().policy().drafters));
  }
  for (const auto& worker : engine->workers_) {
    if (!o.worker_processes) worker->begin();
  }
  return engine;
}

Engine::Engine(const EngineOptions& options) : EngineState(options, unavailable_paths_json()) {
  if (options.samples_stay) placement_.keep_running();
}

int32_t Engine::first_beside(int32_t worker) const {
  return options_.gpus.empty() ? 0 : worker % static_cast<int32_t>(options_.gpus.size());
}

// The workers split batch, threads, CPUs and pages among them; the first one of a device loads the weights, of the target and
// of drafters, and the very first one measures what passes cost.
Status Engine::add_workers(WorkerOptions w) {
  const int32_t num_workers = options_.num_workers;
  const int32_t num_here = options_.worker_processes ? 1 : num_workers;
  add_links();
  const int32_t num_drafting = options_.num_draft_workers;  // the first ones
  OTR_ASSIGN_OR_RETURN(const RoomBeside room, Worker::room_beside(w, false));
  OTR_ASSIGN_OR_RETURN(const RoomBeside drafting_room, Worker::room_beside(w, num_drafting > 0));
  for (w.index = 0; w.index < num_here; ++w.index) {
    const Worker* first = workers_.empty() ? nullptr : workers_.front().get();
    const int32_t beside = first_beside(w.index);
    const Worker* owner = beside < w.index ? &worker(beside) : nullptr;
    const WorkerShare share(options_, w.speculation.policy, w.index);
    w.max_batch = w.speculation.max_batch = share.max_batch;
    w.max_draft_rows = w.speculation.max_draft_rows = share.max_draft_rows;
    DeviceOptions d = options_.device;
    d.num_threads = share.num_threads;
    if (num_workers > 1) d.first_cpu = share.first_cpu;
    if (on_gpu_processes()) {
      d.isa = "auto";
      d.target.num_pages = num_workers;  // a page of its own: it runs nothing
      w.speculation.idle = true;
    } else if (!options_.gpus.empty()) {
      d.ordinal = options_.gpus[static_cast<size_t>(beside)], d.peers = options_.gpus;
    }
    d.target.bucket = w.bucket();
    if (first == nullptr) {
      d.target.kv_sharers = num_workers;
      d.target.shared_memory = options_.worker_processes;
      for (int32_t i = 1; i < num_workers; ++i) d.target.free_sharers += first_beside(i) == 0 ? 1 : 0;
    } else {  // as many pages as the first one's: what one can run, all can
      d.target.num_pages = first->target().page_pool().num_pages();
    }
    d.target.beside = w.index < num_drafting ? drafting_room : room;
    if (owner != nullptr) d.target.share_weights = &owner->target(), d.target.beside.weight_bytes = 0;
    OTR_ASSIGN_OR_RETURN(std::unique_ptr<Device> device, Device::create(d));
    if (first == nullptr) {
      limits_ = request_limits(*device);
      if (options_.pace) w.proofs.rebuild = paced_rebuild(*options_.pace, device->target().page_bytes(), w.proofs.rebuild);
      if (options_.history != HistoryContent::kNone)
        history_ = std::make_unique<HistoryStore>(options_.history, limits_.vocab_size);
      if (history_ != nullptr) w.speculation.history = [history = history_.get()] { return history->index(); };
    }
    link_worker(&w);
    w.share_server_model = owner != nullptr && owner->server() != nullptr ? &owner->server()->model() : nullptr;
    w.speculation.costs_of = first != nullptr ? &first->speculator() : nullptr;
    w.speculation.share = owner != nullptr ? &owner->speculator() : nullptr;
    OTR_ASSIGN_OR_RETURN(std::unique_ptr<Worker> worker, Worker::create(w, std::move(device)));
    if (!options_.worker_processes) {
      const ModelRunner& target = worker->target();
      facts_[workers_.size()] = {
          .num_threads = worker->device().num_threads(),
          .num_pages = target.page_pool().num_pages(),
          .activation_bytes = target.activation_bytes() + worker->speculator().drafter_activation_bytes() +
                              (worker->server() != nullptr ? worker->server()->model().activation_bytes() : 0)};
      placement_.report(w.index, worker->load());
      ports_.push_back(&worker->mailbox());
    }
    workers_.push_back(std::move(worker));
  }
  quantize_seconds_ = first_worker().target().quantize_seconds();
  costs_ = first_worker().speculator().costs();
  captures_ = count_captures();
  connect_links();
  plan_step();
  return {};
}

Engine::~Engine() { shutdown(); }

void Engine::shutdown() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  result_arrived_.notify_all();
  at_rest_changed_.notify_all();
  for (WorkerPort* port : ports_) port->stop();
  for (const auto& process : processes_) process->join();
  for (const auto& worker : workers_) worker->join();
}

// ---- Callers' threads ----------------------------------------------------------------------------------------------------

Result<uint64_t> Engine::submit(const otr_group_request& request) {
  OTR_ASSIGN_OR_RETURN(auto sequences, make_group(request, limits_));
  return enqueue(std::move(sequences));
}

Result<uint64_t> Engine::score(const otr_score_request& request) {
  OTR_ASSIGN_OR_RETURN(auto sequence, make_score(request, limits_));
  std::vector<std::unique_ptr<Sequence>> one;
  one.push_back(std::move(sequence));
  return enqueue(std::move(one));
}

Result<uint64_t> Engine::append(const Sequence& ended, const otr_append_request& request) {
  OTR_ASSIGN_OR_RETURN(auto sequences, make_appended(ended, request, limits_));
  return enqueue(std::move(sequences));
}

Result<uint64_t> Engine::enqueue(std::vector<std::unique_ptr<Sequence>> sequences) {
  share_history();
  std::lock_guard<std::mutex> lock(mutex_);
  if (updating_) return Status(StatusCode::kBusy, "the weights are being replaced: commit them first");
  OTR_RETURN_IF_ERROR(check_awake(OTR_MEMORY_ALL));
  const std::shared_ptr<Group> group = sequences.front()->group;
  const int32_t count = static_cast<int32_t>(sequences.size());
  const uint64_t id = next_group_;
  group->blocked.reserve(sequences.size() - 1);
  group->id = id;
  for (size_t i = 0; i < sequences.size(); ++i) {
    sequences[i]->age = next_age_ + i;
    sequences[i]->weight_spans.front().weight_version = weight_version_;
  }
  const int32_t home = count == 1 && !group->is_score ? homes_.find(sequences.front()->noise) : Placement::kNobody;
  const int32_t to = placement_.place(count, home);
  if (to == Placement::kNobody) return Status(StatusCode::kLost, "every worker process is lost");
  try {
    unfinished_.emplace(id, Unfinished{count, group});
    if (options_.worker_processes || options_.keeps_checkpoints) ledger_.open(sequences, to);
  } catch (...) {
    unfinished_.erase(id);
    placement_.sent(to, -count);
    throw;
  }
  // From here on nothing throws: a call that runs out of memory has queued nothing.
  ++next_group_;
  next_age_ += sequences.size();
  for (size_t i = 1; i < sequences.size(); ++i) group->blocked.push_back(std::move(sequences[i]));
  outstanding_ += count;
  at_rest_changed_.notify_all();  // an update of the weights that waits for rest need not
  port(to).start(std::move(sequences.front()));
  return id;
}

Status Engine::cancel(uint64_t group_id) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (group_id == 0) {
    for (const auto& [id, unfinished] : unfinished_) {
      unfinished.group->cancelled = true;
      for (WorkerPort* port : ports_) port->cancel(id);
    }
    try_suspects();
    return {};
  }
  const auto it = unfinished_.find(group_id);
  if (it == unfinished_.end()) return invalid_argument("group " + std::to_string(group_id) + " is unknown or finished");
  it->second.group->cancelled = true;
  for (WorkerPort* port : ports_) port->cancel(group_id);
  try_suspects();  // `it` may be gone
  return {};
}

bool Engine::at_rest() const {
  return std::all_of(ports_.begin(), ports_.end(), [](const WorkerPort* port) { return port->at_rest(); });
}

void Engine::resume_workers() {
  if (paused_ || updating_ || asleep_ != 0 || weights_lost_ || standstills_ > 0) return;
  for (WorkerPort* port : ports_) port->resume();
}

Status Engine::pause() {
  std::unique_lock<std::mutex> lock(mutex_);
  paused_ = true;
  for (WorkerPort* port : ports_) port->pause();
  at_rest_changed_.notify_all();  // who is paused rests, whatever it was to do
  // A process that is on its way need not be there yet: it may take minutes, and begins with a pause.
  const auto rests = [](const WorkerPort* port) { return port->rests_in_pause(); };
  at_rest_changed_.wait(lock, [&] { return stop_ || !paused_ || std::all_of(ports_.begin(), ports_.end(), rests); });
  if (stop_) return Status(StatusCode::kInvalidHandle, "the engine was destroyed");
  return {};
}

void Engine::resume() {
  std::lock_guard<std::mutex> lock(mutex_);
  paused_ = false;
  resume_workers();
  at_rest_changed_.notify_all();  // a pause() that still waits was overtaken
}

Result<std::unique_ptr<Sequence>> Engine::wait(int64_t timeout_ms) {
  std::unique_lock<std::mutex> lock(mutex_);
  const auto ready = [this] { return stop_ || !outbox_.empty() || outstanding_ == 0; };
  // A year is "no limit": a larger duration would overflow the clock.
  constexpr int64_t kYearMs = int64_t{365} * 24 * 3600 * 1000;
  const int64_t limit_ms = timeout_ms < 0 ? kYearMs : std::min(timeout_ms, kYearMs);
  if (!result_arrived_.wait_for(lock, std::chrono::milliseconds(limit_ms), ready)) {
    const char* const why = paused_                         ? "; the engine is paused"
                            : updating_                     ? "; its weights are being replaced"
                            : asleep_ != 0 || weights_lost_ ? "; it sleeps, or lacks the weights that it lost in sleep"
                                                            : "";
    return Status(StatusCode::kTimeout, "no sample finished within " + std::to_string(timeout_ms) + " ms" + why);
  }
  if (stop_) return Status(StatusCode::kInvalidHandle, "the engine was destroyed");
  if (outbox_.empty()) return Status(StatusCode::kIdle, "nothing is outstanding");
  std::unique_ptr<Sequence> s = outbox_.pop();
  ledger_.close(s->group->id, s->sample);
  if (history_ != nullptr) {  // it is there before anyone can see that nothing is outstanding, and commit
    lock.unlock();
    history_->collect(*s);
    lock.lock();
  }
  if (--outstanding_ == 0) result_arrived_.notify_all();
  return s;
}

CaptureFacts Engine::count_captures() const {
  CaptureFacts facts;
  for (const auto& worker : workers_) facts.add(worker->device().captures());
  return facts;
}

const char* Engine::isa() const { return options_.gpus.empty() ? first_worker().device().isa() : kCudaPath; }

PaceStats Engine::pace_stats() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  PaceStats sum;
  for (const WorkerStats& worker : stats_) sum.add(worker.pace);
  return sum;
}

// ---- Workers' threads ----------------------------------------------------------------------------------------------------

void Engine::report(int32_t from, const WorkerStats& stats, const WorkerLoad& load, WorkerReport* report) {
  std::lock_guard<std::mutex> lock(mutex_);
  stats_[static_cast<size_t>(from)] = stats;
  if (options_.keeps_checkpoints) record(from, *report);
  report->progress.clear();
  follow_up(from, load, report);
}

void Engine::follow_up(int32_t from, const WorkerLoad& load, WorkerReport* report) {
  if (!report->finished.empty()) result_arrived_.notify_all();
  while (std::unique_ptr<Sequence> s = report->finished.pop()) {
    if (!s->group->is_score) homes_.note(s->noise, from);
    publish(std::move(s));
  }
  while (report->dropped.pop() != nullptr) {
  }
  while (std::unique_ptr<Sequence> s = report->given.pop()) {
    const int32_t to = s->goes_to;
    if (s->rung > 0) s->age = next_age_++;
    placement_.sent(to, 1 + s->num_waiting());
    port(to).start(std::move(s));
  }
  if (ports_.size() == 1) return;
  if (report->answered) placement_.answered(*report->answered);
  placement_.report(from, load);
  Lending& own = lending_[static_cast<size_t>(from)];
  if (own.arrived != load.arrived || (own.rest > 0 && --own.rest == 0)) own.lacks = 0;
  own.arrived = load.arrived;
  if (report->lent) note_lent(*report->lent);
  for (const Move& move : placement_.rebalance()) port(move.from).give(move);
  if (race_ != RaceMode::kOff) start_races();
}

void Engine::publish(std::unique_ptr<Sequence> s) {
  // It ended before weights that came last drew anything.
  const bool drew_nothing = s->weight_spans.back().first_token == static_cast<size_t>(s->num_tokens() - s->num_prompt());
  if (s->weight_spans.size() > 1 && drew_nothing) s->weight_spans.pop_back();
  const auto it = unfinished_.find(s->group->id);
  if (!options_.keeps_checkpoints) ledger_.close(s->group->id, s->sample);
  if (s->race != nullptr) {  // the other replicas have lost
    for (WorkerPort* port : ports_) port->cancel(s->group->id);
  }
  outbox_.push(std::move(s));
  if (--it->second.samples > 0) return;
  unfinished_.erase(it);
  if (!unfinished_.empty()) return;
  try {
    plan_step();
  } catch (const std::bad_alloc&) {  // the roles stay as they are
  }
  for (WorkerPort* port : ports_) port->end_step();
}

void Engine::rested() {
  std::lock_guard<std::mutex> lock(mutex_);
  at_rest_changed_.notify_all();
}

}  // namespace otr
