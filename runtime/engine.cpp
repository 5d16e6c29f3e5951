// Create, requests in, results out, numbers. New weights are in engine_weights.cpp; what workers do in worker.cpp.
#include "runtime/engine.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <system_error>
#include <utility>

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
  return {};
}

// More nodes a tick than this do not pay on any machine we know, and each costs a row of logits.
constexpr int32_t kMostDraftRows = 512, kMostDraftRowsOfAuto = 256;

int32_t draft_row_limit(int32_t max_batch, const Policy& policy) {
  const int32_t most = policy.kind == PolicyKind::kAuto ? kMostDraftRowsOfAuto : kMostDraftRows;
  return std::max(policy.verify_tokens, std::min(max_batch * policy.verify_tokens, most));
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

// What the i-th of `parts` gets of a whole.
int32_t share_of(int32_t whole, int32_t i, int32_t parts) { return whole / parts + (i < whole % parts ? 1 : 0); }

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
  EngineOptions o = options;
  const bool drafts_history = std::find(policy.drafters.begin(), policy.drafters.end(), "history") != policy.drafters.end();
  if (drafts_history && o.history == HistoryContent::kNone) {
    o.history = uses_history_logprobs(policy) ? HistoryContent::kLogprobs : HistoryContent::kTokens;
  }
  std::unique_ptr<Engine> engine(new Engine(o));
  if (!o.trace_path.empty()) {
    OTR_ASSIGN_OR_RETURN(engine->trace_, Trace::create(o.trace_path));
  }
  WorkerOptions w{.num_workers = o.num_workers,
                  .prefill_chunk = o.prefill_chunk,
                  .speculation = {},
                  .proofs = o.proofs,
                  .host = engine.get(),
                  .trace = engine->trace_.get()};
  w.speculation = {.policy = policy,
                   .models = std::move(models),
                   .custom = o.custom_drafters,
                   .history = {},
                   .profile = o.profile,
                   .costs = o.costs,
                   .max_batch = 0,
                   .prefill_chunk = o.prefill_chunk,
                   .max_draft_rows = 0};
  OTR_RETURN_IF_ERROR(engine->add_workers(w));
  int32_t num_threads = 0;
  for (const auto& worker : engine->workers_) num_threads += worker->device().num_threads();
  if (engine->trace_ != nullptr) {
    OTR_RETURN_IF_ERROR(engine->trace_->begin(engine->first_worker().device().isa(), o.num_workers, num_threads, o.max_batch,
                                              o.policy, policy.drafters));
  }
  for (const auto& worker : engine->workers_) worker->begin();
  return engine;
}

Engine::Engine(const EngineOptions& options)
    : options_(options),
      unavailable_paths_(unavailable_paths_json()),
      placement_(options.num_workers),
      stats_(static_cast<size_t>(options.num_workers)) {}

int32_t Engine::first_beside(int32_t worker) const {
  return options_.gpus.empty() ? 0 : worker % static_cast<int32_t>(options_.gpus.size());
}

// The workers split batch, threads, CPUs and pages among them; the first one of a device loads the weights, of the target and of
// drafters, and the very first one measures what passes cost.
Status Engine::add_workers(WorkerOptions w) {
  const int32_t num_workers = options_.num_workers;
  const int32_t threads = options_.device.num_threads > 0 ? options_.device.num_threads : ThreadPool::affinity_count();
  int32_t first_cpu = 0;
  for (w.index = 0; w.index < num_workers; ++w.index) {
    const Worker* first = workers_.empty() ? nullptr : workers_.front().get();
    const int32_t beside = first_beside(w.index);
    const Worker* owner = beside < w.index ? &worker(beside) : nullptr;
    w.max_batch = w.speculation.max_batch = share_of(options_.max_batch, w.index, num_workers);
    w.max_draft_rows = w.speculation.max_draft_rows = draft_row_limit(w.max_batch, w.speculation.policy);
    DeviceOptions d = options_.device;
    d.num_threads = std::max(1, share_of(threads, w.index, num_workers));
    if (num_workers > 1) d.first_cpu = first_cpu;
    first_cpu += d.num_threads;
    if (!options_.gpus.empty()) d.ordinal = options_.gpus[static_cast<size_t>(beside)];
    d.target.bucket = w.bucket();
    if (first == nullptr) {
      d.target.kv_sharers = num_workers;
      for (int32_t i = 1; i < num_workers; ++i) d.target.free_sharers += first_beside(i) == 0 ? 1 : 0;
    } else {  // as many pages as the first one's: what one can run, all can
      d.target.num_pages = first->target().page_pool().num_pages();
    }
    if (owner != nullptr) d.target.share_weights = &owner->target();
    OTR_ASSIGN_OR_RETURN(std::unique_ptr<Device> device, Device::create(d));
    if (first == nullptr) {
      limits_ = request_limits(*device);
      if (options_.history != HistoryContent::kNone)
        history_ = std::make_unique<HistoryStore>(options_.history, limits_.vocab_size);
      w.history = history_.get();
      if (history_ != nullptr) w.speculation.history = [history = history_.get()] { return history->index(); };
    }
    w.speculation.costs_of = first != nullptr ? &first->speculator() : nullptr;
    w.speculation.share = owner != nullptr ? &owner->speculator() : nullptr;
    OTR_ASSIGN_OR_RETURN(std::unique_ptr<Worker> worker, Worker::create(w, std::move(device)));
    placement_.report(w.index, worker->load());
    workers_.push_back(std::move(worker));
  }
  quantize_seconds_ = first_worker().target().quantize_seconds();
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
  for (const auto& worker : workers_) worker->mailbox().stop();
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

Result<uint64_t> Engine::enqueue(std::vector<std::unique_ptr<Sequence>> sequences) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (updating_) return Status(StatusCode::kBusy, "the weights are being replaced: commit them first");
  const std::shared_ptr<Group> group = sequences.front()->group;
  const int32_t count = static_cast<int32_t>(sequences.size());
  const uint64_t id = next_group_;
  group->blocked.reserve(sequences.size() - 1);
  unfinished_.emplace(id, Unfinished{count, group});
  // From here on nothing throws: a call that runs out of memory has queued nothing.
  ++next_group_;
  group->id = id;
  group->weight_version = weight_version_;
  for (auto& s : sequences) s->age = next_age_++;
  for (size_t i = 1; i < sequences.size(); ++i) group->blocked.push_back(std::move(sequences[i]));
  outstanding_ += count;
  at_rest_changed_.notify_all();  // an update of the weights that waits for rest need not
  worker(placement_.place(count)).mailbox().start(std::move(sequences.front()));
  return id;
}

