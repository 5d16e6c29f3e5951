#include "tests/runtime/random_trainer.h"

#include <signal.h>

#include <chrono>
#include <cmath>
#include <filesystem>
#include <iterator>

#include "tests/runtime/process_variant.h"
#include "tests/runtime/sanitized.h"

namespace otr {
namespace {

std::optional<otr_status> perhaps(bool may, otr_status status) { return may ? std::optional(status) : std::nullopt; }

}  // namespace

// ---- Lives

void RandomTrainer::expect(const std::string& what, otr_status status, otr_status wanted, std::optional<otr_status> also) {
  log_ += what + (status == OTR_OK ? "" : " = " + std::string(otr_status_text(status))) + "\n";
  if (status != OTR_OK) {
    EXPECT_STRNE(otr_last_error(engine_), "") << what;
  }
  if (status == wanted || status == also) return;
  ADD_FAILURE() << what << ": " << otr_status_text(status) << " (" << otr_last_error(engine_) << "), not "
                << otr_status_text(wanted) << (also ? std::string(" or ") + otr_status_text(*also) : "");
}

// With weights of this kind. What is unfinished must fit.
void RandomTrainer::create(RandomOptions random, int kind) {
  for (const auto& [tag, group] : groups_) random.pages = std::max(random.pages, group.pages);
  options_ = random;
  otr_engine_options o;
  otr_engine_options_init(&o, sizeof o);
  const std::vector<std::string> drafters = {"small=model:" + model_.drafter().path(), "quick=w4:" + model_.drafter().path()};
  const std::vector<const char*> names = {drafters[0].c_str(), drafters[1].c_str()};
  const std::string trace = path_ + "/trace.json";
  o.model_path = model_.weights(kind).path().c_str();
  o.isa = host_.isa.c_str();
  o.device = host_.device.c_str();
  o.policy = random.policy.c_str();
  o.max_batch = random.max_batch;
  o.prefill_chunk = random.prefill_chunk;
  o.num_threads = random.num_threads;
  o.kv_bytes = model_.weights(kind).kv_bytes(random.pages * random.num_workers);
  o.drafters = names.data();
  o.num_drafters = names.size();
  o.history = random.history;
  o.pin_threads = random.pinned;
  o.trace_path = random.traced ? trace.c_str() : "";
  o.num_workers = random.num_workers;
  o.num_draft_workers = random.num_draft_workers;
  o.keep_checkpoints = 1;
  o.worker_processes = random.processes;
  o.worker_executable = OUTRIDER_WORKER;
  o.max_worker_restarts = 1000;
  expect("an engine: " + text_of(random), otr_engine_create(&o, &engine_), OTR_OK);
  if (engine_ == nullptr) return;
  paused_ = false;
  rewardable_.clear();
  keeps_history_ = stats().contains("history");
  ++facts_.lives;
}

void RandomTrainer::call() {
  struct Choice {
    int32_t weight;
    void (RandomTrainer::*call)();
  };
  static constexpr Choice kChoices[] = {{22, &RandomTrainer::submit},
                                        {5, &RandomTrainer::score},
                                        {21, &RandomTrainer::take_some},
                                        {6, &RandomTrainer::turn},
                                        {3, &RandomTrainer::cancel},
                                        {6, &RandomTrainer::pause_or_resume},
                                        {10, &RandomTrainer::update},
                                        {5, &RandomTrainer::sleep_or_wake},
                                        {4, &RandomTrainer::reward},
                                        {2, &RandomTrainer::commit_history},
                                        {1, &RandomTrainer::save_and_load_history},
                                        {3, &RandomTrainer::export_pages},
                                        {3, &RandomTrainer::import_pages},
                                        {3, &RandomTrainer::save_and_go_on},
                                        {4, &RandomTrainer::kill_one},
                                        {4, &RandomTrainer::check_numbers}};
  if (!can_submit() && dice_.chance(10)) return wake_and_commit();
  int32_t sum = 0;
  for (const Choice& c : kChoices) sum += c.weight;
  int32_t at = dice_.below(sum);
  const Choice* chosen = kChoices;
  for (; at >= chosen->weight; ++chosen) at -= chosen->weight;
  (this->*chosen->call)();
}

void RandomTrainer::wake_and_commit() {
  if (asleep_ != 0) expect("wake all", otr_wake(engine_, OTR_MEMORY_ALL), OTR_OK);
  asleep_ = 0;
  if (lost_ && !updating_) begin_update();
  if (updating_) put_some(SIZE_MAX), commit();
}

// All is awake and runs until everything has come; no result is further away from the one before than a minute.
void RandomTrainer::finish() {
  wake_and_commit();
  submit();
  expect("resume", otr_resume(engine_), OTR_OK);
  paused_ = false;
  const auto patience = std::chrono::seconds(kSanitized || host_.is_slow ? 300 : 60);
  for (auto limit = std::chrono::steady_clock::now() + patience;
       is_busy() && std::chrono::steady_clock::now() < limit && !testing::Test::HasFailure();) {
    if (take(100)) limit = std::chrono::steady_clock::now() + patience;
  }
  EXPECT_TRUE(groups_.empty()) << groups_.size() << " groups have not ended";
  stop_waiting();
  if (testing::Test::HasFailure()) return;
  EXPECT_FALSE(take(0));
  check_numbers();
  end_life();
}

// Of an engine that goes.
void RandomTrainer::end_life() {
  const nlohmann::json s = stats();
  facts_.preemptions += s["preemptions"].get<int64_t>();
  facts_.migrations += s["migrations"].get<int64_t>();
  facts_.prefix_hit_tokens += s["prefix_hit_tokens"].get<int64_t>();
  if (s.contains("worker_restarts")) facts_.restarts += s["worker_restarts"].get<int64_t>();
}

// A checkpoint, and an engine of other options that goes on from it.
void RandomTrainer::save_and_go_on() {
  stop_waiting();
  const std::string path = path_ + "/state";
  const std::string note = "update " + std::to_string(version_);
  const otr_status status = otr_checkpoint_save(engine_, path.c_str(), note.data(), note.size());
  expect("save a checkpoint", status, can_submit() ? OTR_OK : OTR_BUSY);
  if (status == OTR_OK) {
    std::string read(100, '\0');
    size_t size = 0;
    EXPECT_EQ(otr_checkpoint_user_data(path.c_str(), read.data(), read.size(), &size), OTR_OK);
    EXPECT_EQ(read.substr(0, size), note);
    if (is_busy() && dice_.chance(20)) {
      expect("load into an engine that owes", otr_checkpoint_load(engine_, path.c_str()), OTR_BUSY);
    }
  }
  if (status != OTR_OK || dice_.chance(30)) {
    if (options_.waits_aside) wait_aside();
    return;
  }
  for (int32_t n = dice_.below(4); n > 0; --n) {  // what comes after the save is as if it had never been
    otr_result* result = nullptr;
    if (otr_wait(engine_, 1, &result) == OTR_OK) otr_result_destroy(result);
  }
  end_life();
  otr_engine_destroy(engine_);
  engine_ = nullptr;
  const bool others = dice_.chance(20);
  create(random_options(dice_, host_), others ? 1 - kind_ : kind_);
  if (engine_ == nullptr) return;
  if (others) refuse_other_weights();
  load();
  if (options_.waits_aside) wait_aside();
}

// The manual's way: first the weights that the checkpoint was saved under.
void RandomTrainer::refuse_other_weights() {
  expect("load under other weights", otr_checkpoint_load(engine_, (path_ + "/state").c_str()), OTR_UNSUPPORTED);
  expect("begin", otr_weights_begin(engine_, ++versions_), OTR_OK);
  put_all(engine_, model_.tensors(kind_));
  expect("commit kind " + std::to_string(kind_), otr_weights_commit(engine_), OTR_OK);
}

void RandomTrainer::load() {
  if (dice_.chance(30)) expect("pause", otr_pause(engine_), OTR_OK), paused_ = true;
  expect("load the checkpoint", otr_checkpoint_load(engine_, (path_ + "/state").c_str()), OTR_OK);
  std::map<uint64_t, uint64_t> tags;  // by old id
  for (const auto& [tag, group] : groups_) tags[group.id] = tag;
  uint64_t id = 0;
  for (const auto& [old, tag] : tags) groups_.at(tag).id = ++id;
  if (dice_.chance(30) && std::filesystem::exists(path_ + "/history")) {
    expect("load the history", otr_history_load(engine_, (path_ + "/history").c_str()),
           keeps_history_ ? OTR_OK : OTR_INVALID_ARGUMENT);
  }
}

void RandomTrainer::kill_one() {
  const std::vector<pid_t> pids = options_.processes ? children() : std::vector<pid_t>();
  if (pids.empty()) return;
  log_ += "kill a worker\n";
  kill(dice_.one_of(pids), SIGKILL);
}

nlohmann::json RandomTrainer::stats() {
  size_t size = 0;
  std::string text(1 << 16, '\0');
  expect("stats", otr_stats(engine_, text.data(), text.size(), &size), OTR_OK);
  EXPECT_EQ(text.find('\0') + 1, size);
  return nlohmann::json::parse(text.c_str());
}

void RandomTrainer::check_numbers() {
  const nlohmann::json before = stats();
  EXPECT_EQ(before["weight_version"], version_);
  if (keeps_history_ && !options_.waits_aside) {
    EXPECT_EQ(before["history"]["pending_samples"], rewardable_.size());
  }
  if (!paused_ || options_.processes) return;
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
  const nlohmann::json after = stats();
  for (const char* key : {"ticks", "generated_tokens", "prefill_tokens"}) EXPECT_EQ(before[key], after[key]) << key;
}

// ---- Requests

int64_t RandomTrainer::pages_of(const Request& r, size_t num_scored) const {
  const auto limit = static_cast<size_t>(model_.shape().max_position_embeddings);
  const size_t most = r.prompt.size() + static_cast<size_t>(r.sampling.max_new_tokens);
  const size_t tokens = num_scored > 0 ? r.prompt.size() + num_scored - 1 : std::min(most, limit);
  return static_cast<int64_t>((tokens + kPageTokens - 1) / kPageTokens);
}

// What a submit, score or append returned, and ought to.
void RandomTrainer::owe(const std::string& what, otr_status status, uint64_t id, Request request, std::optional<Owed> score) {
  const auto limit = static_cast<size_t>(model_.shape().max_position_embeddings);
  const size_t num_scored = score ? score->scored.size() : 0;
  const bool is_long = score ? request.prompt.size() + num_scored > limit : request.prompt.size() >= limit;
  const int64_t pages = pages_of(request, num_scored);
  const otr_status wanted = is_long                  ? OTR_INVALID_ARGUMENT  // what no waiting mends is said first
                            : pages > options_.pages ? OTR_NEVER_FITS
                            : can_submit()           ? OTR_OK
                                                     : OTR_BUSY;
  expect(what + " " + std::to_string(tags_) + ": " + std::to_string(request.prompt.size()) + " + " +
             std::to_string(score ? static_cast<int32_t>(num_scored) : request.sampling.max_new_tokens) + " tokens, n " +
             std::to_string(request.n),
         status, wanted);
  facts_.refused_sizes += status == OTR_NEVER_FITS || status == OTR_INVALID_ARGUMENT;
  EXPECT_EQ(id != 0, status == OTR_OK);
  if (status != OTR_OK) return;
  Group group{.id = id, .samples = {}, .pages = pages};
  for (int32_t i = 0; i < request.n; ++i) {
    const uint32_t sample = request.first_sample + static_cast<uint32_t>(i);
    Owed one = score ? *score : Owed{.request = request, .scored = {}};
    one.request.n = 1;
    one.request.first_sample = sample;
    one.version = version_;
    owed_[{tags_, sample}] = std::move(one);
    group.samples.insert(sample);
  }
  groups_[tags_] = std::move(group);
}

void RandomTrainer::submit() {
  const Request r = random_request(dice_, host_, model_.shape().vocab_size);
  const otr_sampling_params sampling = sampling_of(r);
  const otr_group_request g = group_request(r, sampling, ++tags_);
  uint64_t id = 0;
  const otr_status status = otr_submit(engine_, &g, &id);
  owe("submit", status, id, r, {});
}

void RandomTrainer::score() {
  Owed one{.request = random_request(dice_, host_, model_.shape().vocab_size),
           .is_score = true,
           .scores_sampling = dice_.chance(60),
           .scored = dice_.tokens(dice_.between(1, host_.is_slow ? 70 : 300), model_.shape().vocab_size)};
  Request& r = one.request;
  r.n = 1, r.first_sample = 0;
  if (dice_.chance(30)) r.prompt.clear();
  const otr_sampling_params sampling = sampling_of(r);
  otr_score_request s;
  otr_score_request_init(&s, sizeof s);
  s.prompt_token_ids = r.prompt.data();
  s.num_prompt_tokens = r.prompt.size();
  s.token_ids = one.scored.data();
  s.num_tokens = one.scored.size();
  s.tag = ++tags_;
  s.sampling = one.scores_sampling ? &sampling : nullptr;
  uint64_t id = 0;
  const otr_status status = otr_score(engine_, &s, &id);
  owe("score", status, id, r, one);
}

void RandomTrainer::turn() {
  if (kept_.empty()) return;
  const Kept& past = dice_.one_of(kept_);
  const Delivered& said = delivered_.at(past.key);
  Request r = owed_.at(past.key).request;
  r.prompt.insert(r.prompt.end(), said.output.tokens.begin(), said.output.tokens.end());
  const std::vector<int32_t> answer = dice_.tokens(dice_.chance(20) ? 0 : dice_.between(1, 70), model_.shape().vocab_size);
  r.prompt.insert(r.prompt.end(), answer.begin(), answer.end());
  otr_sampling_params sampling = random_sampling(dice_, host_);
  const bool changes = dice_.chance(50);
  if (changes) {
    sampling.seed = r.sampling.seed;
    r.sampling = sampling;
    r.stop_ids.clear();
    sampling.seed = 99;  // it is not read
  }
  otr_append_request a;
  otr_append_request_init(&a, sizeof a);
  a.token_ids = answer.data();
  a.num_tokens = answer.size();
  a.tag = ++tags_;
  a.sampling = changes ? &sampling : nullptr;
  uint64_t id = 0;
  const otr_status status = otr_append(engine_, past.result, &a, &id);
  owe("turn of " + std::to_string(past.key.first) + ",", status, id, r, {});
  facts_.turns += status == OTR_OK;
}

void RandomTrainer::cancel() {
  if (dice_.chance(15)) {
    for (auto& [tag, group] : groups_) group.cancelled = true;
    return expect("cancel all", otr_cancel(engine_, 0), OTR_OK);
  }
  if (groups_.empty()) return expect("cancel nothing", otr_cancel(engine_, 1u << 30), OTR_INVALID_ARGUMENT);
  auto it = groups_.begin();
  std::advance(it, dice_.below(static_cast<int32_t>(groups_.size())));
  const uint64_t tag = it->first;
  const otr_status status = otr_cancel(engine_, it->second.id);
  expect("cancel " + std::to_string(tag), status, OTR_OK, OTR_INVALID_ARGUMENT);
  if (status == OTR_OK) {
    it->second.cancelled = true;
  } else if (!waiter_.joinable()) {  // then all of it has ended
    while (take(0)) {
    }
    EXPECT_FALSE(groups_.contains(tag));
  }
}

void RandomTrainer::pause_or_resume() {
  const bool pauses = dice_.chance(paused_ ? 20 : 80);
  if (pauses) expect("pause", otr_pause(engine_), OTR_OK);
  else expect("resume", otr_resume(engine_), OTR_OK);
  paused_ = pauses;
}

// ---- Results

void RandomTrainer::wait_aside() {
  waiter_ends_ = false;
  waiter_ = std::thread([this] {
    while (!waiter_ends_) {
      otr_result* result = nullptr;
      const otr_status status = otr_wait(engine_, 5, &result);
      const std::lock_guard lock(mutex_);
      if (status == OTR_OK) came_.push_back(result);
      else if (status != OTR_IDLE && status != OTR_TIMEOUT) waiter_status_ = status;
    }
  });
}

// What has been taken is received.
void RandomTrainer::stop_waiting() {
  if (!waiter_.joinable()) return;
  waiter_ends_ = true;
  waiter_.join();
  EXPECT_EQ(waiter_status_, OTR_OK);
  for (; !came_.empty(); came_.pop_front()) receive(came_.front());
}

bool RandomTrainer::take(int64_t timeout_ms) {
  otr_result* result = nullptr;
  for (int64_t ms = 0; waiter_.joinable(); ++ms) {
    {
      const std::lock_guard lock(mutex_);
      if (!came_.empty()) result = came_.front(), came_.pop_front();
    }
    if (result != nullptr) receive(result);
    if (result != nullptr || ms >= timeout_ms) return result != nullptr;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  const otr_status status = otr_wait(engine_, timeout_ms, &result);
  EXPECT_EQ(result != nullptr, status == OTR_OK);
  if (status == OTR_OK) {
    receive(result);
    return true;
  }
  EXPECT_EQ(status, is_busy() ? OTR_TIMEOUT : OTR_IDLE);
  return false;
}

void RandomTrainer::take_some() {
  for (int32_t n = dice_.between(1, 6); n > 0; --n) {
    if (!take(dice_.below(4))) return;
  }
}

void RandomTrainer::receive(otr_result* result) {
  otr_result_view v;
  ASSERT_EQ(otr_result_get(result, &v, sizeof v), OTR_OK);
  const std::pair key(v.tag, v.sample);
  log_ += "got " + std::to_string(v.tag) + "/" + std::to_string(v.sample) + ": " + otr_finish_reason_text(v.finish_reason) +
          ", " + std::to_string(v.num_tokens) + " tokens\n";
  ASSERT_NE(v.finish_reason, OTR_FINISH_ERROR) << v.error;
  const auto group = groups_.find(v.tag);
  ASSERT_TRUE(group != groups_.end() && group->second.samples.erase(v.sample) == 1) << "nobody asked for it, or it came twice";
  EXPECT_EQ(v.group_id, group->second.id);
  if (v.finish_reason == OTR_FINISH_ABORT) {
    EXPECT_TRUE(group->second.cancelled) << "nobody cancelled it";
  }
  if (group->second.samples.empty()) groups_.erase(group);

  Delivered d;
  d.version = version_;
  d.output = {std::vector<int32_t>(v.token_ids, v.token_ids + v.num_tokens), bits_of(v.logprobs, v.num_tokens),
              bits_of(v.raw_logprobs, v.num_tokens), v.finish_reason, v.error};
  ASSERT_GT(v.num_weight_spans, 0u);
  for (size_t i = 0; i < v.num_weight_spans; ++i) {
    const otr_weight_span& span = v.weight_spans[i];
    ASSERT_TRUE(kind_of_.contains(span.weight_version)) << "no weights had the version " << span.weight_version;
    d.spans.push_back({span.first_token, span.weight_version, kind_of_.at(span.weight_version)});
  }
  EXPECT_EQ(v.weight_version, d.spans.back().version);
  facts_.spans += d.spans.size() > 1;
  delivered_[key] = std::move(d);
  check_fields(result, v);
  if (v.finish_reason == OTR_FINISH_STOP || v.finish_reason == OTR_FINISH_LENGTH) rewardable_.insert({v.group_id, v.sample});
  const bool keeps = !owed_.at(key).is_score && dice_.chance(40);
  if (!keeps) {
    EXPECT_EQ(otr_result_destroy(result), OTR_OK);
  } else if (kept_.size() < 8) {
    kept_.push_back({result, key});
  } else {
    Kept& old = kept_[static_cast<size_t>(dice_.below(8))];
    EXPECT_EQ(otr_result_destroy(old.result), OTR_OK);
    old = {result, key};
  }
}

void RandomTrainer::check_fields(const otr_result* result, const otr_result_view& v) {
  facts_.aborts += v.finish_reason == OTR_FINISH_ABORT;
  facts_.stops += v.finish_reason == OTR_FINISH_STOP;
  facts_.lengths += v.finish_reason == OTR_FINISH_LENGTH;
  facts_.scores += v.finish_reason == OTR_FINISH_SCORE;
  facts_.accepted_drafts += v.spec_num_accepted_tokens;
  EXPECT_EQ(v.error_status, OTR_OK);
  EXPECT_STREQ(v.error, "");
  EXPECT_LE(v.spec_num_accepted_tokens, v.spec_num_draft_tokens);
  EXPECT_LE(v.spec_num_verify_steps, v.spec_num_draft_tokens);
  if (facts_.lives == 1 && options_.policy == "off") {
    EXPECT_EQ(v.spec_num_draft_tokens, 0);
  }
  const Owed& asked = owed_.at({v.tag, v.sample});
  otr_sampling_params s;
  if (asked.is_score) {
    EXPECT_EQ(otr_result_sampling(result, &s, sizeof s), OTR_INVALID_ARGUMENT);
    return;
  }
  EXPECT_EQ(otr_result_sampling(result, &s, sizeof s), OTR_OK);
  const otr_sampling_params& r = asked.request.sampling;
  EXPECT_TRUE(s.temperature == r.temperature && s.top_k == r.top_k && s.top_p == r.top_p && s.min_p == r.min_p &&
              s.repetition_penalty == r.repetition_penalty && s.presence_penalty == r.presence_penalty &&
              s.frequency_penalty == r.frequency_penalty && s.seed == r.seed && s.max_new_tokens == r.max_new_tokens &&
              s.ignore_eos == r.ignore_eos);
  EXPECT_EQ(std::vector(s.stop_token_ids, s.stop_token_ids + s.num_stop_token_ids), asked.request.stop_ids);
}

// Results outlive their engine.
void RandomTrainer::forget_results() {
  for (const Kept& kept : kept_) {
    otr_result_view v;
    EXPECT_EQ(otr_result_get(kept.result, &v, sizeof v), OTR_OK);
    EXPECT_EQ(std::vector(v.token_ids, v.token_ids + v.num_tokens), delivered_.at(kept.key).output.tokens);
    EXPECT_EQ(otr_result_destroy(kept.result), OTR_OK);
  }
  kept_.clear();
}

size_t RandomTrainer::judge(const TrainerOracle& oracle) const {
  EXPECT_EQ(delivered_.size(), owed_.size());
  for (const auto& [key, got] : delivered_) {
    const std::string what = oracle.difference(owed_.at(key), got);
    EXPECT_EQ(what, "") << "request " << key.first << ", sample " << key.second;
  }
  return delivered_.size();
}

// ---- Weights and memory

void RandomTrainer::update() {
  if (!updating_) {
    if (dice_.chance(10)) return expect("commit nothing", otr_weights_commit(engine_), OTR_INVALID_ARGUMENT);
    if (!stands() && dice_.chance(70)) expect("pause", otr_pause(engine_), OTR_OK), paused_ = true;
    begin_update();
    if (!updating_ || dice_.chance(30)) return;
  }
  const int32_t what = dice_.below(10);
  // Tensors that are not put keep their values.
  const bool may_leave_out = next_kind_ == kind_ && !expects_all_ && !lost_;
  if (what == 0 && stands()) begin_update();
  else if (what < 3) put_some(3);
  else if (what == 3) put_wrong();
  else if (what < 6 && expects_all_ && !missing_.empty())
    expect("commit too early", otr_weights_commit(engine_), OTR_INVALID_ARGUMENT);
  else put_some(may_leave_out ? 2 : SIZE_MAX), commit();
}

void RandomTrainer::begin_update() {
  const uint64_t version = ++versions_;
  const otr_status status = otr_weights_begin(engine_, version);
  const bool can = (asleep_ & OTR_MEMORY_WEIGHTS) == 0;
  expect("begin version " + std::to_string(version), status, can && (stands() || !is_busy()) ? OTR_OK : OTR_BUSY,
         perhaps(can && !stands() && is_busy(), OTR_OK));
  if (status != OTR_OK) return;
  if (!updating_) {
    next_kind_ = dice_.below(2);
    missing_.clear();
    for (size_t i = 0; i < model_.tensors(next_kind_).size(); ++i) missing_.insert(i);
    expects_all_ = dice_.chance(50);
    if (expects_all_) expect("expect all", otr_weights_expect_all(engine_), OTR_OK);
  }
  updating_ = true;
  begun_version_ = version;
}

void RandomTrainer::put_some(size_t most) {
  while (!missing_.empty() && most-- > 0) {
    auto it = missing_.begin();
    std::advance(it, dice_.below(static_cast<int32_t>(missing_.size())));
    const TrainerTensor& tensor = model_.tensors(next_kind_)[*it];
    const otr_dtype dtype = dice_.chance(50) ? OTR_DTYPE_BF16 : OTR_DTYPE_F32;
    expect("put " + tensor.name, put(engine_, tensor, dtype, static_cast<size_t>(dice_.below(3))), OTR_OK);
    missing_.erase(it);
  }
}

void RandomTrainer::put_wrong() {
  TrainerTensor tensor = dice_.one_of(model_.tensors(next_kind_));
  if (dice_.chance(50)) tensor.name += "s";
  else
    tensor.shape.back() += 1, tensor.values.resize(tensor.values.size() / static_cast<size_t>(tensor.shape.back() - 1) *
                                                   static_cast<size_t>(tensor.shape.back()));
  expect("put what is wrong", put(engine_, tensor), OTR_INVALID_ARGUMENT);
}

void RandomTrainer::commit() {
  kind_of_[begun_version_] = next_kind_;  // results of it may come while the call returns
  expect("commit kind " + std::to_string(next_kind_), otr_weights_commit(engine_), OTR_OK);
  updating_ = lost_ = false;
  kind_ = next_kind_;
  version_ = begun_version_;
}

void RandomTrainer::sleep_or_wake() {
  if (options_.processes) return expect("sleep", otr_sleep(engine_, OTR_MEMORY_ALL), OTR_UNSUPPORTED, OTR_BUSY);
  const auto what = static_cast<otr_memory>(dice_.between(1, 3));
  if (asleep_ != 0 && dice_.chance(60)) {
    expect("wake " + std::to_string(what), otr_wake(engine_, what), OTR_OK);
    asleep_ &= ~static_cast<uint32_t>(what);
    return;
  }
  if (!paused_ && dice_.chance(60)) expect("pause", otr_pause(engine_), OTR_OK), paused_ = true;
  const otr_status status = otr_sleep(engine_, what);
  expect("sleep " + std::to_string(what), status, !updating_ && (stands() || !is_busy()) ? OTR_OK : OTR_BUSY,
         perhaps(!updating_ && !stands() && is_busy(), OTR_OK));
  if (status != OTR_OK) return;
  ++facts_.sleeps;
  asleep_ |= static_cast<uint32_t>(what);
  if ((what & OTR_MEMORY_WEIGHTS) != 0) lost_ = true;
}

// ---- History and pages

void RandomTrainer::reward() {
  const otr_status refused = keeps_history_ ? OTR_INVALID_ARGUMENT : OTR_OK;
  if (dice_.chance(20)) return expect("reward nothing", otr_reward(engine_, 1u << 30, 0, 1.0f), refused);
  if (rewardable_.empty()) return;
  auto it = rewardable_.begin();
  std::advance(it, dice_.below(static_cast<int32_t>(rewardable_.size())));
  // The thread that waits may have taken it before a commit.
  expect("reward", otr_reward(engine_, it->first, it->second, static_cast<float>(dice_.below(3))), OTR_OK,
         perhaps(options_.waits_aside, OTR_INVALID_ARGUMENT));
  if (dice_.chance(20))
    expect("reward NaN", otr_reward(engine_, it->first, it->second, std::nanf("")), refused, OTR_INVALID_ARGUMENT);
}

void RandomTrainer::commit_history() {
  expect("commit the history", otr_history_commit(engine_), OTR_OK);
  rewardable_.clear();
}

void RandomTrainer::save_and_load_history() {
  const std::string path = path_ + "/history";
  const otr_status wanted = keeps_history_ ? OTR_OK : OTR_INVALID_ARGUMENT;
  const otr_status status = otr_history_save(engine_, path.c_str());
  expect("save the history", status, wanted);
  if (status == OTR_OK) rewardable_.clear();
  if (status == OTR_OK) expect("load the history", otr_history_load(engine_, path.c_str()), wanted);
}

void RandomTrainer::export_pages() {
  if (delivered_.empty()) return;
  auto it = std::prev(delivered_.end(), std::min<ptrdiff_t>(dice_.between(1, 12), static_cast<ptrdiff_t>(delivered_.size())));
  std::vector<int32_t> tokens = owed_.at(it->first).request.prompt;
  tokens.insert(tokens.end(), it->second.output.tokens.begin(), it->second.output.tokens.end());
  Export e{std::vector<std::byte>(size_t{1} << 20), kind_, 0};
  size_t size = 0;
  const otr_status status =
      otr_kv_export(engine_, tokens.data(), tokens.size(), e.bytes.data(), e.bytes.size(), &size, &e.num_tokens);
  expect("export pages", status,
         options_.processes ? OTR_UNSUPPORTED
         : can_submit()     ? OTR_OK
                            : OTR_BUSY,
         perhaps(options_.processes, OTR_BUSY));
  if (status != OTR_OK) return;
  EXPECT_LE(e.num_tokens, tokens.size());
  EXPECT_EQ(e.num_tokens % kPageTokens, 0u);
  facts_.exported_tokens += static_cast<int64_t>(e.num_tokens);
  e.bytes.resize(size);
  if (exports_.size() < 4) exports_.push_back(std::move(e));
  else exports_[static_cast<size_t>(dice_.below(4))] = std::move(e);
}

void RandomTrainer::import_pages() {
  if (exports_.empty()) return;
  const Export& e = dice_.one_of(exports_);
  size_t covered = 0;
  const otr_status status = otr_kv_import(engine_, e.bytes.data(), e.bytes.size(), &covered);
  const otr_status wanted = options_.processes ? OTR_UNSUPPORTED
                            : !can_submit()    ? OTR_BUSY
                            : e.kind == kind_  ? OTR_OK
                                               : OTR_UNSUPPORTED;
  expect("import pages", status, wanted, perhaps(options_.processes, OTR_BUSY));
  if (status != OTR_OK) return;
  EXPECT_LE(covered, e.num_tokens);
  facts_.imported_tokens += static_cast<int64_t>(covered);
}

}  // namespace otr
