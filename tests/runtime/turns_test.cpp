// Samples that go on behind tokens of the caller's: what a turn draws is what its whole past as a prompt would draw, whoever
// runs it, and little more than its new tokens is run.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "tests/runtime/abi_fixture.h"
#include "tests/runtime/engine_runs.h"
#include "tests/runtime/every_path.h"
#include "tests/runtime/trainer_tensors.h"
#include "tests/runtime/variant_engine.h"

namespace otr {
namespace {

constexpr int kTurns = 3;

// What comes between two turns of a sample: nothing, a token, or up to two pages of them.
std::vector<int32_t> answer(const Sequence& s, int turn, int32_t vocab_size) {
  const uint32_t kind = static_cast<uint32_t>(s.group->tag) + s.sample + static_cast<uint32_t>(turn);
  const size_t lengths[] = {0, 1, 17, 63, 64, 130};
  return random_tokens(kind, lengths[kind % std::size(lengths)], vocab_size);
}

class Turns : public EveryPath {
 protected:
  Turns() {
    if (std::string(GetParam()) == "cpu-scalar") requests_.resize(6);  // it is slow, and the same code
  }
  std::unique_ptr<Engine> engine(const ProcessVariant& v, int64_t num_pages = 2048) const {
    EngineOptions o = variant_options(v, GetParam(), model_, drafter_, num_pages);
    o.prefill_chunk = 64;
    Result<std::unique_ptr<Engine>> created = Engine::create(o);
    EXPECT_TRUE(created.ok()) << created.status().message();
    return created.ok() ? std::move(created.value()) : nullptr;
  }

  // The sample's request, with what came before `s` goes on as its prompt.
  Request whole(const Sequence& s, const std::vector<int32_t>& tokens) const {
    Request r = requests_[s.group->tag];
    r.prompt = s.tokens;
    r.prompt.insert(r.prompt.end(), tokens.begin(), tokens.end());
    r.n = 1;
    r.first_sample = s.sample;
    return r;
  }
  Ended first_turn(Engine* e) const {
    EXPECT_TRUE(e->pause().ok());
    for (size_t i = 0; i < requests_.size(); ++i) submit(e, requests_[i], i);
    e->resume();
    return take_all(e);
  }
  // The next turn of every sample, by append(), or as a prompt.
  Ended next_turn(Engine* e, const Ended& before, int turn, bool append) const {
    EXPECT_TRUE(e->pause().ok());
    for (const auto& [key, s] : before) {
      const std::vector<int32_t> tokens = answer(*s, turn, model_.shape().vocab_size);
      if (!append) {
        submit(e, whole(*s, tokens), key.first);
        continue;
      }
      const Result<uint64_t> id = e->append(*s, {.struct_size = sizeof(otr_append_request),
                                                 .token_ids = tokens.data(),
                                                 .num_tokens = tokens.size(),
                                                 .tag = key.first,
                                                 .sampling = nullptr});
      EXPECT_TRUE(id.ok()) << id.status().message();
    }
    e->resume();
    return take_all(e);
  }
  // Each turn by an engine of its own, which has nothing of the turns before.
  std::vector<Outputs> plain() const {
    std::vector<Outputs> turns;
    Ended ended;
    for (int turn = 0; turn < kTurns; ++turn) {
      const auto e = engine({.num_workers = 1, .processes = false});
      ended = turn == 0 ? first_turn(e.get()) : next_turn(e.get(), ended, turn, false);
      turns.push_back(outputs_of(ended));
    }
    return turns;
  }
  void expect_turns(const std::vector<Outputs>& expected, Engine* e, const std::string& what) const {
    Ended ended;
    for (int turn = 0; turn < kTurns; ++turn) {
      ended = turn == 0 ? first_turn(e) : next_turn(e, ended, turn, true);
      EXPECT_EQ(difference(expected[static_cast<size_t>(turn)], outputs_of(ended)), "") << what << ", turn " << turn;
    }
  }

