// Mixtures of experts: which rows share an expert shows in no bit, whoever drafts and wherever they run; and a drafter of the
// model itself has its experts in 4 bits.
#include <gtest/gtest.h>

#include <algorithm>
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

// The same tensors with each layer's experts in two, as transformers 5 has them in memory.
std::vector<TrainerTensor> stacked(const TinyShape& shape, const std::vector<TrainerTensor>& tensors) {
  const auto values_of = [&](const std::string& name) -> const std::vector<float>& {
    return std::find_if(tensors.begin(), tensors.end(), [&](const TrainerTensor& t) { return t.name == name; })->values;
  };
  std::vector<TrainerTensor> all;
  for (const TrainerTensor& t : tensors) {
    const size_t experts = t.name.find("experts.");
    if (experts == t.name.npos) all.push_back(t);
    if (experts == t.name.npos || !t.name.ends_with(".0.down_proj.weight")) continue;
    const std::string layer = t.name.substr(0, experts) + "experts.";
    const int64_t count = shape.num_experts, inner = shape.expert_intermediate_size, hidden = shape.hidden_size;
    TrainerTensor gate_up{layer + "gate_up_proj", {count, 2 * inner, hidden}, {}},
        down{layer + "down_proj", {count, hidden, inner}, {}};
    for (int64_t e = 0; e < count; ++e) {
      for (const char* name : {"gate_proj", "up_proj", "down_proj"}) {
        const std::vector<float>& values = values_of(layer + std::to_string(e) + "." + name + ".weight");
        TrainerTensor& to = name == std::string("down_proj") ? down : gate_up;
        to.values.insert(to.values.end(), values.begin(), values.end());
      }
    }
    all.push_back(std::move(gate_up));
    all.push_back(std::move(down));
  }
  return all;
}

TEST_P(Experts, StackedTensorsAreTheSame) {
  const TinyModel other(mixture(2));
  const Outputs expected = TestEngine(other, setup()).run(requests_);
  const TestEngine engine(model_, setup());
  std::vector<TrainerTensor> tensors = stacked(other.shape(), trainer_tensors(other));
  ASSERT_LT(tensors.size(), trainer_tensors(other).size());
  for (const otr_dtype dtype : {OTR_DTYPE_BF16, OTR_DTYPE_F32}) {
    update(engine, trainer_tensors(model_), 1);
    EXPECT_NE(difference(expected, engine.run(requests_)), "");
    ASSERT_EQ(otr_weights_begin(engine.get(), 2), OTR_OK);
    put_all(engine.get(), tensors, dtype);
    ASSERT_EQ(otr_weights_commit(engine.get()), OTR_OK);
    EXPECT_EQ(difference(expected, engine.run(requests_)), "");
  }
  // They count as put where weights were lost, and another shape is refused before anything is changed.
  ASSERT_EQ(otr_sleep(engine.get(), OTR_MEMORY_WEIGHTS), OTR_OK) << otr_last_error(engine.get());
  ASSERT_EQ(otr_wake(engine.get(), OTR_MEMORY_WEIGHTS), OTR_OK) << otr_last_error(engine.get());
  ASSERT_EQ(otr_weights_begin(engine.get(), 3), OTR_OK);
  put_all(engine.get(), tensors);
  const auto at =
      std::find_if(tensors.begin(), tensors.end(), [](auto& t) { return t.name.ends_with("experts.gate_up_proj"); });
  ASSERT_NE(at, tensors.end());
  std::fill(at->values.begin(), at->values.end(), 7.0f);
  std::swap(at->shape[1], at->shape[2]);
  EXPECT_EQ(put(engine.get(), *at), OTR_INVALID_ARGUMENT);
  EXPECT_NE(std::string(otr_last_error(engine.get())).find("expected shape ["), std::string::npos);
  ASSERT_EQ(otr_weights_commit(engine.get()), OTR_OK) << otr_last_error(engine.get());
  EXPECT_EQ(difference(expected, engine.run(requests_)), "");
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
