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
    Result<std::unique_ptr<Engine>> created =
        Engine::create(variant_options(v, GetParam(), model(version), drafter_, num_pages));
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

  // What engines of one set of weights draw, and score, where each span is.
  void expect_spans(const Ended& ended, const std::string& what) const {
    size_t num_samples = 0, num_changed = 0;
    for (const Request& r : requests_) num_samples += static_cast<size_t>(r.n);
    EXPECT_EQ(ended.size(), num_samples + 1) << what;
    std::array<std::unique_ptr<Engine>, 2> fresh = {engine({.num_workers = 1, .processes = false}, 0),
                                                    engine({.num_workers = 1, .processes = false}, 1)};
    for (const auto& e : fresh) ASSERT_TRUE(e->pause().ok());
    for (const auto& [key, s] : ended) {
      const std::vector<otr_weight_span>& spans = s->weight_spans;
      ASSERT_FALSE(spans.empty());
      EXPECT_EQ(spans.front().first_token, 0u);
      if (s->group->is_score) {
        EXPECT_EQ(spans.size(), 1u) << what;
        submit_score(fresh[spans[0].weight_version % 2].get());
        continue;
      }
      num_changed += spans.size() > 1;
      EXPECT_LT(spans.back().first_token, static_cast<size_t>(s->num_tokens() - s->num_prompt())) << what;
      for (size_t i = 0; i < spans.size(); ++i) {
        if (i > 0) {
          EXPECT_LT(spans[i - 1].first_token, spans[i].first_token);
          EXPECT_LT(spans[i - 1].weight_version, spans[i].weight_version);
        }
        Engine* const e = fresh[spans[i].weight_version % 2].get();
        const Request& r = requests_[key.first];
        const uint64_t tag = tag_of(key, i);
        // Penalties count the whole response: no prompt has it.
        if (r.sampling.repetition_penalty == 1 && r.sampling.presence_penalty == 0)
          submit(e, behind(r, *s, spans[i].first_token), tag);
        const auto begin = s->tokens.begin() + s->num_prompt();
        const std::vector<int32_t> tokens(begin, begin + static_cast<std::ptrdiff_t>(end_of(*s, i)));
        ASSERT_TRUE(e->score({.struct_size = sizeof(otr_score_request),
                              .prompt_token_ids = r.prompt.data(),
                              .num_prompt_tokens = r.prompt.size(),
                              .token_ids = tokens.data(),
                              .num_tokens = tokens.size(),
                              .tag = tag + 1,
                              .sampling = &r.sampling})
                        .ok());
      }
    }
    EXPECT_GT(num_changed, 0u) << what;
    std::array<Ended, 2> expected;
    for (size_t i = 0; i < 2; ++i) {
      fresh[i]->resume();
      expected[i] = take_all(fresh[i].get());
    }
    for (const auto& [key, s] : ended) {
      const Output whole = output_of(*s);
      for (size_t i = 0; i < s->weight_spans.size(); ++i) {
        const otr_weight_span& span = s->weight_spans[i];
        const Ended& all = expected[span.weight_version % 2];
        const std::string where = what + ", request " + std::to_string(key.first) + " sample " + std::to_string(key.second) +
                                  " from " + std::to_string(span.first_token) + " of " + std::to_string(whole.tokens.size());
        if (s->group->is_score) {
          EXPECT_EQ(output_of(*all.at({kScoreTag, 0})).logprobs, whole.logprobs) << where;
          EXPECT_EQ(output_of(*all.at({kScoreTag, 0})).raw_logprobs, whole.raw_logprobs) << where;
          continue;
        }
        const size_t begin = span.first_token, end = end_of(*s, i);
        const Output score = output_of(*all.at({tag_of(key, i) + 1, 0}));
        EXPECT_TRUE(std::equal(score.logprobs.begin() + static_cast<std::ptrdiff_t>(begin), score.logprobs.end(),
                               whole.logprobs.begin() + static_cast<std::ptrdiff_t>(begin)))
            << where;
        EXPECT_TRUE(std::equal(score.raw_logprobs.begin() + static_cast<std::ptrdiff_t>(begin), score.raw_logprobs.end(),
                               whole.raw_logprobs.begin() + static_cast<std::ptrdiff_t>(begin)))
            << where;
        const auto drawn = all.find({tag_of(key, i), key.second});
        if (drawn == all.end()) continue;
        const Output from_here = output_of(*drawn->second);
        ASSERT_GE(from_here.tokens.size(), end - begin) << where;
        EXPECT_TRUE(std::equal(whole.tokens.begin() + static_cast<std::ptrdiff_t>(begin),
                               whole.tokens.begin() + static_cast<std::ptrdiff_t>(end), from_here.tokens.begin()))
            << where;
        EXPECT_TRUE(std::equal(whole.logprobs.begin() + static_cast<std::ptrdiff_t>(begin),
                               whole.logprobs.begin() + static_cast<std::ptrdiff_t>(end), from_here.logprobs.begin()))
            << where;
        if (i + 1 < s->weight_spans.size()) continue;
        EXPECT_EQ(from_here.tokens.size(), end - begin) << where;
        EXPECT_EQ(from_here.reason, whole.reason) << where;
      }
    }
  }

  static size_t end_of(const Sequence& s, size_t span) {
    return span + 1 < s.weight_spans.size() ? s.weight_spans[span + 1].first_token
                                            : static_cast<size_t>(s.num_tokens() - s.num_prompt());
  }
  // Of a span's draw; its score has the next one.
  static uint64_t tag_of(const std::pair<uint64_t, uint32_t>& key, size_t span) {
    return 2 * (span + 16 * (uint64_t{key.second} + 4096 * (1 + key.first)));
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
      {.num_workers = 3, .processes = false, .policy = "specactor", .race = RaceMode::kFastestOfN, .keeps_checkpoints = true},
      {.num_workers = 3, .processes = false, .policy = "auto:leapfrog"},
      {.num_workers = 2, .policy = "fixed:self:3"},
      {.num_workers = 3, .policy = "specactor", .race = RaceMode::kLeapfrog, .migrate_every = 7},
      {.num_workers = 3, .policy = "fixed:small:4:decoupled", .num_draft_workers = 1}};
  for (const ProcessVariant& v : variants) {
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
    EXPECT_TRUE(e->pause().ok());
    submit_score(e.get());
    for (size_t i = 0; i < requests_.size(); ++i) submit(e.get(), requests_[i], i);
    e->resume();
    take(e.get(), 3, &ended);
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
  EXPECT_TRUE(e->pause().ok());
  submit_score(e.get());
  for (size_t i = 0; i < requests_.size(); ++i) submit(e.get(), requests_[i], i);
  e->resume();
  take(e.get(), 3, &ended);
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

// Replicas that have lost are still there when nothing is unfinished any more: what they have computed is of the old weights.
TEST_P(WeightSpansAnywhere, LosersOfRacesLeaveNothing) {
  for (const bool processes : {false, true}) {
    const auto e = engine({.num_workers = 3, .processes = processes, .policy = "specactor", .race = RaceMode::kFastestOfN});
    std::vector<Request> requests(1, Request(random_tokens(5, 200, even_.shape().vocab_size)));
    requests[0].sampling.max_new_tokens = 120;
    requests[0].sampling.ignore_eos = 1;
    std::array<Outputs, 2> expected;
    for (uint64_t i = 0; i < 2; ++i) {
      const auto fresh = engine({.num_workers = 1, .processes = false}, i);
      submit(fresh.get(), requests[0], 0);
      expected[i] = outputs_of(take_all(fresh.get()));
    }
    for (uint64_t version = 0; version < 12; ++version) {
      if (version > 0) {
        EXPECT_TRUE(e->pause().ok());  // at once
        update(e.get(), version);
        e->resume();
      }
      submit(e.get(), requests[0], 0);
      EXPECT_EQ(difference(expected[version % 2], outputs_of(take_all(e.get()))), "") << version;
    }
    (void)settled_stats(*e);
  }
}

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
  r.n = 32;  // enough for the calls to find it running
  r.sampling.max_new_tokens = 800;
  r.sampling.ignore_eos = 1;
  const uint64_t group = engine.submit(r, 0);
  while (engine.count("generated_tokens") < 20) std::this_thread::yield();
  EXPECT_EQ(otr_weights_begin(engine.get(), 1), OTR_BUSY);
  EXPECT_NE(std::string(otr_last_error(engine.get())).find("pause"), std::string::npos);
  ASSERT_EQ(otr_pause(engine.get()), OTR_OK);
  ASSERT_EQ(otr_weights_begin(engine.get(), 1), OTR_OK) << otr_last_error(engine.get());
  for (const TrainerTensor& t : trainer_tensors(odd)) {
    const std::vector<std::byte> data = t.as(OTR_DTYPE_BF16);
    const otr_tensor tensor = tensor_of(t, OTR_DTYPE_BF16, data.data(), data.size());
    ASSERT_EQ(otr_weights_put(engine.get(), &tensor), OTR_OK);
  }
  ASSERT_EQ(otr_weights_commit(engine.get()), OTR_OK);
  EXPECT_EQ(otr_cancel(engine.get(), group + 1), OTR_INVALID_ARGUMENT);
  ASSERT_EQ(otr_resume(engine.get()), OTR_OK);
  for (int32_t i = 0; i < r.n; ++i) {
    otr_result* result = nullptr;
    ASSERT_EQ(otr_wait(engine.get(), 120'000, &result), OTR_OK);
    otr_result_view view;
    ASSERT_EQ(otr_result_get(result, &view, sizeof view), OTR_OK);
    EXPECT_EQ(view.num_tokens, 800u);
    EXPECT_EQ(view.weight_version, 1u);
    ASSERT_EQ(view.num_weight_spans, 2u);
    EXPECT_EQ(view.weight_spans[0].first_token, 0u);
    EXPECT_EQ(view.weight_spans[0].weight_version, 0u);
    EXPECT_GE(view.weight_spans[1].first_token, 1u);
    EXPECT_LT(view.weight_spans[1].first_token, 800u);
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
