// A trainer that calls whatever it pleases, in any order: submits, scores, turns, cancels, pauses, updates under way, sleeps,
// checkpoints into engines of other options, exports of pages, and kills worker processes. It knows what every call must
// return, and asks the oracle for every result.
#pragma once

#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <chrono>
#include <deque>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/runtime/process_variant.h"
#include "tests/runtime/random_trainer_options.h"
#include "tests/runtime/trainer_oracle.h"

namespace otr {

class RandomTrainer {
 public:
  // `path`: of a folder for its files.
  RandomTrainer(const TrainedModel& model, std::string isa, uint32_t seed, std::string path)
      : model_(model), isa_(std::move(isa)), path_(std::move(path)), dice_(seed) {
    create(random_options(dice_));
  }
  ~RandomTrainer() {
    stop_waiting();
    forget_results();
    otr_engine_destroy(engine_);
  }
  RandomTrainer(const RandomTrainer&) = delete;
  RandomTrainer& operator=(const RandomTrainer&) = delete;

  // So many calls, and then an end: everything that was asked for arrives.
  void live(int32_t num_calls) {
    for (int32_t i = 0; i < num_calls && !testing::Test::HasFailure(); ++i) call();
    if (!testing::Test::HasFailure()) finish();
  }
  // Every result against the oracle; returns how many there were.
  size_t judge(const TrainerOracle& oracle) const;
  const std::string& log() const { return log_; }

 private:
  struct Group {
    uint64_t id;
    std::set<uint32_t> samples;  // that have not come
  };
  struct Kept {  // a result that may get a turn
    otr_result* result;
    std::pair<uint64_t, uint32_t> key;
  };
  struct Export {
    std::vector<std::byte> bytes;
    int kind;
  };

  void create(const RandomOptions& o);
  void call();
  void finish();

  void submit(), score(), turn(), cancel(), pause_or_resume(), kill_one(), read_stats();
  void update(), begin_update(), put_some(size_t most), commit();
  void sleep_or_wake(), wake_and_commit();
  void reward(), commit_history(), save_and_load_history();
  void export_pages(), import_pages();
  void next_life();
  bool take(int64_t timeout_ms);  // whether a result came
  void wait_aside(), stop_waiting();
  void receive(otr_result* result);
  void forget_results();

  bool can_submit() const { return !updating_ && !asleep_ && !lost_; }
  bool is_busy() const { return !groups_.empty(); }  // as far as is known: results may have come that nobody has taken
  bool stands() const { return paused_ || asleep_ || lost_; }
  void owe(uint64_t tag, uint64_t id, const Request& request, const Owed* score);
  // The call returned `status`; `also` where two are right, since the engine goes on meanwhile.
  void expect(const std::string& what, otr_status status, otr_status wanted, std::optional<otr_status> also = {});
  const Owed& owed(std::pair<uint64_t, uint32_t> key) const { return owed_.at(key); }

  const TrainedModel& model_;
  const std::string isa_, path_;
  Dice dice_;
  std::string log_;

  otr_engine* engine_ = nullptr;
  RandomOptions options_;
  std::thread waiter_;  // takes results in some lives
  std::atomic<bool> waiter_ends_ = false;
  std::mutex mutex_;
  std::deque<otr_result*> came_;  // guarded by mutex_
  bool paused_ = false, updating_ = false, expects_all_ = false;
  uint32_t asleep_ = 0;  // OTR_MEMORY_…
  bool lost_ = false;    // the weights, since a sleep
  int kind_ = 0, next_kind_ = 0;
  uint64_t version_ = 0, begun_version_ = 0, versions_ = 0, tags_ = 0;
  std::set<size_t> missing_;         // tensors of the update
  std::map<uint64_t, int> kind_of_;  // a version's weights

