// The engine's outside: create, requests in, results out, the thread, and the life of a sequence. Ticks are in engine_tick.cpp.
#include "runtime/engine.h"

#include <algorithm>
#include <cassert>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <exception>
#include <system_error>
#include <utility>

#include "kernels/base/fp_env.h"

namespace otr {
namespace {

Status check_options(const EngineOptions& o) {
  constexpr int32_t kMaxBatch = 65536, kMaxChunk = 1 << 20, kMaxThreads = 4096;
  if (o.max_batch < 1 || o.max_batch > kMaxBatch) return invalid_argument("max_batch must be between 1 and 65536");
  if (o.prefill_chunk < 1 || o.prefill_chunk > kMaxChunk) return invalid_argument("prefill_chunk must be between 1 and 1048576");
  if (o.device.num_threads < 0 || o.device.num_threads > kMaxThreads) return invalid_argument("num_threads must be between 0 and 4096");
  return {};
}

// Every running sample wants one row of logits a tick; scores want one for every token, so a small batch gets some more.
int32_t max_logit_rows(const EngineOptions& o) { return std::max(o.max_batch, 64); }

// More nodes a tick than this do not pay on any machine we know, and each costs a row of logits.
constexpr int32_t kMostDraftRows = 512, kMostDraftRowsOfAuto = 256;

int32_t draft_row_limit(const EngineOptions& o, const Policy& policy) {
  const int32_t most = policy.kind == PolicyKind::kAuto ? kMostDraftRowsOfAuto : kMostDraftRows;
  return std::max(policy.verify_tokens, std::min(o.max_batch * policy.verify_tokens, most));
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

BatchLimits batch_limits(const EngineOptions& o) {
  return {.max_batch = o.max_batch, .prefill_chunk = o.prefill_chunk, .max_logit_rows = max_logit_rows(o)};
}

RequestLimits request_limits(const Device& d) {
  const ModelConfig& config = d.target().config();
  return {.vocab_size = config.vocab_size, .context_limit = context_limit(config), .num_pages = d.target().page_pool().num_pages(),
          .eos_ids = config.eos_ids};
}

RowLimits row_limits(const EngineOptions& o, const RequestLimits& r, int32_t draft_rows) {
  const int64_t context_pages = (r.context_limit + kPageTokens - 1) / kPageTokens;
  return {.max_rows = o.max_batch + o.prefill_chunk + draft_rows, .max_segments = o.max_batch + draft_rows,
          .max_logit_rows = max_logit_rows(o) + draft_rows,
          .max_pages_per_sequence = static_cast<int32_t>(std::min(context_pages, r.num_pages)),
          .max_copies = draft_rows * kMaxDraftDepth};
}

// JSON's spelling of seconds; printf's follows the caller's locale.
std::string decimal(double seconds) {
  char text[64];
  return std::string(text, std::to_chars(text, text + sizeof text, seconds, std::chars_format::fixed, 6).ptr);
}

// {"cpu-amx":"why it cannot run here", …}: so that nobody wonders which path `auto` passed over.
std::string unavailable_paths_json() {
  std::string text = "{";
  for (const PathInfo& path : list_paths()) {
    if (!path.available) text += std::string(text.size() > 1 ? "," : "") + "\"" + path.table->path + "\":\"" + path.reason + "\"";
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
  std::unique_ptr<Trace> trace;
  if (!options.trace_path.empty()) {
    OTR_ASSIGN_OR_RETURN(trace, Trace::create(options.trace_path));
  }
  const int32_t draft_rows = draft_row_limit(options, policy);
  SpeculatorOptions speculation{.policy = policy, .models = std::move(models), .custom = options.custom_drafters, .history = {}, .profile = options.profile, .costs = options.costs,
                                .max_batch = options.max_batch, .prefill_chunk = options.prefill_chunk, .max_draft_rows = draft_rows};
  EngineOptions o = options;
  const bool drafts_history = std::find(policy.drafters.begin(), policy.drafters.end(), "history") != policy.drafters.end();
  if (drafts_history && o.history == HistoryContent::kNone) {
    o.history = uses_history_logprobs(policy) ? HistoryContent::kLogprobs : HistoryContent::kTokens;
  }
  o.device.target.bucket = {.max_rows = o.max_batch + o.prefill_chunk + draft_rows, .max_logit_rows = max_logit_rows(o) + draft_rows};
  OTR_ASSIGN_OR_RETURN(std::unique_ptr<Device> device, Device::create(o.device));
  std::unique_ptr<Engine> engine(new Engine(o, std::move(device), draft_rows));
  if (engine->history_ != nullptr) speculation.history = [history = engine->history_.get()] { return history->index(); };
  OTR_ASSIGN_OR_RETURN(engine->speculator_, Speculator::create(speculation, *engine->device_, engine->live_));
  if (trace != nullptr) {
    OTR_RETURN_IF_ERROR(trace->begin(engine->device_->isa(), engine->device_->num_threads(), o.max_batch, o.policy, policy.drafters));
    engine->trace_ = std::move(trace);
  }
  engine->tick_stats_.quantize_seconds = engine->stats_.quantize_seconds = engine->target().quantize_seconds();
  engine->thread_ = std::thread([e = engine.get()] { e->loop(); });
  return engine;
}

Engine::Engine(const EngineOptions& options, std::unique_ptr<Device> device, int32_t draft_rows)
    : options_(options),
      device_(std::move(device)),
      limits_(request_limits(*device_)),
      unavailable_paths_(unavailable_paths_json()),
      batcher_(batch_limits(options_)),
      rows_(row_limits(options_, limits_, draft_rows),
            attention_tile_rows(target().config().num_heads, target().config().num_kv_heads)),
      max_draft_rows_(draft_rows),
      paths_(draft_rows, 2 * draft_rows) {  // kMaxDraftDepth positions touch two pages at most
  if (options_.history != HistoryContent::kNone) history_ = std::make_unique<HistoryStore>(options_.history, limits_.vocab_size);
  const size_t batch = static_cast<size_t>(options_.max_batch), chunk = static_cast<size_t>(options_.prefill_chunk);
  places_.reserve(batch);
  draft_tokens_.reserve(kMaxDraftNodes);
  drawn_.reserve(kMaxDraftNodes + 1);
  accepted_.reserve(kMaxDraftDepth);
  finished_.reserve(batch);
  page_work_.copy_from.reserve(batch);
  page_work_.copy_to.reserve(batch);
  page_work_.zero.reserve(4 * batch + chunk / kPageTokens);
  fork_work_.copy_from.reserve(static_cast<size_t>(draft_rows));
  fork_work_.copy_to.reserve(static_cast<size_t>(draft_rows));
  fork_work_.zero.reserve(2 * static_cast<size_t>(draft_rows));
}

Engine::~Engine() {
  shutdown();
  for (auto& s : live_) {
    if (s != nullptr) s->pages.release_all(&target().page_pool());
  }
  // A group and the samples that wait in it own each other.
  for (auto* sequences : {&live_, &inbox_, &arrived_}) {
    for (auto& s : *sequences) {
      if (s != nullptr) std::exchange(s->group->blocked, {}).clear();
    }
  }
}

void Engine::shutdown() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  work_arrived_.notify_all();
  result_arrived_.notify_all();
  at_rest_changed_.notify_all();
  if (thread_.joinable()) thread_.join();
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
  Group* group = sequences.front()->group.get();
  group->weight_version = weight_version_;
  const int64_t count = static_cast<int64_t>(sequences.size());
  const uint64_t id = group->id = next_group_++;
  for (auto& s : sequences) s->age = next_age_++;
  group->blocked.reserve(sequences.size() - 1);
  reserve_outbox(static_cast<size_t>(outstanding_ + count));
  unfinished_[id] = count;
  at_rest_changed_.notify_all();  // an update of the weights that waits for rest need not
  inbox_.push_back(std::move(sequences.front()));
  // From here on nothing throws: a call that runs out of memory has queued nothing.
  for (size_t i = 1; i < sequences.size(); ++i) group->blocked.push_back(std::move(sequences[i]));
  outstanding_ += count;
  work_arrived_.notify_one();
  return id;
}

// Makes room for `outstanding` results, so that publishing never allocates.
void Engine::reserve_outbox(size_t outstanding) {
  if (outbox_.capacity() - taken_ >= outstanding) return;
  std::vector<std::unique_ptr<Sequence>> larger;
  larger.reserve(std::max(outstanding, 2 * outbox_.size()));
  for (size_t i = taken_; i < outbox_.size(); ++i) larger.push_back(std::move(outbox_[i]));
  outbox_.swap(larger);
  taken_ = 0;
}

Status Engine::cancel(uint64_t group_id) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (unfinished_.find(group_id) == unfinished_.end()) {
    return invalid_argument("group " + std::to_string(group_id) + " is unknown or finished");
  }
  cancels_.push_back(group_id);
  work_arrived_.notify_one();
  return {};
}

Status Engine::pause() {
  std::unique_lock<std::mutex> lock(mutex_);
  paused_ = true;
  at_rest_changed_.wait(lock, [this] { return stop_ || at_rest_ || !paused_; });
  if (stop_) return Status(StatusCode::kInvalidHandle, "the engine was destroyed");
  return {};
}

void Engine::resume() {
  std::lock_guard<std::mutex> lock(mutex_);
  paused_ = false;
  work_arrived_.notify_all();
  at_rest_changed_.notify_all();  // a pause() that still waits was overtaken
}

Result<std::unique_ptr<Sequence>> Engine::wait(int64_t timeout_ms) {
  std::unique_lock<std::mutex> lock(mutex_);
  const auto ready = [this] { return stop_ || taken_ < outbox_.size() || outstanding_ == 0; };
  // A year is "no limit": a larger duration would overflow the clock.
  constexpr int64_t kYearMs = int64_t{365} * 24 * 3600 * 1000;
  const int64_t limit_ms = timeout_ms < 0 ? kYearMs : std::min(timeout_ms, kYearMs);
  if (!result_arrived_.wait_for(lock, std::chrono::milliseconds(limit_ms), ready)) {
    return Status(StatusCode::kTimeout, "no sample finished within " + std::to_string(timeout_ms) + " ms");
  }
  if (stop_) return Status(StatusCode::kInvalidHandle, "the engine was destroyed");
  if (taken_ == outbox_.size()) return Status(StatusCode::kIdle, "nothing is outstanding");
  std::unique_ptr<Sequence> s = std::move(outbox_[taken_++]);
  if (taken_ == outbox_.size()) {
    outbox_.clear();
    taken_ = 0;
  }
  if (--outstanding_ == 0) result_arrived_.notify_all();
  return s;
}

std::string Engine::stats_json() const {
  EngineStats s;
  int64_t outstanding;
  uint64_t weight_version;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    s = stats_;
    outstanding = outstanding_;
    weight_version = weight_version_;
  }
  const ModelRunner& model = target();
  char text[2048];
  std::snprintf(text, sizeof text,
                "{\"version\":\"%s\",\"isa\":\"%s\",\"isa_unavailable\":%s,\"num_threads\":%d,\"max_batch\":%d,"
                "\"prefill_chunk\":%d,\"ticks\":%lld,\"generated_tokens\":%lld,\"prefill_tokens\":%lld,\"scored_tokens\":%lld,"
                "\"finished_samples\":%lld,\"outstanding_samples\":%lld,\"preemptions\":%lld,\"prefix_hit_tokens\":%lld,"
                "\"batch_peak\":%d,\"kv_pages_total\":%d,\"kv_pages_in_use\":%d,\"kv_pages_peak\":%d,\"kv_page_bytes\":%lld,"
                "\"weight_version\":%llu,\"weight_bytes\":%lld,\"drafter_weight_bytes\":%lld,\"converted_tensors\":%lld,\"activation_bytes\":%lld,"
                "\"busy_seconds\":%s,\"kernel_seconds\":%s,\"draft_seconds\":%s,\"decide_seconds\":%s,\"quantize_seconds\":%s",
                otr_version(), device_->isa(), unavailable_paths_.c_str(), device_->num_threads(),
                options_.max_batch, options_.prefill_chunk, static_cast<long long>(s.ticks), static_cast<long long>(s.generated_tokens),
                static_cast<long long>(s.prefill_tokens), static_cast<long long>(s.scored_tokens),
                static_cast<long long>(s.finished_samples), static_cast<long long>(outstanding),
                static_cast<long long>(s.preemptions), static_cast<long long>(s.prefix_hit_tokens), s.batch_peak,
                model.page_pool().num_pages(), s.kv_pages_in_use, s.kv_pages_peak, static_cast<long long>(model.page_bytes()),
                static_cast<unsigned long long>(weight_version),
                static_cast<long long>(model.weight_bytes()), static_cast<long long>(speculator_->drafter_weight_bytes()),
                static_cast<long long>(model.converted_tensors()), static_cast<long long>(model.activation_bytes() + speculator_->drafter_activation_bytes()),
                decimal(s.busy_seconds).c_str(), decimal(s.kernel_seconds).c_str(), decimal(s.draft_seconds).c_str(), decimal(s.decide_seconds).c_str(), decimal(s.quantize_seconds).c_str());
  const std::string history = history_ == nullptr ? "" : ",\"history\":" + history_->stats_json();
  const std::string trace = s.trace_error == 0 ? "" : ",\"trace_error\":\"" + std::generic_category().message(s.trace_error) + "\"";
  return std::string(text) + trace + ",\"policy\":\"" + options_.policy + "\",\"speculation\":" + speculator_->counts_json(s.spec) + history + "}";
}

// ---- The engine thread ---------------------------------------------------------------------------------------------------

void Engine::loop() {
  pin_fp_environment();
  device_->pool().pin_caller();
  for (;;) {
    {
      std::unique_lock<std::mutex> lock(mutex_);
      const bool unfinished = !batcher_.empty() || next_arrival_ < arrived_.size();
      const auto may_tick = [&] { return stop_ || (!paused_ && (unfinished || !inbox_.empty() || !cancels_.empty())); };
      if (!may_tick()) {
        if (unfinished_.empty()) speculator_->end_step();
        at_rest_ = true;
        at_rest_changed_.notify_all();
        work_arrived_.wait(lock, may_tick);
        at_rest_ = false;
      }
      if (stop_) return;
    }
    try {
      drain_inbox();
      if (!step() && !batcher_.empty()) fail_all("the scheduler found nothing to run among live requests");
    } catch (const std::exception& e) {
      fail_all(e.what());
    }
    publish_finished();
  }
}

void Engine::drain_inbox() {
  std::vector<uint64_t> cancels;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (next_arrival_ == arrived_.size()) {  // else memory ran out among the last ones
      arrived_.clear();
      next_arrival_ = 0;
      arrived_.swap(inbox_);
    }
    cancels.swap(cancels_);
  }
  while (next_arrival_ < arrived_.size()) {
    // Room first: whatever fails from here on, every sequence that is here has a place among the finished.
    const size_t arriving = 1 + arrived_[next_arrival_]->group->blocked.size();
    const size_t most = finished_.size() + live_.size() + static_cast<size_t>(num_blocked_) + arriving;
    if (finished_.capacity() < most) finished_.reserve(2 * most);
    std::unique_ptr<Sequence> s = std::move(arrived_[next_arrival_++]);
    num_blocked_ += static_cast<int64_t>(s->group->blocked.size());
    // One tick may draw for all its logit rows and for every blocked sample at once.
    const size_t most_draws = static_cast<size_t>(max_logit_rows(options_) + max_draft_rows_) + static_cast<size_t>(num_blocked_);
    Sequence* sequence = s.get();
    try {
      draws_.reserve(most_draws);
      results_.reserve(most_draws);
      start(&s);
    } catch (const std::exception& e) {
      if (s == nullptr) throw;  // it is live, and fails with the others
      std::vector<std::unique_ptr<Sequence>> blocked = std::move(s->group->blocked);
      num_blocked_ -= static_cast<int64_t>(blocked.size());
      const std::string error = std::string("internal error: ") + e.what();
      finish_unstarted(std::move(s), error);
      for (auto& b : blocked) finish_unstarted(std::move(b), error);
      continue;
    }
    // A score of one token without a prompt has nothing to run.
    if (sequence->group->is_score && sequence->num_target() == 0) finish(sequence, OTR_FINISH_SCORE);
  }
  for (uint64_t id : cancels) abort_group(id);
}