  const TinyModel model_{{.num_layers = 2}};
  const TinyModel drafter_{{.hidden_size = 16, .intermediate_size = 24, .seed = 9}};
  std::vector<Request> requests_ = mixed_requests(model_);
};

TEST_P(Turns, AreWhatTheirPastAsAPromptDraws) {
  const std::vector<Outputs> expected = plain();
  std::vector<ProcessVariant> variants = {
      {.num_workers = 1, .processes = false},
      {.num_workers = 1, .processes = false, .policy = "fixed:self:4:2:8"},
      {.num_workers = 3, .processes = false, .policy = "fixed:ngram+small:4:2:8", .migrate_every = 5}};
  for (const ProcessVariant& v : variants) {
    const auto e = engine(v);
    expect_turns(expected, e.get(), v.policy + " " + std::to_string(v.num_workers));
    const nlohmann::json stats = settled_stats(*e);
    EXPECT_GT(stats["prefix_hit_tokens"], 0);
    EXPECT_EQ(stats["migrations"] > 0, v.num_workers > 1);
  }
  // And without room to keep much of what has ended.
  const auto e = engine({.num_workers = 1, .processes = false, .policy = "fixed:small:3"}, 12);
  expect_turns(expected, e.get(), "12 pages");
  EXPECT_GT(settled_stats(*e)["preemptions"], 0);
}

OTR_INSTANTIATE_EVERY_PATH(Turns);

class TurnsAnywhere : public Turns {};

TEST_P(TurnsAnywhere, AreTheSame) {
  const std::vector<Outputs> expected = plain();
  const std::vector<ProcessVariant> variants = {
      {.num_workers = 2, .processes = false, .policy = "fixed:small:4:decoupled", .num_draft_workers = 1},
      {.num_workers = 3, .processes = false, .policy = "specactor", .race = RaceMode::kLeapfrog},
      {.num_workers = 2, .policy = "fixed:small:3"}};
  for (const ProcessVariant& v : variants) {
    const auto e = engine(v);
    expect_turns(expected, e.get(), v.policy + (v.processes ? ", processes" : ""));
  }
}

// Every page that the turns before have filled is found, and nothing else is run but what comes after it.
TEST_P(TurnsAnywhere, RunOnlyWhatIsNew) {
  for (const char* policy : {"off", "fixed:self:3:2:6"}) {
    const auto e = engine({.num_workers = 1, .processes = false, .policy = policy});
    constexpr uint32_t kSamples = 7;
    ASSERT_TRUE(e->pause().ok());
    for (uint32_t i = 0; i < kSamples; ++i) {
      Request r(random_tokens(100 + i, 60 + 11 * i, model_.shape().vocab_size));
      // Most begin with the same page, which each of them runs: they come together.
      if (i > 1) std::fill_n(r.prompt.begin(), 70, 5);
      r.sampling.max_new_tokens =
          static_cast<int32_t>(4 + 23 * i);  // the first one ends with a page: its last token is not run
      r.sampling.ignore_eos = 1;
      r.stream = i;
      submit(e.get(), r, i);
    }
    e->resume();
    Ended ended = take_all(e.get());
    for (int turn = 1; turn < kTurns; ++turn) {
      int64_t hits = 0, rows = 0;
      for (const auto& [key, s] : ended) {
        const int64_t behind = s->num_tokens() - 1;  // the last token was drawn, not run
        const int64_t last = s->num_tokens() + static_cast<int64_t>(answer(*s, turn, model_.shape().vocab_size).size()) - 1;
        hits += behind / kPageTokens * kPageTokens;
        rows += last - behind / kPageTokens * kPageTokens;
      }
      const auto before = nlohmann::json::parse(e->stats_json());
      ended = next_turn(e.get(), ended, turn, true);
      const auto after = nlohmann::json::parse(e->stats_json());
      EXPECT_EQ(after["prefix_hit_tokens"].get<int64_t>() - before["prefix_hit_tokens"].get<int64_t>(), hits) << policy;
      EXPECT_EQ(after["prefill_tokens"].get<int64_t>() - before["prefill_tokens"].get<int64_t>(), rows) << policy;
      EXPECT_EQ(after["kv_pages_in_use"], 0);
    }
  }
}

// Samples go on where their pages are, as far as that leaves nobody idle.
TEST_P(TurnsAnywhere, GoHome) {
  constexpr int32_t kWorkers = 3, kSamples = 24;
  PaceOptions pace;  // of a clock on which all workers are equally fast
  for (RoleCost& role : pace.target.roles) role.weights_ms = 1;
  const auto e = engine({.num_workers = kWorkers, .processes = false, .pace = pace});
  ASSERT_TRUE(e->pause().ok());
  for (uint32_t i = 0; i < kSamples; ++i) {
    Request r(random_tokens(100 + i, 200, model_.shape().vocab_size));
    r.sampling.max_new_tokens = 30;
    r.sampling.ignore_eos = 1;
    r.stream = i;
    submit(e.get(), r, i);
  }
  e->resume();
  const Ended ended = take_all(e.get());
  ASSERT_TRUE(e->pause().ok());
  for (const auto& [key, s] : ended) {
    ASSERT_TRUE(e->append(*s, {.struct_size = sizeof(otr_append_request),
                               .token_ids = nullptr,
                               .num_tokens = 0,
                               .tag = key.first,
                               .sampling = nullptr})
                    .ok());
  }
  e->resume();
  (void)take_all(e.get());
  const auto stats = nlohmann::json::parse(e->stats_json());
  constexpr int64_t kPages = 229 / kPageTokens * kPageTokens;
  EXPECT_GE(stats["prefix_hit_tokens"], kSamples * 3 / 4 * kPages);  // a third of them by chance
  for (const auto& worker : stats["workers"]) EXPECT_GT(worker["generated_tokens"], 30 * kSamples / kWorkers / 2);
}

// What a checkpoint brings back goes on as well.
TEST_P(TurnsAnywhere, GoOnAfterACheckpoint) {
  const std::vector<Outputs> expected = plain();
  const std::string path = model_.path() + "/state";
  {
    const auto e = engine({.num_workers = 1, .processes = false, .keeps_checkpoints = true});
    for (size_t i = 0; i < requests_.size(); ++i) submit(e.get(), requests_[i], i);
    ASSERT_TRUE(e->wait(120'000).ok());
    ASSERT_TRUE(e->save_checkpoint(path, {}).ok());
  }
  const auto e = engine({.num_workers = 1, .processes = false, .keeps_checkpoints = true});
  ASSERT_TRUE(e->load_checkpoint(path).ok());
  Ended ended = take_all(e.get());
  Outputs second = outputs_of(next_turn(e.get(), ended, 1, true));
  Outputs wanted = expected[1];
  EXPECT_EQ(second.size() + 1, wanted.size());
  for (auto it = wanted.begin(); it != wanted.end();) it = second.contains(it->first) ? std::next(it) : wanted.erase(it);
  EXPECT_EQ(difference(wanted, second), "");
}

INSTANTIATE_TEST_SUITE_P(Path, TurnsAnywhere, testing::Values("cpu-avx2"), path_name);

// ---- The C interface -----------------------------------------------------------------------------------------------------

class AbiTurns : public AbiFixture {
 protected:
  AbiTurns() { otr_append_request_init(&append_, sizeof append_); }
  // The one result that is outstanding.
  otr_result* result() const {
    otr_result* taken = nullptr;
    EXPECT_EQ(otr_wait(engine(), 60'000, &taken), OTR_OK) << otr_last_error(engine());
    return taken;
  }
  // The request with what its result has drawn as a part of its prompt.
  static Request behind(const Request& request, const otr_result* ended) {
    otr_result_view view;
    EXPECT_EQ(otr_result_get(ended, &view, sizeof view), OTR_OK);
    Request whole = request;
    whole.prompt.insert(whole.prompt.end(), view.token_ids, view.token_ids + view.num_tokens);
    return whole;
  }
  otr_append_request append_;
};

TEST_F(AbiTurns, ATurnGoesOnAndABranchIsAnother) {
  ASSERT_EQ(otr_submit(engine(), &group_, &id_), OTR_OK);
  otr_result* const first = result();
  Request whole = behind(Request(tokens_), first);
  whole.sampling = sampling_;
  const std::vector<int32_t> answers[] = {{}, {5}, {6, 7}, {5}};
  Outputs expected;
  for (uint64_t i = 0; i < std::size(answers); ++i) {
    append_.token_ids = answers[i].data();
    append_.num_tokens = answers[i].size();
    append_.tag = i;
    uint64_t id = 0;
    EXPECT_EQ(otr_append(engine(), first, &append_, &id), OTR_OK) << otr_last_error(engine());
    EXPECT_GT(id, id_);
    Request r = whole;
    r.prompt.insert(r.prompt.end(), answers[i].begin(), answers[i].end());
    expected.merge(Outputs{{{i, 0}, TestEngine(model_).run({r}).at({0, 0})}});
  }
  EXPECT_EQ(otr_result_destroy(first), OTR_OK);  // before they have run
  EXPECT_EQ(difference(expected, engine_.collect()), "");
  EXPECT_EQ(expected.at({1, 0}), expected.at({3, 0}));
  EXPECT_FALSE(expected.at({1, 0}) == expected.at({2, 0}));
}

// Other parameters may be given; the noise key stays.
TEST_F(AbiTurns, ParametersMayChange) {
  sampling_.seed = 12;
  sampling_.stop_token_ids = tokens_.data();
  sampling_.num_stop_token_ids = 1;
  group_.stream = 9;
  group_.first_sample = 4;
  ASSERT_EQ(otr_submit(engine(), &group_, &id_), OTR_OK);
  otr_result* const first = result();
  Request whole = behind(Request(tokens_), first);
  whole.stream = 9;
  whole.first_sample = 4;
  whole.sampling.seed = 12;
  whole.sampling.max_new_tokens = 30;
  whole.sampling.temperature = 1.5f;
  otr_sampling_params other = whole.sampling;
  other.seed = 13;
  append_.sampling = &other;
  ASSERT_EQ(otr_append(engine(), first, &append_, &id_), OTR_OK) << otr_last_error(engine());
  EXPECT_EQ(difference(TestEngine(model_).run({whole}), engine_.collect()), "");
  EXPECT_EQ(otr_result_destroy(first), OTR_OK);
}

// What a sample was drawn with is asked of its result, so that a turn changes what it means to.
TEST_F(AbiTurns, ASampleKnowsItsParameters) {
  sampling_.seed = 12, sampling_.temperature = 0.5f, sampling_.top_k = 7, sampling_.top_p = 0.75f, sampling_.min_p = 0.01f;
  sampling_.repetition_penalty = 1.25f, sampling_.presence_penalty = 0.5f, sampling_.frequency_penalty = -0.5f;
  sampling_.max_new_tokens = 9, sampling_.ignore_eos = 1;
  const int32_t stops[] = {90, 3};
  sampling_.stop_token_ids = stops, sampling_.num_stop_token_ids = 2;
  ASSERT_EQ(otr_submit(engine(), &group_, &id_), OTR_OK);
  otr_result* const first = result();
  otr_sampling_params had;
  ASSERT_EQ(otr_result_sampling(first, &had, sizeof had), OTR_OK);
  EXPECT_EQ(std::vector<int32_t>(had.stop_token_ids, had.stop_token_ids + had.num_stop_token_ids),
            std::vector<int32_t>({90, 3}));
  const auto fields = [](const otr_sampling_params& p) {
    return std::tuple(p.struct_size, p.temperature, p.top_k, p.top_p, p.min_p, p.repetition_penalty, p.presence_penalty,
                      p.frequency_penalty, p.seed, p.max_new_tokens, p.ignore_eos);
  };
  EXPECT_EQ(fields(had), fields(sampling_));
  // A turn with all of them is one without any.
  uint64_t id = 0;
  ASSERT_EQ(otr_append(engine(), first, &append_, &id), OTR_OK);
  const Outputs expected = engine_.collect();
  append_.sampling = &had;
  ASSERT_EQ(otr_append(engine(), first, &append_, &id), OTR_OK);
  EXPECT_EQ(difference(expected, engine_.collect()), "");
  otr_sampling_params older;
  std::memset(&older, 0x55, sizeof older);
  ASSERT_EQ(otr_result_sampling(first, &older, offsetof(otr_sampling_params, seed)), OTR_OK);
  EXPECT_EQ(older.frequency_penalty, -0.5f);
  EXPECT_EQ(older.seed, 0x5555555555555555u);
  EXPECT_EQ(otr_result_sampling(first, nullptr, sizeof had), OTR_INVALID_ARGUMENT);
  EXPECT_NE(std::string(otr_last_error(nullptr)).find("params is NULL"), std::string::npos) << otr_last_error(nullptr);
  EXPECT_EQ(otr_result_sampling(first, &had, 3), OTR_INVALID_ARGUMENT);
  EXPECT_NE(std::string(otr_last_error(nullptr)).find("struct_size"), std::string::npos) << otr_last_error(nullptr);
  EXPECT_EQ(otr_result_destroy(first), OTR_OK);
  EXPECT_EQ(otr_result_sampling(first, &had, sizeof had), OTR_INVALID_HANDLE);
  ASSERT_EQ(otr_score(engine(), &score_, &id_), OTR_OK);
  otr_result* const score = result();
  EXPECT_EQ(otr_result_sampling(score, &had, sizeof had), OTR_INVALID_ARGUMENT);
  EXPECT_NE(std::string(otr_last_error(nullptr)).find("not drawn"), std::string::npos) << otr_last_error(nullptr);
  EXPECT_EQ(otr_result_destroy(score), OTR_OK);
}

TEST_F(AbiTurns, WhatCannotGoOnIsRefused) {
  group_.n = 1;
  ASSERT_EQ(otr_submit(engine(), &group_, &id_), OTR_OK);
  otr_result* const first = result();
  uint64_t id = 0;
  const auto refused = [&](otr_status wanted, const std::string& what) {
    expect_refused(otr_append(engine(), first, &append_, &id), wanted, what);
    EXPECT_EQ(id, 0u) << what;
    append_.token_ids = tokens_.data();
    append_.num_tokens = tokens_.size();
  };
  const int32_t strangers[] = {-1, model_.shape().vocab_size, kIntMin, kIntMax};
  for (const int32_t& token : strangers) {
    append_.token_ids = &token;
    append_.num_tokens = 1;
    refused(OTR_INVALID_ARGUMENT, "token " + std::to_string(token));
  }
  append_.token_ids = nullptr;
  refused(OTR_INVALID_ARGUMENT, "no tokens, and a number of them");
  for (const size_t length : {size_t{1024}, SIZE_MAX, SIZE_MAX / 2}) {  // the context is 1024
    append_.num_tokens = length;
    refused(OTR_INVALID_ARGUMENT, std::to_string(length) + " tokens");
  }
  otr_sampling_params bad = sampling_;
  bad.top_p = kNan;
  append_.sampling = &bad;
  refused(OTR_INVALID_ARGUMENT, "parameters");
  append_.sampling = nullptr;
  append_.struct_size = 3;
  refused(OTR_INVALID_ARGUMENT, "a struct without a size");
  append_.struct_size = sizeof append_;
  expect_refused(otr_append(engine(), first, nullptr, &id), OTR_INVALID_ARGUMENT, "no request");
  expect_refused(otr_append(engine(), first, &append_, nullptr), OTR_INVALID_ARGUMENT, "no id");
  EXPECT_EQ(otr_append(nullptr, first, &append_, &id), OTR_INVALID_HANDLE);

  // What would need more pages than there are.
  const TestEngine small(model_, {.num_pages = 1});
  otr_sampling_params longer = sampling_;
  longer.max_new_tokens = 64;
  append_.sampling = &longer;
  EXPECT_EQ(otr_append(small.get(), first, &append_, &id), OTR_NEVER_FITS);
  append_.sampling = nullptr;
  // Weights that are being replaced, and results that are none.
  ASSERT_EQ(otr_weights_begin(engine(), 1), OTR_OK);
  refused(OTR_BUSY, "no weights");
  ASSERT_EQ(otr_weights_commit(engine()), OTR_OK);
  ASSERT_EQ(otr_result_destroy(first), OTR_OK);
  refused(OTR_INVALID_HANDLE, "a destroyed result");
  ASSERT_EQ(otr_score(engine(), &score_, &id_), OTR_OK);
  otr_result* const score = result();
  expect_refused(otr_append(engine(), score, &append_, &id), OTR_INVALID_ARGUMENT, "a score");
  EXPECT_EQ(otr_result_destroy(score), OTR_OK);
  expect_usable();
}

// One that was cancelled goes on from the tokens that it has, wherever that was.
TEST_F(AbiTurns, WhatWasCancelledGoesOn) {
  Request r(random_tokens(1, 300, model_.shape().vocab_size));
  r.sampling.max_new_tokens = 700;
  r.sampling.ignore_eos = 1;
  for (const int64_t tokens : {0, 1, 70, 200}) {
    const int64_t before = engine_.count("generated_tokens");
    r.stream = static_cast<uint64_t>(tokens);
    const uint64_t group = engine_.submit(r, 0);
    while (engine_.count("generated_tokens") < before + tokens) std::this_thread::yield();
    (void)otr_cancel(engine(), group);  // it may be over
    otr_result* const first = result();
    Request whole = behind(r, first);
    whole.sampling.max_new_tokens = 20;
    append_.sampling = &whole.sampling;
    if (whole.prompt.size() < 1000) {
      ASSERT_EQ(otr_append(engine(), first, &append_, &id_), OTR_OK) << otr_last_error(engine());
      EXPECT_EQ(difference(TestEngine(model_).run({whole}), engine_.collect()), "") << tokens;
    }
    EXPECT_EQ(otr_result_destroy(first), OTR_OK);
  }
}

// What the old weights have computed is not taken for what the new ones would.
TEST_F(AbiTurns, NewWeightsRunThePastAnew) {
  TinyShape shape = model_.shape();
  shape.seed = 2;
  const TinyModel other(shape);
  Request r(random_tokens(1, 100, shape.vocab_size));
  r.sampling.max_new_tokens = 100;
  r.sampling.ignore_eos = 1;
  engine_.submit(r, 0);
  otr_result* const first = result();
  ASSERT_EQ(otr_weights_begin(engine(), 1), OTR_OK);
  put_all(engine(), trainer_tensors(other));
  ASSERT_EQ(otr_weights_commit(engine()), OTR_OK);
  ASSERT_EQ(otr_append(engine(), first, &append_, &id_), OTR_OK);
  EXPECT_EQ(difference(TestEngine(other).run({behind(r, first)}), engine_.collect()), "");
  EXPECT_EQ(otr_result_destroy(first), OTR_OK);
}

// Tokens and stop ids that this engine's model has not are refused, though the result has them.
TEST_F(AbiTurns, AnotherVocabularyIsRefused) {
  TinyShape shape = model_.shape();
  shape.vocab_size = 200;
  const TinyModel large(shape);
  const TestEngine other(large);
  for (const bool by_token : {false, true}) {
    Request r(by_token ? std::vector<int32_t>{1, 150} : tokens_);
    if (!by_token) r.stop_ids = {150};
    ASSERT_EQ(otr_pause(other.get()), OTR_OK);  // it draws nothing
    ASSERT_EQ(otr_cancel(other.get(), other.submit(r, 0)), OTR_OK);
    ASSERT_EQ(otr_resume(other.get()), OTR_OK);
    otr_result* first = nullptr;
    ASSERT_EQ(otr_wait(other.get(), 60'000, &first), OTR_OK);
    expect_refused(otr_append(engine(), first, &append_, &id_), OTR_INVALID_ARGUMENT, by_token ? "a token" : "a stop id");
    EXPECT_EQ(otr_append(other.get(), first, &append_, &id_), OTR_OK);
    other.collect();
    EXPECT_EQ(otr_result_destroy(first), OTR_OK);
  }
}

// A result of another engine goes on here.
TEST_F(AbiTurns, AnotherEnginesResultGoesOnHere) {
  const TestEngine other(model_);
  ASSERT_EQ(otr_submit(other.get(), &group_, &id_), OTR_OK);
  otr_result* first = nullptr;
  ASSERT_EQ(otr_wait(other.get(), 60'000, &first), OTR_OK);
  ASSERT_EQ(otr_append(engine(), first, &append_, &id_), OTR_OK) << otr_last_error(engine());
  const Outputs here = engine_.collect();
  ASSERT_EQ(otr_append(other.get(), first, &append_, &id_), OTR_OK);
  EXPECT_EQ(difference(other.collect(), here), "");
  EXPECT_EQ(otr_result_destroy(first), OTR_OK);
}

}  // namespace
}  // namespace otr