  std::map<uint64_t, Group> groups_;  // unfinished, by tag
  std::map<std::pair<uint64_t, uint32_t>, Owed> owed_;
  std::map<std::pair<uint64_t, uint32_t>, Delivered> delivered_;
  std::vector<Kept> kept_;
  std::set<std::pair<uint64_t, uint32_t>> rewardable_;  // (group id, sample), since the last commit of the history
  std::vector<Export> exports_;
};

// ---- Lives
// --------------------------------------------------------------------------------------------------------------

inline void RandomTrainer::expect(const std::string& what, otr_status status, otr_status wanted,
                                  std::optional<otr_status> also) {
  log_ += what + (status == OTR_OK ? "" : " = " + std::string(otr_status_text(status))) + "\n";
  if (status == wanted || status == also) return;
  ADD_FAILURE() << what << ": " << otr_status_text(status) << " (" << otr_last_error(engine_) << "), not "
                << otr_status_text(wanted) << (also ? std::string(" or ") + otr_status_text(*also) : "");
}

// With the weights that there are now.
inline void RandomTrainer::create(const RandomOptions& random) {
  options_ = random;
  otr_engine_options o;
  otr_engine_options_init(&o, sizeof o);
  const std::vector<std::string> drafters = {"small=model:" + model_.drafter().path(), "quick=w4:" + model_.drafter().path()};
  const std::vector<const char*> names = {drafters[0].c_str(), drafters[1].c_str()};
  const std::string trace = path_ + "/trace.json";
  o.model_path = model_.weights(kind_).path().c_str();
  o.isa = isa_.c_str();
  o.policy = random.policy.c_str();
  o.max_batch = random.max_batch;
  o.prefill_chunk = random.prefill_chunk;
  o.num_threads = random.num_threads;
  o.kv_bytes = model_.weights(kind_).kv_bytes(random.pages * random.num_workers);
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
  paused_ = false;
  kind_of_[version_] = kind_;
  if (engine_ != nullptr && random.waits_aside) wait_aside();
}

inline void RandomTrainer::wait_aside() {
  waiter_ends_ = false;
  waiter_ = std::thread([this] {
    while (!waiter_ends_) {
      otr_result* result = nullptr;
      const otr_status status = otr_wait(engine_, 5, &result);
      if (status == OTR_IDLE) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      if (status != OTR_OK) continue;
      const std::lock_guard lock(mutex_);
      came_.push_back(result);
    }
  });
}

// What has been taken is received.
inline void RandomTrainer::stop_waiting() {
  if (!waiter_.joinable()) return;
  waiter_ends_ = true;
  waiter_.join();
  for (; !came_.empty(); came_.pop_front()) receive(came_.front());
}

inline void RandomTrainer::call() {
  if (!can_submit() && dice_.chance(10)) return wake_and_commit();
  const int32_t what = dice_.below(100);
  if (what < 22) submit();
  else if (what < 27) score();
  else if (what < 48)
    for (int32_t n = dice_.between(1, 6); n > 0 && take(dice_.below(4)); --n) {
    }
  else if (what < 54) turn();
  else if (what < 57) cancel();
  else if (what < 63) pause_or_resume();
  else if (what < 73) update();
  else if (what < 78) sleep_or_wake();
  else if (what < 82) reward();
  else if (what < 84) commit_history();
  else if (what < 85) save_and_load_history();
  else if (what < 87) export_pages();
  else if (what < 90) import_pages();
  else if (what < 93) next_life();
  else if (what < 97) kill_one();
  else read_stats();
}

inline void RandomTrainer::wake_and_commit() {
  if (asleep_ != 0) expect("wake all", otr_wake(engine_, OTR_MEMORY_ALL), OTR_OK);
  asleep_ = 0;
  if (lost_ && !updating_) begin_update();
  if (updating_) put_some(SIZE_MAX), commit();
}

// All is awake and runs until everything has come.
inline void RandomTrainer::finish() {
  wake_and_commit();
  submit();
  expect("resume", otr_resume(engine_), OTR_OK);
  paused_ = false;
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(kSanitized ? 300 : 60);
  while (is_busy() && std::chrono::steady_clock::now() < limit && !testing::Test::HasFailure()) take(100);
  EXPECT_TRUE(groups_.empty()) << groups_.size() << " groups have not ended";
  if (testing::Test::HasFailure()) return;
  stop_waiting();
  otr_result* none = nullptr;
  expect("wait at the end", otr_wait(engine_, 0, &none), OTR_IDLE);
  read_stats();
}

// A checkpoint, and an engine of other options that goes on from it.
inline void RandomTrainer::next_life() {
  stop_waiting();
  const std::string path = path_ + "/state";
  const otr_status status = otr_checkpoint_save(engine_, path.c_str(), "abc", 3);
  expect("save a checkpoint", status, can_submit() ? OTR_OK : OTR_BUSY);
  if (status != OTR_OK || dice_.chance(30)) return;
  const bool crash = dice_.chance(50);
  for (int32_t n = dice_.below(3); crash && n > 0; --n) {  // what comes after the save is as if it had never been
    otr_result* result = nullptr;
    if (otr_wait(engine_, 1, &result) == OTR_OK) otr_result_destroy(result);
  }
  otr_engine_destroy(engine_);
  engine_ = nullptr;
  create(random_options(dice_));
  if (engine_ == nullptr) return;
  expect("load the checkpoint", otr_checkpoint_load(engine_, path.c_str()), OTR_OK);
  rewardable_.clear();
  std::map<uint64_t, uint64_t> tags;  // by old id
  for (const auto& [tag, group] : groups_) tags[group.id] = tag;
  uint64_t id = 0;
  for (const auto& [old, tag] : tags) groups_.at(tag).id = ++id;
}

inline void RandomTrainer::kill_one() {
  const std::vector<pid_t> pids = options_.processes ? children() : std::vector<pid_t>();
  if (pids.empty()) return;
  log_ += "kill a worker\n";
  kill(dice_.one_of(pids), SIGKILL);
}

inline void RandomTrainer::read_stats() {
  size_t size = 0;
  std::string text(1 << 16, '\0');
  expect("stats", otr_stats(engine_, text.data(), text.size(), &size), OTR_OK);
  const nlohmann::json stats = nlohmann::json::parse(text.c_str(), nullptr, false);
  EXPECT_TRUE(stats.is_object()) << text;
  if (stats.is_object()) {
    EXPECT_EQ(stats["weight_version"], version_);
  }
}

// ---- Requests
// --------------------------------------------------------------------------------------------------------------

inline void RandomTrainer::owe(uint64_t tag, uint64_t id, const Request& request, const Owed* score) {
  Group group{id, {}};
  for (int32_t i = 0; i < request.n; ++i) {
    const uint32_t sample = request.first_sample + static_cast<uint32_t>(i);
    Owed one = score != nullptr ? *score : Owed{.request = request, .scored = {}};
    one.request.n = 1;
    one.request.first_sample = sample;
    owed_[{tag, sample}] = std::move(one);
    group.samples.insert(sample);
  }
  groups_[tag] = std::move(group);
}

inline void RandomTrainer::submit() {
  const Request r = random_request(dice_, model_.vocab());
  const uint64_t tag = ++tags_;
  otr_group_request g;
  otr_group_request_init(&g, sizeof g);
  otr_sampling_params sampling = r.sampling;
  sampling.stop_token_ids = r.stop_ids.data();
  sampling.num_stop_token_ids = r.stop_ids.size();
  g.prompt_token_ids = r.prompt.data();
  g.num_prompt_tokens = r.prompt.size();
  g.n = r.n;
  g.first_sample = r.first_sample;
  g.stream = r.stream;
  g.tag = tag;
  g.sampling = &sampling;
  uint64_t id = 0;
  const otr_status status = otr_submit(engine_, &g, &id);
  expect("submit " + std::to_string(tag) + ": " + std::to_string(r.prompt.size()) + " + " +
             std::to_string(r.sampling.max_new_tokens) + " tokens, n " + std::to_string(r.n),
         status, can_submit() ? OTR_OK : OTR_BUSY);
  if (status == OTR_OK) owe(tag, id, r, nullptr);
}

inline void RandomTrainer::score() {
  Owed one{
      .request = random_request(dice_, model_.vocab()), .is_score = true, .scores_sampling = dice_.chance(60), .scored = {}};
  Request& r = one.request;
  r.n = 1, r.first_sample = 0;
  if (dice_.chance(30)) r.prompt.clear();
  one.scored = dice_.tokens(dice_.between(1, 200), model_.vocab());
  const uint64_t tag = ++tags_;
  otr_sampling_params sampling = r.sampling;
  sampling.stop_token_ids = r.stop_ids.data();
  sampling.num_stop_token_ids = r.stop_ids.size();
  otr_score_request s;
  otr_score_request_init(&s, sizeof s);
  s.prompt_token_ids = r.prompt.data();
  s.num_prompt_tokens = r.prompt.size();
  s.token_ids = one.scored.data();
  s.num_tokens = one.scored.size();
  s.tag = tag;
  s.sampling = one.scores_sampling ? &sampling : nullptr;
  uint64_t id = 0;
  const otr_status status = otr_score(engine_, &s, &id);
  expect("score " + std::to_string(tag), status, can_submit() ? OTR_OK : OTR_BUSY);
  if (status == OTR_OK) owe(tag, id, r, &one);
}

inline void RandomTrainer::turn() {
  if (kept_.empty()) return;
  const Kept& past = dice_.one_of(kept_);
  const Delivered& said = delivered_.at(past.key);
  Request r = owed(past.key).request;
  r.prompt.insert(r.prompt.end(), said.output.tokens.begin(), said.output.tokens.end());
  const std::vector<int32_t> answer = dice_.tokens(dice_.chance(20) ? 0 : dice_.between(1, 70), model_.vocab());
  r.prompt.insert(r.prompt.end(), answer.begin(), answer.end());
  if (r.prompt.size() > 640) return;
  const uint64_t tag = ++tags_;
  const bool changes = dice_.chance(50);
  otr_sampling_params sampling = random_sampling(dice_);
  if (changes) {
    sampling.seed = r.sampling.seed;  // it is not read
    r.sampling = sampling;
    r.stop_ids.clear();
    sampling.seed = 99;
  }
  otr_append_request a;
  otr_append_request_init(&a, sizeof a);
  a.token_ids = answer.data();
  a.num_tokens = answer.size();
  a.tag = tag;
  a.sampling = changes ? &sampling : nullptr;
  uint64_t id = 0;
  const otr_status status = otr_append(engine_, past.result, &a, &id);
  expect("turn " + std::to_string(tag) + " of " + std::to_string(past.key.first), status, can_submit() ? OTR_OK : OTR_BUSY);
  if (status == OTR_OK) owe(tag, id, r, nullptr);
}

inline void RandomTrainer::cancel() {
  if (dice_.chance(15)) return expect("cancel all", otr_cancel(engine_, 0), OTR_OK, OTR_INVALID_ARGUMENT);
  if (groups_.empty()) return;
  auto it = groups_.begin();
  std::advance(it, dice_.below(static_cast<int32_t>(groups_.size())));
  expect("cancel " + std::to_string(it->first), otr_cancel(engine_, it->second.id), OTR_OK, OTR_INVALID_ARGUMENT);
}

inline void RandomTrainer::pause_or_resume() {
  const bool pauses = dice_.chance(paused_ ? 20 : 80);
  if (pauses) expect("pause", otr_pause(engine_), OTR_OK);
  else expect("resume", otr_resume(engine_), OTR_OK);
  paused_ = pauses;
}

inline bool RandomTrainer::take(int64_t timeout_ms) {
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
  if (status == OTR_OK) {
    receive(result);
    return true;
  }
  EXPECT_EQ(status, is_busy() ? OTR_TIMEOUT : OTR_IDLE);
  return false;
}

inline void RandomTrainer::receive(otr_result* result) {
  otr_result_view v;
  ASSERT_EQ(otr_result_get(result, &v, sizeof v), OTR_OK);
  const std::pair key(v.tag, v.sample);
  log_ += "got " + std::to_string(v.tag) + "/" + std::to_string(v.sample) + ": " + otr_finish_reason_text(v.finish_reason) +
          ", " + std::to_string(v.num_tokens) + " tokens\n";
  ASSERT_NE(v.finish_reason, OTR_FINISH_ERROR) << v.error;
  const auto group = groups_.find(v.tag);
  ASSERT_TRUE(group != groups_.end() && group->second.samples.erase(v.sample) == 1) << "nobody asked for it, or it came twice";
  EXPECT_EQ(v.group_id, group->second.id);
  if (group->second.samples.empty()) groups_.erase(group);

  Delivered d;
  d.output = {std::vector<int32_t>(v.token_ids, v.token_ids + v.num_tokens), bits_of(v.logprobs, v.num_tokens),
              bits_of(v.raw_logprobs, v.num_tokens), v.finish_reason, v.error};
  ASSERT_GT(v.num_weight_spans, 0u);
  for (size_t i = 0; i < v.num_weight_spans; ++i)
    d.spans.push_back({v.weight_spans[i].first_token, kind_of_.at(v.weight_spans[i].weight_version)});
  EXPECT_EQ(v.weight_version, v.weight_spans[v.num_weight_spans - 1].weight_version);
  delivered_[key] = std::move(d);
  if (v.finish_reason == OTR_FINISH_STOP || v.finish_reason == OTR_FINISH_LENGTH) rewardable_.insert({v.group_id, v.sample});
  if (v.finish_reason == OTR_FINISH_SCORE || owed(key).is_score || kept_.size() >= 8 || dice_.chance(60)) {
    EXPECT_EQ(otr_result_destroy(result), OTR_OK);
  } else {
    kept_.push_back({result, key});
  }
}

inline void RandomTrainer::forget_results() {
  for (const Kept& kept : kept_) EXPECT_EQ(otr_result_destroy(kept.result), OTR_OK);
  kept_.clear();
}

// ---- Weights and memory
// --------------------------------------------------------------------------------------------------------------

inline void RandomTrainer::update() {
  if (!updating_) {
    if (dice_.chance(10)) return expect("commit nothing", otr_weights_commit(engine_), OTR_INVALID_ARGUMENT);
    if (!stands() && dice_.chance(70)) expect("pause", otr_pause(engine_), OTR_OK), paused_ = true;
    begin_update();
    if (!updating_ || dice_.chance(30)) return;
  }
  const int32_t what = dice_.below(10);
  if (what == 0 && stands()) begin_update();
  else if (what < 3) put_some(3);
  else if (what == 3 && expects_all_ && !missing_.empty())
    expect("commit too early", otr_weights_commit(engine_), OTR_INVALID_ARGUMENT);
  else put_some(SIZE_MAX), commit();
}

inline void RandomTrainer::begin_update() {
  const uint64_t version = ++versions_;
  const otr_status status = otr_weights_begin(engine_, version);
  const bool may = (asleep_ & OTR_MEMORY_WEIGHTS) == 0 && (stands() || !is_busy());
  const bool perhaps = (asleep_ & OTR_MEMORY_WEIGHTS) == 0 && !stands() && is_busy();
  expect("begin version " + std::to_string(version), status, may ? OTR_OK : OTR_BUSY,
         perhaps ? std::optional(OTR_OK) : std::nullopt);
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

inline void RandomTrainer::put_some(size_t most) {
  while (!missing_.empty() && most-- > 0) {
    auto it = missing_.begin();
    std::advance(it, dice_.below(static_cast<int32_t>(missing_.size())));
    const otr_status status = put(engine_, model_.tensors(next_kind_)[*it], dice_.chance(50) ? OTR_DTYPE_BF16 : OTR_DTYPE_F32,
                                  static_cast<size_t>(dice_.below(3)));
    if (status != OTR_OK) return expect("put " + std::to_string(*it), status, OTR_OK);
    missing_.erase(it);
  }
}

inline void RandomTrainer::commit() {
  expect("commit kind " + std::to_string(next_kind_), otr_weights_commit(engine_), OTR_OK);
  updating_ = lost_ = false;
  kind_ = next_kind_;
  version_ = begun_version_;
  kind_of_[version_] = kind_;
}

inline void RandomTrainer::sleep_or_wake() {
  if (options_.processes) return expect("sleep", otr_sleep(engine_, OTR_MEMORY_ALL), OTR_UNSUPPORTED, OTR_BUSY);
  const auto what = static_cast<otr_memory>(dice_.between(1, 3));
  if (asleep_ != 0 && dice_.chance(60)) {
    expect("wake " + std::to_string(what), otr_wake(engine_, what), OTR_OK);
    asleep_ &= ~static_cast<uint32_t>(what);
    return;
  }
  if (!paused_ && dice_.chance(60)) expect("pause", otr_pause(engine_), OTR_OK), paused_ = true;
  const bool may = !updating_ && (paused_ || asleep_ != 0 || !is_busy());
  const bool perhaps = !updating_ && !paused_ && asleep_ == 0 && is_busy();
  const otr_status status = otr_sleep(engine_, what);
  expect("sleep " + std::to_string(what), status, may ? OTR_OK : OTR_BUSY, perhaps ? std::optional(OTR_OK) : std::nullopt);
  if (status != OTR_OK) return;
  asleep_ |= static_cast<uint32_t>(what);
  if ((what & OTR_MEMORY_WEIGHTS) != 0) lost_ = true;
}

// ---- History and pages
// --------------------------------------------------------------------------------------------------------------

inline void RandomTrainer::reward() {
  if (rewardable_.empty()) return;
  auto it = rewardable_.begin();
  std::advance(it, dice_.below(static_cast<int32_t>(rewardable_.size())));
  // The thread that waits may have taken it before a commit.
  expect("reward", otr_reward(engine_, it->first, it->second, static_cast<float>(dice_.below(3))), OTR_OK,
         options_.waits_aside ? std::optional(OTR_INVALID_ARGUMENT) : std::nullopt);
}

inline void RandomTrainer::commit_history() {
  expect("commit the history", otr_history_commit(engine_), OTR_OK);
  rewardable_.clear();
}

inline void RandomTrainer::save_and_load_history() {
  const std::string path = path_ + "/history";
  // Without the option the policy decides whether there is one.
  const auto perhaps = options_.history == 0 ? std::optional(OTR_INVALID_ARGUMENT) : std::nullopt;
  const otr_status saved = otr_history_save(engine_, path.c_str());
  expect("save the history", saved, OTR_OK, perhaps);
  if (saved != OTR_OK) return;
  rewardable_.clear();
  expect("load the history", otr_history_load(engine_, path.c_str()), OTR_OK);
}

inline void RandomTrainer::export_pages() {
  if (delivered_.empty()) return;
  auto it = delivered_.begin();
  std::advance(it, dice_.below(static_cast<int32_t>(delivered_.size())));
  std::vector<int32_t> tokens = owed(it->first).request.prompt;
  tokens.insert(tokens.end(), it->second.output.tokens.begin(), it->second.output.tokens.end());
  Export e{std::vector<std::byte>(size_t{1} << 20), kind_};
  size_t size = 0, covered = 0;
  const otr_status status =
      otr_kv_export(engine_, tokens.data(), tokens.size(), e.bytes.data(), e.bytes.size(), &size, &covered);
  expect("export pages", status,
         options_.processes ? OTR_UNSUPPORTED
         : can_submit()     ? OTR_OK
                            : OTR_BUSY,
         options_.processes ? std::optional(OTR_BUSY) : std::nullopt);
  if (status != OTR_OK) return;
  EXPECT_LE(covered, tokens.size());
  e.bytes.resize(size);
  if (exports_.size() < 4) exports_.push_back(std::move(e));
  else exports_[static_cast<size_t>(dice_.below(4))] = std::move(e);
}

inline void RandomTrainer::import_pages() {
  if (exports_.empty()) return;
  const Export& e = dice_.one_of(exports_);
  size_t covered = 0;
  const otr_status status = otr_kv_import(engine_, e.bytes.data(), e.bytes.size(), &covered);
  expect("import pages", status,
         options_.processes ? OTR_UNSUPPORTED
         : !can_submit()    ? OTR_BUSY
         : e.kind == kind_  ? OTR_OK
                            : OTR_UNSUPPORTED,
         options_.processes ? std::optional(OTR_BUSY) : std::nullopt);
}

inline size_t RandomTrainer::judge(const TrainerOracle& oracle) const {
  EXPECT_EQ(delivered_.size(), owed_.size());
  for (const auto& [key, got] : delivered_) {
    const std::string what = oracle.difference(owed(key), got);
    EXPECT_EQ(what, "") << "request " << key.first << ", sample " << key.second;
  }
  return delivered_.size();
}

}  // namespace otr
