// Weights that change under samples: every span of a result is what an engine created with its weights draws there, wherever
// the samples are when the weights come, and whoever runs them before and after.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/runtime/every_path.h"
#include "tests/runtime/sanitized.h"
#include "tests/runtime/trainer_tensors.h"
#include "tests/runtime/variant_engine.h"

namespace otr {
namespace {

constexpr uint64_t kNumUpdates = 3;
constexpr uint64_t kScoreTag = 1000;

class WeightSpans : public EveryPath {
 protected:
  WeightSpans() {
    if (std::string(GetParam()) == "cpu-scalar") requests_.resize(6);  // it is slow, and the same code
    for (Request& r : requests_) r.sampling.max_new_tokens += 60;      // so that many are in the midst
    requests_[0].sampling.max_new_tokens = 600;                        // and one is, however busy the machine
  }
  const TinyModel& model(uint64_t version) const { return version % 2 == 0 ? even_ : odd_; }

  std::unique_ptr<Engine> engine(const ProcessVariant& v, uint64_t version = 0, int64_t num_pages = 2048) const {
    EngineOptions o = variant_options(v, GetParam(), model(version), drafter_, num_pages);
    o.prefill_chunk = prefill_chunk_;
    Result<std::unique_ptr<Engine>> created = Engine::create(o);
    EXPECT_TRUE(created.ok()) << created.status().message();
    return created.ok() ? std::move(created.value()) : nullptr;
  }
  void update(Engine* e, uint64_t version) const {
    ASSERT_TRUE(e->begin_weights(version).ok());
    for (const TrainerTensor& t : tensors_[version % 2]) {
      const std::vector<std::byte> data = t.as(OTR_DTYPE_BF16);
      ASSERT_TRUE(e->put_weight({.name = t.name, .dtype = Dtype::kBf16, .shape = t.shape, .data = data.data()}).ok());
    }
    ASSERT_TRUE(e->commit_weights().ok());
  }
  // Many tokens to be scored, of which little is done by the first update.
  void submit_score(Engine* e) const {
    const otr_score_request score = {.struct_size = sizeof(otr_score_request),
                                     .prompt_token_ids = nullptr,
                                     .num_prompt_tokens = 0,
                                     .token_ids = scored_.data(),
                                     .num_tokens = scored_.size(),
                                     .tag = kScoreTag,
                                     .sampling = &requests_[1].sampling};  // with penalties
    EXPECT_TRUE(e->score(score).ok());
  }

  // All requests are running, and a few of their results there.
  void start(Engine* e, Ended* ended) const {
    EXPECT_TRUE(e->pause().ok());
    submit_score(e);
    for (size_t i = 0; i < requests_.size(); ++i) submit(e, requests_[i], i);
    e->resume();
    take(e, 3, ended);
  }

  // All requests, and an update after every few results.
  Ended roll_out(Engine* e, bool keeps_checkpoints = false) const {
    Ended ended;
    EXPECT_TRUE(e->pause().ok());
    submit_score(e);
    for (size_t i = 0; i < requests_.size(); ++i) submit(e, requests_[i], i);
    e->resume();
    for (uint64_t version = 1; version <= kNumUpdates; ++version) {
      take(e, 3, &ended);
      EXPECT_TRUE(e->pause().ok());
      update(e, version);
      e->resume();
    }
    take(e, SIZE_MAX, &ended);
    if (keeps_checkpoints) {
      EXPECT_TRUE(e->save_checkpoint(even_.path() + "/state", {}).ok());  // the ledger has no doubts
    }
    return ended;
  }

