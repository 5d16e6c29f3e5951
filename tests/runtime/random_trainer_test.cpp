// Engines of random options under random trainers, a seed each. OUTRIDER_TRAINER_SEEDS=FIRST:LAST runs others than the usual.

#include "tests/runtime/random_trainer.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/kernels/temp_folder.h"
#include "tests/runtime/every_path.h"
#include "tests/runtime/sanitized.h"

namespace otr {
namespace {

constexpr const char* kPaths[] = {"cpu-amx", "cpu-avx512", "cpu-avx2", "cpu-scalar"};

const TrainedModel& trained_model(bool experts) {
  const TinyShape drafter{.hidden_size = 16, .intermediate_size = 24, .max_position_embeddings = 512, .seed = 9};
  static const TrainedModel dense({.num_layers = 2, .max_position_embeddings = 512}, drafter);
  static const TrainedModel mixture({.num_heads = 4, .num_kv_heads = 2, .max_position_embeddings = 512, .num_experts = 4},
                                    drafter);
  return experts ? mixture : dense;
}

// One for each model and path: they only answer.
const TrainerOracle& oracle(bool experts, const char* isa) {
  static std::map<std::pair<bool, std::string>, std::unique_ptr<TrainerOracle>> all;
  std::unique_ptr<TrainerOracle>& one = all[{experts, isa}];
  if (one == nullptr) one = std::make_unique<TrainerOracle>(trained_model(experts), isa);
  return *one;
}

TrainerFacts live(uint32_t seed) {
  Dice dice(seed);
  std::vector<const char*> paths;
  for (const char* isa : kPaths) {
    const bool too_slow = kSanitized && std::strcmp(isa, "cpu-amx") == 0;  // its tiles are software there
    if (select_kernels(isa).ok() && !too_slow) paths.push_back(isa);
  }
  const char* const isa = dice.chance(60) ? paths.front() : dice.one_of(paths);
  const bool experts = dice.chance(30);
  const TempFolder folder;
  TrainerFacts facts;
  {
    RandomTrainer trainer(trained_model(experts), {.isa = isa}, seed, folder.path());
    if (!testing::Test::HasFailure()) trainer.live(kSanitized ? 60 : 200);
    if (!testing::Test::HasFailure()) {
      EXPECT_GT(trainer.judge(oracle(experts, isa)), 0u);
    }
    if (testing::Test::HasFailure())
      std::printf("seed %u, %s%s\n%s", seed, isa, experts ? ", experts" : "", trainer.log().c_str());
    facts = trainer.facts();
  }
  return facts;
}

class RandomTrainers : public testing::TestWithParam<uint32_t> {};

TEST_P(RandomTrainers, GetWhatTheContractSays) { live(GetParam()); }

INSTANTIATE_TEST_SUITE_P(Seed, RandomTrainers, testing::ValuesIn(trainer_seeds(kSanitized ? 4 : 12)),
                         [](const testing::TestParamInfo<uint32_t>& one) { return std::to_string(one.param); });

// A trainer that never meets what it is there for would find nothing.
TEST(RandomTrainersInverse, MeetEverything) {
  if (kSanitized) GTEST_SKIP() << "the same calls as without sanitizers";
  TrainerFacts sum;
  const auto met = [&sum] {
    const auto add = [](const char* name, int64_t count) { return count > 0 ? std::string() : std::string(" ") + name; };
    return add("weights that change in a sample", sum.spans) + add("aborts", sum.aborts) + add("stops", sum.stops) +
           add("limits", sum.lengths) + add("turns", sum.turns) + add("scores", sum.scores) + add("sleeps", sum.sleeps) +
           add("restarts", sum.restarts) + add("preemptions", sum.preemptions) + add("moves", sum.migrations) +
           add("accepted drafts", sum.accepted_drafts) + add("exports", sum.exported_tokens) +
           add("imports", sum.imported_tokens) + add("prefix hits", sum.prefix_hit_tokens) +
           add("refused sizes", sum.refused_sizes);
  };
  for (uint32_t seed = 1001; seed <= 1060 && !met().empty() && !HasFailure(); ++seed) {
    const TrainerFacts one = live(seed);
    sum.spans += one.spans, sum.aborts += one.aborts, sum.stops += one.stops, sum.lengths += one.lengths,
        sum.turns += one.turns;
    sum.scores += one.scores, sum.sleeps += one.sleeps, sum.restarts += one.restarts, sum.preemptions += one.preemptions;
    sum.migrations += one.migrations, sum.accepted_drafts += one.accepted_drafts, sum.exported_tokens += one.exported_tokens;
    sum.imported_tokens += one.imported_tokens, sum.prefix_hit_tokens += one.prefix_hit_tokens;
    sum.refused_sizes += one.refused_sizes;
  }
  EXPECT_EQ(met(), "") << "never met in 60 lives";
}

// The oracle would say so.
TEST(TrainerOracleInverse, WhatIsWrongIsFound) {
  const TrainerOracle& asked = oracle(false, "auto");
  const TestEngine engine(trained_model(false).weights(0));
  for (const float penalty : {1.0f, 1.3f}) {
    Owed owed{.request = Request(random_tokens(1, 20, trained_model(false).shape().vocab_size)), .scored = {}};
    owed.request.sampling.max_new_tokens = 30;
    owed.request.sampling.ignore_eos = 1;
    owed.request.sampling.repetition_penalty = penalty;
    const Delivered right{.output = engine.run({owed.request}).begin()->second, .spans = {{0, 0, 0}}, .version = 0};
    ASSERT_EQ(asked.difference(owed, right), "");
    const std::vector<std::pair<const char*, std::function<void(Delivered*)>>> faults = {
        {"a token", [](Delivered* d) { d->output.tokens[20] ^= 1; }},
        {"a bit of a log-prob", [](Delivered* d) { d->output.logprobs.back() ^= 1; }},
        {"a bit of a raw log-prob", [](Delivered* d) { d->output.raw_logprobs.front() ^= 1; }},
        {"other weights", [](Delivered* d) { d->spans[0].kind = 1; }},
        {"other weights from somewhere on",
         [](Delivered* d) {
           d->spans.push_back({17, 1, 1}), d->version = 1;
         }},
        {"weights of another time",
         [](Delivered* d) {
           d->spans.push_back({17, 1, 0});
         }},
        {"tokens of no weights", [](Delivered* d) { d->spans[0].first = 5; }},
        {"a span without tokens",
         [](Delivered* d) {
           d->spans.push_back({30, 1, 0}), d->version = 1;
         }},
        {"an abort at the limit", [](Delivered* d) { d->output.reason = OTR_FINISH_ABORT; }},
        {"another end", [](Delivered* d) { d->output.reason = OTR_FINISH_STOP; }},
        {"an early end", [](Delivered* d) { d->output.tokens.pop_back(); }},
        {"a token too many", [](Delivered* d) {
           for (auto* numbers : {&d->output.logprobs, &d->output.raw_logprobs}) numbers->push_back(0);
           d->output.tokens.push_back(1);
         }}};
    for (const auto& [what, spoil] : faults) {
      Delivered wrong = right;
      spoil(&wrong);
      EXPECT_NE(asked.difference(owed, wrong), "") << what << ", penalty " << penalty;
    }
  }
  Owed score{.request = Request(random_tokens(1, 20, 97)), .is_score = true, .scores_sampling = true, .scored = {5, 6, 7, 8}};
  engine.score(score.request.prompt, score.scored, &score.request.sampling, 0);
  Delivered scored{.output = engine.collect().begin()->second, .spans = {{0, 0, 0}}};
  EXPECT_EQ(asked.difference(score, scored), "");
  scored.output.raw_logprobs[3] ^= 1;
  EXPECT_NE(asked.difference(score, scored), "");
}

}  // namespace
}  // namespace otr