// Gives the sequence a slot and hands it to the batcher and the drafters. If that throws, *s is null if it is live nevertheless.
void Engine::start(std::unique_ptr<Sequence>* s) {
  if (free_slots_.empty()) {
    free_slots_.reserve(live_.size() + 1);  // every slot may be free one day
    live_.emplace_back();
    free_slots_.push_back(static_cast<int32_t>(live_.size()) - 1);
  }
  const int32_t slot = free_slots_.back();
  batcher_.add(slot, (*s)->age);
  free_slots_.pop_back();
  (*s)->slot = slot;
  (*s)->in_batcher = true;
  live_[static_cast<size_t>(slot)] = std::move(*s);
  if (!live(slot).group->is_score) speculator_->join(live(slot));
}

void Engine::finish_unstarted(std::unique_ptr<Sequence> s, const std::string& error) {
  s->finish_reason = OTR_FINISH_ERROR;
  s->error = error;
  ++tick_stats_.finished_samples;
  finished_.push_back(std::move(s));
}

// Ends a live sequence. If it still had to run the prompt for others, they end the same way: their outcome is its.
void Engine::finish(Sequence* s, otr_finish_reason reason, std::string error) {
  const std::shared_ptr<Group> group = s->group;
  std::vector<std::unique_ptr<Sequence>> blocked = std::move(group->blocked);
  group->blocked.clear();
  num_blocked_ -= static_cast<int64_t>(blocked.size());
  batcher_.remove(s->slot);
  if (!group->is_score) speculator_->leave(*s);
  s->pages.release_all(&target().page_pool());
  free_slots_.push_back(s->slot);
  finished_.push_back(std::move(live_[static_cast<size_t>(s->slot)]));
  for (auto& b : blocked) finished_.push_back(std::move(b));
  for (size_t i = finished_.size() - 1 - blocked.size(); i < finished_.size(); ++i) {
    // How far a score had come when it failed depends on the chunks it ran in.
    if (reason == OTR_FINISH_ERROR && group->is_score) finished_[i]->raw_logprobs.clear();
    finished_[i]->finish_reason = reason;
    finished_[i]->error = error;
    ++tick_stats_.finished_samples;
  }
}