  // Asks an engine of a span's weights what it draws there, and scores.
  void ask(Engine* e, const Sequence& s, size_t span) const {
    if (s.group->is_score) return submit_score(e);
    const Request& r = requests_[s.group->tag];
    const size_t begin = s.weight_spans[span].first_token;
    // Penalties count the whole response: no prompt has it.
    if (r.sampling.repetition_penalty == 1 && r.sampling.presence_penalty == 0) submit(e, behind(r, s, begin), tag_of(s, span));
    const otr_score_request score = {.struct_size = sizeof(otr_score_request),
                                     .prompt_token_ids = r.prompt.data(),
                                     .num_prompt_tokens = r.prompt.size(),
                                     .token_ids = s.tokens.data() + s.num_prompt(),
                                     .num_tokens = end_of(s, span),
                                     .tag = tag_of(s, span) + 1,
                                     .sampling = &r.sampling};
    EXPECT_TRUE(e->score(score).ok());
  }
  static void expect_answer(const Ended& all, const Sequence& s, size_t span, const std::string& what) {
    const Output whole = output_of(s);
    const size_t begin = s.weight_spans[span].first_token, end = end_of(s, span);
    const std::string where = what + ", request " + std::to_string(s.group->tag) + " sample " + std::to_string(s.sample) +
                              " from " + std::to_string(begin) + " of " + std::to_string(whole.tokens.size());
    const auto part = [](const auto& x, size_t from, size_t size) {
      return std::vector(x.begin() + from, x.begin() + from + size);
    };
    const Output score = output_of(*all.at({s.group->is_score ? kScoreTag : tag_of(s, span) + 1, 0}));
    ASSERT_EQ(score.logprobs.size(), end) << where;
    EXPECT_EQ(part(score.logprobs, begin, end - begin), part(whole.logprobs, begin, end - begin)) << where;
    EXPECT_EQ(part(score.raw_logprobs, begin, end - begin), part(whole.raw_logprobs, begin, end - begin)) << where;
    const auto drawn = all.find({tag_of(s, span), s.sample});
    if (s.group->is_score || drawn == all.end()) return;
    const Output from_here = output_of(*drawn->second);
    ASSERT_GE(from_here.tokens.size(), end - begin) << where;
    EXPECT_EQ(part(from_here.tokens, 0, end - begin), part(whole.tokens, begin, end - begin)) << where;
    EXPECT_EQ(part(from_here.logprobs, 0, end - begin), part(whole.logprobs, begin, end - begin)) << where;
    if (span + 1 < s.weight_spans.size()) return;
    EXPECT_EQ(from_here.tokens.size(), end - begin) << where;
    EXPECT_EQ(from_here.reason, whole.reason) << where;
  }
  static void expect_order(const Sequence& s, const std::string& what) {
    const std::vector<otr_weight_span>& spans = s.weight_spans;
    ASSERT_FALSE(spans.empty());
    EXPECT_EQ(spans.front().first_token, 0u) << what;
    EXPECT_LT(spans.back().first_token, static_cast<size_t>(s.num_tokens() - s.num_prompt())) << what;
    for (size_t i = 1; i < spans.size(); ++i) {
      EXPECT_LT(spans[i - 1].first_token, spans[i].first_token) << what;
      EXPECT_LT(spans[i - 1].weight_version, spans[i].weight_version) << what;
    }
    EXPECT_TRUE(!s.group->is_score || spans.size() == 1) << what;
  }
  // Every span is what an engine of its weights draws, and scores.
  void expect_spans(const Ended& ended, const std::string& what) const {
    size_t num_samples = 0, num_changed = 0;
    for (const Request& r : requests_) num_samples += static_cast<size_t>(r.n);
    EXPECT_EQ(ended.size(), num_samples + 1) << what;
    for (const uint64_t parity : {0, 1}) {
      const auto e = engine({.num_workers = 1, .processes = false}, parity);
      const auto for_each_span = [&](const auto& visit) {
        for (const auto& [key, s] : ended) {
          for (size_t i = 0; i < s->weight_spans.size(); ++i) {
            if (s->weight_spans[i].weight_version % 2 == parity) visit(*s, i);
          }
        }
      };
      ASSERT_TRUE(e->pause().ok());
      for_each_span([&](const Sequence& s, size_t i) { ask(e.get(), s, i); });
      e->resume();
      const Ended answers = take_all(e.get());
      for_each_span([&](const Sequence& s, size_t i) { expect_answer(answers, s, i, what); });
    }
    for (const auto& [key, s] : ended) {
      expect_order(*s, what);
      num_changed += s->weight_spans.size() > 1;
    }
    EXPECT_GT(num_changed, 0u) << what;
  }