Status Engine::cancel(uint64_t group_id) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto it = unfinished_.find(group_id);
  if (it == unfinished_.end()) return invalid_argument("group " + std::to_string(group_id) + " is unknown or finished");
  it->second.group->cancelled = true;
  for (const auto& worker : workers_) worker->mailbox().cancel();
  return {};
}

bool Engine::at_rest() const {
  return std::all_of(workers_.begin(), workers_.end(), [](const auto& worker) { return worker->mailbox().at_rest(); });
}

Status Engine::pause() {
  std::unique_lock<std::mutex> lock(mutex_);
  paused_ = true;
  for (const auto& worker : workers_) worker->mailbox().pause();
  at_rest_changed_.notify_all();  // who is paused rests, whatever it was to do
  at_rest_changed_.wait(lock, [this] { return stop_ || at_rest() || !paused_; });
  if (stop_) return Status(StatusCode::kInvalidHandle, "the engine was destroyed");
  return {};
}

void Engine::resume() {
  std::lock_guard<std::mutex> lock(mutex_);
  paused_ = false;
  for (const auto& worker : workers_) {
    if (!updating_) worker->mailbox().resume();
  }
  at_rest_changed_.notify_all();  // a pause() that still waits was overtaken
}

Result<std::unique_ptr<Sequence>> Engine::wait(int64_t timeout_ms) {
  std::unique_lock<std::mutex> lock(mutex_);
  const auto ready = [this] { return stop_ || !outbox_.empty() || outstanding_ == 0; };
  // A year is "no limit": a larger duration would overflow the clock.
  constexpr int64_t kYearMs = int64_t{365} * 24 * 3600 * 1000;
  const int64_t limit_ms = timeout_ms < 0 ? kYearMs : std::min(timeout_ms, kYearMs);
  if (!result_arrived_.wait_for(lock, std::chrono::milliseconds(limit_ms), ready)) {
    return Status(StatusCode::kTimeout, "no sample finished within " + std::to_string(timeout_ms) + " ms");
  }
  if (stop_) return Status(StatusCode::kInvalidHandle, "the engine was destroyed");
  if (outbox_.empty()) return Status(StatusCode::kIdle, "nothing is outstanding");
  std::unique_ptr<Sequence> s = outbox_.pop();
  if (--outstanding_ == 0) result_arrived_.notify_all();
  return s;
}

// What captured programs cost, of all workers: ,"gpu":{…}; "" on the CPU.
std::string Engine::gpu_json() const {
  if (options_.gpus.empty()) return {};
  int32_t captures = 0;
  int64_t target = 0, draft = 0;
  double seconds = 0;
  for (const auto& worker : workers_) {
    const ProgramPool& programs = *worker->device().programs();
    captures += programs.num_captures();
    target += programs.bytes(ProgramRole::kTarget);
    draft += programs.bytes(ProgramRole::kDraft);
    seconds += programs.capture_seconds();
  }
  return ",\"gpu\":{\"captures\":" + std::to_string(captures) + ",\"target_capture_bytes\":" + std::to_string(target) +
         ",\"draft_capture_bytes\":" + std::to_string(draft) + ",\"capture_seconds\":" + decimal(seconds) + "}";
}