// Who has received the last sample finds the trace complete.
void Engine::trace_finished() {
  for (const auto& s : finished_) {
    if (s->group->is_score) continue;
    trace_->sample({.group = s->group->id, .sample = s->sample, .tokens = static_cast<int64_t>(s->tokens.size()) - s->num_prompt(),
                    .finish_reason = otr_finish_reason_text(s->finish_reason)});
  }
  if (batcher_.empty()) trace_->flush();
  tick_stats_.trace_error = trace_->error();
}

// The counters go out with the results they count: who has received the last sample reads final numbers.
void Engine::publish_finished() {
  tick_stats_.kv_pages_in_use = target().page_pool().num_in_use();
  tick_stats_.spec = speculator_->counts();
  tick_stats_.decide_seconds = speculator_->decide_seconds();
  if (trace_ != nullptr) trace_finished();
  for (const auto& s : finished_) {
    if (history_ != nullptr && !s->group->is_score) history_->collect(*s);
  }
  std::lock_guard<std::mutex> lock(mutex_);
  stats_ = tick_stats_;
  for (auto& s : finished_) {
    const auto it = unfinished_.find(s->group->id);
    if (--it->second == 0) unfinished_.erase(it);
    outbox_.push_back(std::move(s));  // enqueue() has made room
  }
  if (!finished_.empty()) result_arrived_.notify_all();
  finished_.clear();
}

void Engine::abort_group(uint64_t group_id) {
  for (size_t slot = 0; slot < live_.size(); ++slot) {
    if (live_[slot] != nullptr && live_[slot]->group->id == group_id) finish(live_[slot].get(), OTR_FINISH_ABORT);
  }
}

void Engine::fail_all(const std::string& why) {
  const std::string error = "internal error: " + why;
  paths_.clear(&target().page_pool());
  for (size_t slot = 0; slot < live_.size(); ++slot) {
    if (live_[slot] != nullptr) finish(live_[slot].get(), OTR_FINISH_ERROR, error);
  }
  for (auto& s : unblocked_) {
    if (s == nullptr) continue;
    --num_blocked_;
    finish_unstarted(std::move(s), error);
  }
  unblocked_.clear();
}

}  // namespace otr
