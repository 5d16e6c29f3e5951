// Mixtures of experts: which rows share an expert shows in no bit, whoever drafts and wherever they run; and a drafter of the
// model itself has its experts in 4 bits.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/runtime/every_path.h"
#include "tests/runtime/mixed_requests.h"
#include "tests/runtime/test_engine.h"
#include "tests/runtime/trainer_tensors.h"

namespace otr {
namespace {

TinyShape mixture(uint32_t seed) {
  return {.hidden_size = 40,
          .intermediate_size = 72,
          .num_layers = 3,
          .num_heads = 3,
          .seed = seed,
          .num_experts = 7,
          .experts_per_token = 3,
          .expert_intermediate_size = 24,
          .dense_layers = {1}};
}

class Experts : public EveryPath {
 protected:
  Outputs run(const EngineSetup& s) {
    const TestEngine engine(model_, s);
    Outputs outputs = engine.run(requests_);
    preemptions_ = engine.count("preemptions");
    return outputs;
  }

  const TinyModel model_{mixture(1)};
  std::vector<Request> requests_ = mixed_requests(model_);
  int64_t preemptions_ = 0;  // of the last run
};

TEST_P(Experts, BatchChunkThreadsWorkersAndDraftsChangeNothing) {
  const Outputs plain = run(setup());
  EngineSetup alone = setup(), chunk = setup(), threads = setup(), workers = setup(), scarce = setup(), self = setup(),
              tree = setup(), automatic = setup();
  alone.max_batch = 1;
  chunk.prefill_chunk = 7;
  threads.num_threads = 3;
  workers.num_workers = 2;
  scarce.num_pages = 12;
  self.policy = "fixed:self:4";
  tree.policy = "fixed:self+ngram:5:3:12";
  automatic.policy = "auto";
  for (const EngineSetup& s : {alone, chunk, threads, workers, scarce, self, tree, automatic}) {
    EXPECT_EQ(difference(plain, run(s)), "")
        << "batch " << s.max_batch << ", chunk " << s.prefill_chunk << ", " << s.num_threads << " threads, " << s.num_workers
        << " workers, " << s.num_pages << " pages, " << s.policy;
    EXPECT_EQ(preemptions_ > 0, s.num_pages < setup().num_pages) << s.num_pages << " pages";
  }
}

// A draft in 4 bits of the same experts is mostly right.
TEST_P(Experts, TheModelDraftsForItself) {
  EngineSetup s = setup();
  s.policy = "fixed:self:4";
  TestEngine engine(model_, s);
  engine.run(requests_);
  const nlohmann::json stats = engine.stats();
  const double drafted = stats["speculation"]["draft_tokens"].get<double>(),
               kept = stats["speculation"]["accepted_tokens"].get<double>();
  EXPECT_GT(drafted, 200);
  EXPECT_GT(kept, 0.5 * drafted);
}

void update(const TestEngine& engine, const std::vector<TrainerTensor>& tensors, uint64_t version) {
  ASSERT_EQ(otr_weights_begin(engine.get(), version), OTR_OK) << otr_last_error(engine.get());
  put_all(engine.get(), tensors);
  ASSERT_EQ(otr_weights_commit(engine.get()), OTR_OK) << otr_last_error(engine.get());
}

// For what draws and for what drafts; also where all memory was given back before.
TEST_P(Experts, NewWeightsMakeANewModel) {
  const TinyModel other(mixture(2));
  const Outputs expected = TestEngine(other, setup()).run(requests_);
  EngineSetup self = setup();
  self.policy = "fixed:self:4";
  const TestEngine engine(model_, self);
  EXPECT_NE(difference(expected, engine.run(requests_)), "");
  update(engine, trainer_tensors(other), 1);
  EXPECT_EQ(difference(expected, engine.run(requests_)), "");
  const int64_t kept = engine.stats()["speculation"]["accepted_tokens"].get<int64_t>();
  ASSERT_EQ(otr_sleep(engine.get(), OTR_MEMORY_ALL), OTR_OK) << otr_last_error(engine.get());
  ASSERT_EQ(otr_wake(engine.get(), OTR_MEMORY_ALL), OTR_OK) << otr_last_error(engine.get());
  update(engine, trainer_tensors(other), 2);
  EXPECT_EQ(difference(expected, engine.run(requests_)), "");
  EXPECT_GT(engine.stats()["speculation"]["accepted_tokens"].get<int64_t>(), kept + 100);
}

// Who takes an expert whose weights are NaN fails; nobody else notices.
TEST_P(Experts, ANaNExpertFailsThoseWhoTakeIt) {
  const TinyModel wide({.eos_ids = {}, .num_experts = 40, .experts_per_token = 1});
  std::vector<Request> requests;
  for (int32_t token = 0; token < 60; ++token) {
    requests.emplace_back(std::vector<int32_t>{token});
    requests.back().stream = static_cast<uint64_t>(token);
    requests.back().sampling.max_new_tokens = 2;
  }
  const TestEngine engine(wide, setup());
  const Outputs clean = engine.run(requests);
  std::vector<TrainerTensor> tensors = trainer_tensors(wide);
  for (TrainerTensor& t : tensors) {
    if (t.name.find("experts.7.down_proj") != t.name.npos) t.values[5] = std::nanf("");
  }
  update(engine, tensors, 1);
  int failed = 0;
  for (const auto& [key, output] : engine.run(requests)) {
    if (output.reason == OTR_FINISH_ERROR) ++failed;
    else EXPECT_EQ(output.tokens, clean.at(key).tokens);
  }
  EXPECT_GT(failed, 0);
  EXPECT_LT(failed, 30);
}

// All experts, in every layer: what a token takes is the router's weights alone.
TEST_P(Experts, ATokenMayTakeAllOfThem) {
  const TinyModel all({.num_layers = 2, .num_experts = 3, .experts_per_token = 3, .expert_intermediate_size = 33});
  const std::vector<Request> requests = mixed_requests(all);
  EngineSetup chunk = setup(), self = setup();
  chunk.prefill_chunk = 5;
  self.policy = "fixed:self:3";
  const Outputs plain = TestEngine(all, setup()).run(requests);
  for (const EngineSetup& s : {chunk, self}) EXPECT_EQ(difference(plain, TestEngine(all, s).run(requests)), "") << s.policy;
}

OTR_INSTANTIATE_EVERY_PATH(Experts);

}  // namespace
}  // namespace otr