std::string Engine::stats_json() const {
  WorkerStats s;
  std::string workers;
  int64_t outstanding;
  uint64_t weight_version;
  double quantize_seconds;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (const WorkerStats& worker : stats_) {
      s.add(worker);
      workers += (workers.empty() ? "" : ",") + worker.json();
    }
    outstanding = outstanding_;
    weight_version = weight_version_;
    quantize_seconds = quantize_seconds_;
  }
  const Worker& first = first_worker();
  const ModelRunner& model = first.target();
  int32_t num_threads = 0, num_pages = 0;
  int64_t activation_bytes = 0;
  for (const auto& worker : workers_) {
    num_threads += worker->device().num_threads();
    num_pages += worker->target().page_pool().num_pages();
    activation_bytes += worker->target().activation_bytes() + worker->speculator().drafter_activation_bytes();
  }
  char text[2048];
  std::snprintf(
      text, sizeof text,
      "{\"version\":\"%s\",\"isa\":\"%s\",\"isa_unavailable\":%s,\"num_workers\":%d,\"num_threads\":%d,\"max_batch\":%d,"
      "\"prefill_chunk\":%d,\"ticks\":%lld,\"generated_tokens\":%lld,\"prefill_tokens\":%lld,\"scored_tokens\":%lld,"
      "\"finished_samples\":%lld,\"outstanding_samples\":%lld,\"preemptions\":%lld,\"migrations\":%lld,\"prefix_hit_tokens\":%"
      "lld,"
      "\"batch_peak\":%d,\"kv_pages_total\":%d,\"kv_pages_in_use\":%d,\"kv_pages_peak\":%d,\"kv_page_bytes\":%lld,"
      "\"weight_version\":%llu,\"weight_bytes\":%lld,\"drafter_weight_bytes\":%lld,\"converted_tensors\":%lld,\"activation_"
      "bytes\":%lld,"
      "\"busy_seconds\":%s,\"kernel_seconds\":%s,\"draft_seconds\":%s,\"decide_seconds\":%s,\"quantize_seconds\":%s",
      otr_version(), first.device().isa(), unavailable_paths_.c_str(), options_.num_workers, num_threads, options_.max_batch,
      options_.prefill_chunk, static_cast<long long>(s.ticks), static_cast<long long>(s.generated_tokens),
      static_cast<long long>(s.prefill_tokens), static_cast<long long>(s.scored_tokens),
      static_cast<long long>(s.finished_samples), static_cast<long long>(outstanding), static_cast<long long>(s.preemptions),
      static_cast<long long>(s.migrations), static_cast<long long>(s.prefix_hit_tokens), s.batch_peak, num_pages,
      s.kv_pages_in_use, s.kv_pages_peak, static_cast<long long>(model.page_bytes()),
      static_cast<unsigned long long>(weight_version), static_cast<long long>(model.weight_bytes()),
      static_cast<long long>(first.speculator().drafter_weight_bytes()), static_cast<long long>(model.converted_tensors()),
      static_cast<long long>(activation_bytes), decimal(s.busy_seconds).c_str(), decimal(s.kernel_seconds).c_str(),
      decimal(s.draft_seconds).c_str(), decimal(s.decide_seconds).c_str(), decimal(quantize_seconds).c_str());
  const std::string gpu = gpu_json();
  const std::string history = history_ == nullptr ? "" : ",\"history\":" + history_->stats_json();
  const std::string trace =
      s.trace_error == 0 ? "" : ",\"trace_error\":\"" + std::generic_category().message(s.trace_error) + "\"";
  return std::string(text) + gpu + trace + ",\"workers\":[" + workers + "],\"policy\":\"" + options_.policy +
         "\",\"speculation\":" + first.speculator().counts_json(s.spec) + history + "}";
}

// ---- Workers' threads ----------------------------------------------------------------------------------------------------

void Engine::report(int32_t from, const WorkerStats& stats, const WorkerLoad& load, WorkerReport* report) {
  std::lock_guard<std::mutex> lock(mutex_);
  stats_[static_cast<size_t>(from)] = stats;
  if (!report->finished.empty()) result_arrived_.notify_all();
  while (std::unique_ptr<Sequence> s = report->finished.pop()) publish(std::move(s));
  while (std::unique_ptr<Sequence> s = report->given.pop()) {
    const int32_t to = s->goes_to;
    placement_.sent(to, 1 + static_cast<int32_t>(s->group->blocked.size()));
    worker(to).mailbox().start(std::move(s));
  }
  if (workers_.size() == 1) return;
  if (report->answered) placement_.answered(*report->answered);
  placement_.report(from, load);
  for (const Move& move : placement_.rebalance()) worker(move.from).mailbox().give(move);
}

void Engine::publish(std::unique_ptr<Sequence> s) {
  const auto it = unfinished_.find(s->group->id);
  outbox_.push(std::move(s));
  if (--it->second.samples > 0) return;
  unfinished_.erase(it);
  if (!unfinished_.empty()) return;
  for (const auto& worker : workers_) worker->mailbox().end_step();
}

void Engine::rested() {
  std::lock_guard<std::mutex> lock(mutex_);
  at_rest_changed_.notify_all();
}

}  // namespace otr