  static size_t end_of(const Sequence& s, size_t span) {
    return span + 1 < s.weight_spans.size() ? s.weight_spans[span + 1].first_token
                                            : static_cast<size_t>(s.num_tokens() - s.num_prompt());
  }
  // Of a span's draw; its score has the next one.
  static uint64_t tag_of(const Sequence& s, size_t span) {
    return 2 * (span + 16 * (uint64_t{s.sample} + 4096 * (1 + s.group->tag)));
  }
  static Request behind(const Request& r, const Sequence& s, size_t num_tokens) {
    Request from = r;
    const auto begin = s.tokens.begin() + s.num_prompt();
    from.prompt.insert(from.prompt.end(), begin, begin + static_cast<std::ptrdiff_t>(num_tokens));
    from.n = 1;
    from.first_sample = s.sample;
    from.sampling.max_new_tokens -= static_cast<int32_t>(num_tokens);
    return from;
  }

  const TinyModel even_{{.num_layers = 2, .seed = 1}}, odd_{{.num_layers = 2, .seed = 2}};
  const TinyModel drafter_{{.hidden_size = 16, .intermediate_size = 24, .seed = 9}};
  const std::array<std::vector<TrainerTensor>, 2> tensors_ = {trainer_tensors(even_), trainer_tensors(odd_)};
  int32_t prefill_chunk_ = 64;  // so that the score takes many ticks
  std::vector<Request> requests_ = mixed_requests(even_);
  const std::vector<int32_t> scored_ = random_tokens(3, 900, even_.shape().vocab_size);
};

TEST_P(WeightSpans, AreWhatEnginesOfTheirWeightsDraw) {
  const std::vector<ProcessVariant> variants = {
      {.num_workers = 1, .processes = false},
      {.num_workers = 1, .processes = false, .policy = "fixed:self:4:2:8", .keeps_checkpoints = true},
      {.num_workers = 3, .processes = false, .policy = "fixed:ngram+small:4:2:8", .migrate_every = 5}};
  for (const ProcessVariant& v : variants) {
    const auto e = engine(v);
    expect_spans(roll_out(e.get(), v.keeps_checkpoints), v.policy + " " + std::to_string(v.num_workers));
    (void)settled_stats(*e);
  }
  // And without room for all, as the score alone takes 15 pages.
  const auto e = engine({.num_workers = 1, .processes = false, .policy = "fixed:small:3"}, 0, 16);
  expect_spans(roll_out(e.get()), "16 pages");
  EXPECT_GT(settled_stats(*e)["preemptions"], 0);
}

OTR_INSTANTIATE_EVERY_PATH(WeightSpans);

class WeightSpansAnywhere : public WeightSpans {};

TEST_P(WeightSpansAnywhere, AreTheSameElsewhere) {
  const std::vector<ProcessVariant> variants = {
      {.num_workers = 2, .processes = false, .policy = "fixed:small:4:decoupled", .num_draft_workers = 1},
      {.num_workers = 3, .processes = false, .policy = "specactor", .keeps_checkpoints = true},
      {.num_workers = 3, .processes = false, .policy = "auto:leapfrog"},
      {.num_workers = 2, .policy = "fixed:self:3"},
      {.num_workers = 3, .policy = "specactor", .migrate_every = 7},
      {.num_workers = 3, .policy = "fixed:small:4:decoupled", .num_draft_workers = 1}};
  for (const ProcessVariant& v : variants) {
    if (kSanitized && v.processes == (v.policy == "specactor")) continue;  // some of both
    const auto e = engine(v);
    expect_spans(roll_out(e.get(), v.keeps_checkpoints), v.policy + (v.processes ? ", processes" : ""));
    const nlohmann::json stats = settled_stats(*e);
    EXPECT_EQ(stats.value("worker_restarts", 0), 0) << stats["last_worker_loss"];
  }
}

// Whoever dies on the way takes nothing along. Of the first update: then no worker is through with its samples.
TEST_P(WeightSpansAnywhere, ALostProcessChangesNothing) {
  for (const ProtocolStep step : {ProtocolStep::kWithdraw, ProtocolStep::kWeights}) {
    const auto e = engine({.num_workers = 2,
                           .policy = "fixed:ngram:2",
                           .faults = {{.worker = 1, .life = 0, .step = step, .occurrence = 0, .kind = FaultKind::kDie}}});
    expect_spans(roll_out(e.get()), "step " + std::to_string(static_cast<int>(step)));
    EXPECT_EQ(settled_stats(*e)["worker_restarts"], 1);
  }
}

// A checkpoint in a sample's second span has both.
TEST_P(WeightSpansAnywhere, ACheckpointHasThem) {
  const std::string path = model(1).path() + "/state";
  Ended ended;
  {
    const auto e = engine({.num_workers = 2, .processes = false, .keeps_checkpoints = true});
    start(e.get(), &ended);
    EXPECT_TRUE(e->pause().ok());
    update(e.get(), 1);
    e->resume();
    take(e.get(), 3, &ended);
    ASSERT_TRUE(e->save_checkpoint(path, {}).ok());
  }
  const auto e = engine({.num_workers = 1, .processes = false, .keeps_checkpoints = true}, 1);
  ASSERT_TRUE(e->load_checkpoint(path).ok());
  take(e.get(), SIZE_MAX, &ended);
  expect_spans(ended, "checkpoint");
}

// Paused samples sleep as well, and go on with the same weights or others.
TEST_P(WeightSpansAnywhere, PausedSamplesSleep) {
  const auto e = engine({.num_workers = 2, .processes = false, .policy = "fixed:self+small:3:2:6"});
  Ended ended;
  start(e.get(), &ended);
  EXPECT_EQ(e->sleep(OTR_MEMORY_KV).code(), StatusCode::kBusy);
  EXPECT_TRUE(e->pause().ok());
  ASSERT_TRUE(e->sleep(OTR_MEMORY_KV).ok());
  e->resume();  // nothing runs: it sleeps
  ASSERT_TRUE(e->wake(OTR_MEMORY_ALL).ok());
  take(e.get(), 2, &ended);
  EXPECT_TRUE(e->pause().ok());
  ASSERT_TRUE(e->sleep(OTR_MEMORY_ALL).ok());
  ASSERT_TRUE(e->wake(OTR_MEMORY_WEIGHTS).ok());
  update(e.get(), 1);
  ASSERT_TRUE(e->wake(OTR_MEMORY_KV).ok());
  e->resume();
  take(e.get(), SIZE_MAX, &ended);
  expect_spans(ended, "sleep");
}

// Weights that a sleep has lost are zeros: until others are committed nothing runs, whatever is resumed or awake.
TEST_P(WeightSpansAnywhere, NothingRunsOnLostWeights) {
  for (const bool resumed_first : {false, true}) {
    const auto e = engine({.num_workers = 2, .processes = false, .policy = "fixed:self+small:3:2:6"});
    Ended ended;
    start(e.get(), &ended);
    EXPECT_TRUE(e->pause().ok());
    ASSERT_TRUE(e->sleep(OTR_MEMORY_ALL).ok());
    if (resumed_first) e->resume();
    ASSERT_TRUE(e->wake(OTR_MEMORY_ALL).ok());
    if (!resumed_first) e->resume();
    Result<std::unique_ptr<Sequence>> none = e->wait(50);
    while (none.ok()) {  // had ended before the pause
      const std::pair key = {none.value()->group->tag, none.value()->sample};
      ended[key] = std::move(none.value());
      none = e->wait(50);
    }
    EXPECT_EQ(none.status().code(), StatusCode::kTimeout);
    EXPECT_NE(none.status().message().find("lacks the weights"), std::string::npos) << none.status().message();
    update(e.get(), 1);
    take(e.get(), SIZE_MAX, &ended);
    expect_spans(ended, "lost");
  }
}

// One sample, whose replicas race at all workers: a pass takes a millisecond, so that others see them race.
class WeightSpansInRaces : public WeightSpans {
 protected:
  void SetUp() override {
    WeightSpans::SetUp();
    requests_.resize(1);
    requests_[0].prompt = random_tokens(5, 200, even_.shape().vocab_size);
    requests_[0].sampling.max_new_tokens = 400;
    prefill_chunk_ = 512;  // who is asked for a replica in the midst of a prompt has none, and is not asked again for long
    pace_.scale = 1;
    for (RoleCost& role : pace_.target.roles) role.weights_ms = 1;
  }
  std::unique_ptr<Engine> racing(RaceMode race, bool processes) const {
    return engine({.num_workers = 3,
                   .processes = processes,
                   .policy = "fixed:ngram:2",
                   .race = race,
                   .keeps_checkpoints = !processes,
                   .pace = pace_});
  }
  static int64_t replicas(const Engine& e) {
    const nlohmann::json stats = nlohmann::json::parse(e.stats_json());
    int64_t sum = 0;
    for (const nlohmann::json& w : stats["workers"]) sum += w["replicas"].get<int64_t>();
    return sum;
  }
  PaceOptions pace_;
};

// An update ends the race, and the furthest replica goes on.
TEST_P(WeightSpansInRaces, TheFurthestReplicaGoesOn) {
  for (const RaceMode race : {RaceMode::kFastestOfN, RaceMode::kLeapfrog}) {
    for (const bool processes : {false, true}) {
      // Threads have time for a race that begins late, whose replicas the update finds in the midst of their prompt.
      prefill_chunk_ = processes ? 512 : 64;
      const auto e = racing(race, processes);
      submit_score(e.get());
      submit(e.get(), requests_[0], 0);
      int64_t seen = 0;
      for (const uint64_t version : {1, 2}) {
        for (int i = 0; i < 2'000 && replicas(*e) == seen; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        seen = replicas(*e);
        EXPECT_TRUE(e->pause().ok());
        update(e.get(), version);
        e->resume();
      }
      const std::string what =
          std::string(race == RaceMode::kLeapfrog ? "leapfrog" : "fastest") + (processes ? ", processes" : "");
      EXPECT_GT(seen, 0) << what;
      expect_spans(take_all(e.get()), what);
      const nlohmann::json stats = settled_stats(*e);
      EXPECT_EQ(stats.value("worker_restarts", 0), 0) << stats["last_worker_loss"];
      EXPECT_TRUE(processes || e->save_checkpoint(even_.path() + "/state", {}).ok()) << what;  // the ledger has no doubts
    }
  }
}

// Replicas that have lost are still there when nothing is unfinished any more: what they have computed is of the old weights,
// and no other sample of that prompt is to find it at any worker.
TEST_P(WeightSpansInRaces, LosersLeaveNothing) {
  const auto roll_short = [this](Engine* e) {
    EXPECT_TRUE(e->pause().ok());  // so that each worker gets one
    for (uint64_t i = 0; i < 3; ++i) {
      Request r = requests_[0];
      r.stream += i;
      r.sampling.max_new_tokens = 10;
      submit(e, r, i);
    }
    e->resume();
    return outputs_of(take_all(e));
  };
  const std::array<Outputs, 2> expected = {roll_short(engine({.num_workers = 1, .processes = false}, 0).get()),
                                           roll_short(engine({.num_workers = 1, .processes = false}, 1).get())};
  for (const bool processes : {false, true}) {
    const auto e = racing(RaceMode::kFastestOfN, processes);
    for (const uint64_t version : {1, 2, 3}) {
      submit(e.get(), requests_[0], 0);
      EXPECT_EQ(take_all(e.get()).size(), 1u);
      EXPECT_TRUE(e->pause().ok());  // at once: who has lost is in the midst of a pass
      update(e.get(), version);
      e->resume();
      EXPECT_EQ(difference(expected[version % 2], roll_short(e.get())), "") << version << (processes ? ", processes" : "");
    }
    (void)settled_stats(*e);
    EXPECT_GT(replicas(*e), 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Path, WeightSpansInRaces, testing::Values("cpu-avx2"), path_name);

// A sample that is cancelled behind an update has no span of the weights that drew nothing of it.
TEST_P(WeightSpansAnywhere, WhoEndsWithTheUpdateHasNoSpanOfIt) {
  const auto e = engine({.num_workers = 1, .processes = false});
  Request r(random_tokens(1, 80, even_.shape().vocab_size));
  r.sampling.max_new_tokens = 900;
  r.sampling.ignore_eos = 1;
  const uint64_t group = submit(e.get(), r, 0);
  while (nlohmann::json::parse(e->stats_json())["generated_tokens"] < 5) std::this_thread::yield();
  EXPECT_TRUE(e->pause().ok());
  update(e.get(), 1);
  ASSERT_TRUE(e->cancel(group).ok());
  e->resume();
  const Ended ended = take_all(e.get());
  ASSERT_EQ(ended.size(), 1u);
  const Sequence& s = *ended.begin()->second;
  EXPECT_EQ(s.finish_reason, OTR_FINISH_ABORT);
  EXPECT_GE(s.num_tokens() - s.num_prompt(), 5);
  ASSERT_EQ(s.weight_spans.size(), 1u);
  EXPECT_EQ(s.weight_spans[0].weight_version, 0u);
}

// An update that finds nobody in the midst, a cancel in it, and two without a sample's token between them.
TEST_P(WeightSpansAnywhere, WhatDrewNothingIsNoSpan) {
  const auto e = engine({.num_workers = 1, .processes = false});
  EXPECT_TRUE(e->pause().ok());
  Request r(random_tokens(1, 80, even_.shape().vocab_size));
  r.n = 2;
  submit(e.get(), r, 0);
  r.stream = 1;
  const uint64_t cancelled = submit(e.get(), r, 1);
  update(e.get(), 1);
  ASSERT_TRUE(e->begin_weights(2).ok());
  EXPECT_TRUE(e->cancel(cancelled).ok());
  e->resume();  // nothing runs: the weights are being replaced
  ASSERT_TRUE(e->commit_weights().ok());
  const Ended ended = take_all(e.get());
  ASSERT_EQ(ended.size(), 4u);
  for (const auto& [key, s] : ended) {
    ASSERT_EQ(s->weight_spans.size(), 1u);
    EXPECT_EQ(s->weight_spans[0].weight_version, 2u);
    EXPECT_EQ(s->finish_reason == OTR_FINISH_ABORT, key.first == 1);
  }
}

INSTANTIATE_TEST_SUITE_P(Path, WeightSpansAnywhere, testing::Values("cpu-avx2"), path_name);

// ---- The C interface -----------------------------------------------------------------------------------------------------

TEST(AbiWeightSpans, AskForAPause) {
  const TinyModel even({.num_layers = 2, .seed = 1}), odd({.num_layers = 2, .seed = 2});
  const TestEngine engine(even, {.policy = "fixed:self:2"});
  Request r(random_tokens(1, 80, even.shape().vocab_size));
  r.n = kSanitized ? 8 : 32;  // enough for the calls to find it running
  const int32_t num_tokens = kSanitized ? 200 : 800;
  r.sampling.max_new_tokens = num_tokens;
  r.sampling.ignore_eos = 1;
  const uint64_t group = engine.submit(r, 0);
  while (engine.count("generated_tokens") < 20) std::this_thread::yield();
  EXPECT_EQ(otr_weights_begin(engine.get(), 1), OTR_BUSY);
  EXPECT_NE(std::string(otr_last_error(engine.get())).find("pause"), std::string::npos);
  ASSERT_EQ(otr_pause(engine.get()), OTR_OK);
  ASSERT_EQ(otr_weights_begin(engine.get(), 1), OTR_OK) << otr_last_error(engine.get());
  put_all(engine.get(), trainer_tensors(odd));
  ASSERT_EQ(otr_weights_commit(engine.get()), OTR_OK);
  EXPECT_EQ(otr_cancel(engine.get(), group + 1), OTR_INVALID_ARGUMENT);
  ASSERT_EQ(otr_resume(engine.get()), OTR_OK);
  for (int32_t i = 0; i < r.n; ++i) {
    otr_result* result = nullptr;
    ASSERT_EQ(otr_wait(engine.get(), 120'000, &result), OTR_OK);
    otr_result_view view;
    ASSERT_EQ(otr_result_get(result, &view, sizeof view), OTR_OK);
    EXPECT_EQ(view.num_tokens, static_cast<size_t>(num_tokens));
    EXPECT_EQ(view.weight_version, 1u);
    ASSERT_EQ(view.num_weight_spans, 2u);
    EXPECT_EQ(view.weight_spans[0].first_token, 0u);
    EXPECT_EQ(view.weight_spans[0].weight_version, 0u);
    EXPECT_GE(view.weight_spans[1].first_token, 1u);
    EXPECT_LT(view.weight_spans[1].first_token, view.num_tokens);
    EXPECT_EQ(view.weight_spans[1].weight_version, 1u);
    otr_result_view old{};  // one that knows no spans
    EXPECT_EQ(otr_result_get(result, &old, offsetof(otr_result_view, weight_spans)), OTR_OK);
    EXPECT_EQ(old.weight_version, 1u);
    EXPECT_EQ(old.weight_spans, nullptr);
    EXPECT_EQ(otr_result_destroy(result), OTR_OK);
  }
  EXPECT_EQ(engine.count("kv_pages_in_use"), 0);
}

}  // namespace
}  // namespace otr
