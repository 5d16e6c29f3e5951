// Engines of random options under random trainers, a seed each. OUTRIDER_TRAINER_SEEDS=FIRST:LAST runs others than the usual.

#include "tests/runtime/random_trainer.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/runtime/every_path.h"

namespace otr {
namespace {

std::pair<uint32_t, uint32_t> seeds() {
  uint32_t first = 1, last = kSanitized ? 4 : 16;
  if (const char* text = std::getenv("OUTRIDER_TRAINER_SEEDS")) std::sscanf(text, "%u:%u", &first, &last);
  return {first, last};
}

const TrainedModel& trained_model(bool experts) {
  static const TrainedModel dense({.num_layers = 2}, {.hidden_size = 16, .intermediate_size = 24, .seed = 9});
  static const TrainedModel mixture({.num_heads = 4, .num_kv_heads = 2, .num_experts = 4},
                                    {.hidden_size = 16, .intermediate_size = 24, .seed = 9});
  return experts ? mixture : dense;
}

// One for each model and path: they only answer.
const TrainerOracle& oracle(bool experts, const char* isa) {
  static std::map<std::pair<bool, std::string>, std::unique_ptr<TrainerOracle>> all;
  std::unique_ptr<TrainerOracle>& one = all[{experts, isa}];
  if (one == nullptr) one = std::make_unique<TrainerOracle>(trained_model(experts), isa);
  return *one;
}

class RandomTrainers : public testing::TestWithParam<uint32_t> {};

TEST_P(RandomTrainers, GetWhatTheContractSays) {
  const uint32_t seed = GetParam();
  Dice dice(seed);
  std::vector<std::string> paths;
  for (const char* isa : {"cpu-avx512", "cpu-avx2", "cpu-scalar"}) {
    if (select_kernels(isa).ok()) paths.push_back(isa);
  }
  const std::string isa = dice.chance(60) ? paths.front() : dice.one_of(paths);
  const bool experts = dice.chance(30);
  std::string folder = (std::filesystem::temp_directory_path() / "outrider-trainer-XXXXXX").string();
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  {
    RandomTrainer trainer(trained_model(experts), isa, seed, folder);
    if (!HasFailure()) trainer.live(kSanitized ? 60 : 200);
    if (!HasFailure()) {
      EXPECT_GT(trainer.judge(oracle(experts, isa.c_str())), 0u);
    }
    if (HasFailure()) std::printf("%s%s\n%s", isa.c_str(), experts ? ", experts" : "", trainer.log().c_str());
  }
  std::filesystem::remove_all(folder);
}

// The oracle would say so.
TEST(TrainerOracleInverse, WhatIsWrongIsFound) {
  const TrainerOracle& asked = oracle(false, "auto");
  const TestEngine engine(trained_model(false).weights(0));
  for (const float penalty : {1.0f, 1.3f}) {
    Owed owed{.request = Request(random_tokens(1, 20, trained_model(false).vocab())), .scored = {}};
    owed.request.sampling.max_new_tokens = 30;
    owed.request.sampling.ignore_eos = 1;
    owed.request.sampling.repetition_penalty = penalty;
    const Delivered right{.output = engine.run({owed.request}).begin()->second, .spans = {{0, 0}}};
    ASSERT_EQ(asked.difference(owed, right), "");
    const std::vector<std::pair<const char*, std::function<void(Delivered*)>>> faults = {
        {"a token", [](Delivered* d) { d->output.tokens[20] ^= 1; }},
        {"a bit of a log-prob", [](Delivered* d) { d->output.logprobs.back() ^= 1; }},
        {"a bit of a raw log-prob", [](Delivered* d) { d->output.raw_logprobs.front() ^= 1; }},
        {"other weights", [](Delivered* d) { d->spans[0].kind = 1; }},
        {"other weights from somewhere on",
         [](Delivered* d) {
           d->spans.push_back({17, 1});
         }},
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
  Delivered scored{.output = engine.collect().begin()->second, .spans = {{0, 0}}};
  EXPECT_EQ(asked.difference(score, scored), "");
  scored.output.raw_logprobs[3] ^= 1;
  EXPECT_NE(asked.difference(score, scored), "");
}

INSTANTIATE_TEST_SUITE_P(Seed, RandomTrainers, testing::Range(seeds().first, seeds().second + 1),
                         [](const testing::TestParamInfo<uint32_t>& one) { return std::to_string(one.param); });

}  // namespace
}  // namespace otr
