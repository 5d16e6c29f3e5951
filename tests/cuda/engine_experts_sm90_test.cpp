// Mixtures of experts on cuda-sm90a: which rows share an expert shows in no bit, whoever drafts and however programs are
// captured; and they compute what the CPU's paths do.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string_view>

#include "tests/cuda/engine_sm90.h"

namespace otr {
namespace {

TinyShape mixture(uint32_t seed) {
  return {.hidden_size = 64,
          .intermediate_size = 72,
          .num_layers = 2,
          .num_heads = 4,
          .num_kv_heads = 2,
          .max_position_embeddings = 512,
          .seed = seed,
          .num_experts = 7,
          .experts_per_token = 3,
          .expert_intermediate_size = 32,
          .dense_layers = {0}};
}

class ExpertsEngineSm90 : public EngineSm90 {
 protected:
  ExpertsEngineSm90() {
    options_model_ = &mixture_;
    for (Request& r : requests_) r.sampling.max_new_tokens -= 2;  // a pass has more launches than a dense model's
  }

  const TinyModel mixture_{mixture(1)};
};

TEST_F(ExpertsEngineSm90, BatchChunkAndPreemptionChangeNothing) {
  nlohmann::json stats;
  const Outputs expected = run({}, &stats);
  ASSERT_EQ(expected.size(), 4u);
  for (const auto& [key, output] : expected) EXPECT_EQ(output.error, "");
  EXPECT_EQ(stats["isa"], "cuda-sm90a");
  EXPECT_GT(stats["gpu"]["captures"], 4);
  EXPECT_EQ(difference(expected, run({.max_batch = 1})), "");
  EXPECT_EQ(difference(expected, run({.max_batch = 3, .prefill_chunk = 7})), "");
  EXPECT_EQ(difference(expected, run({.num_pages = 4}, &stats)), "");
  EXPECT_GT(stats["preemptions"], 0);
}

// The model itself, its experts in 4 bits, is mostly right.
TEST_F(ExpertsEngineSm90, TheModelDraftsForItself) {
  for (Request& r : requests_) r.sampling.max_new_tokens += 2;  // of which a share can be told
  const Outputs expected = run({});
  for (const char* policy : {"fixed:self:3", "fixed:self:3:2:6"}) {
    nlohmann::json stats;
    EXPECT_EQ(difference(expected, run({.policy = policy}, &stats)), "") << policy;
    const double drafted = stats["speculation"]["draft_tokens"], accepted = stats["speculation"]["accepted_tokens"];
    EXPECT_GT(drafted, 10) << policy;
    if (std::string_view(policy) == "fixed:self:3") {
      EXPECT_GT(accepted, 0.5 * drafted) << drafted;
    }
  }
}

TEST_F(ExpertsEngineSm90, AModelWithExpertsOfItsOwnDrafts) {
  const Outputs expected = run({});
  const TinyModel other({.hidden_size = 32,
                         .intermediate_size = 48,
                         .max_position_embeddings = 512,
                         .seed = 2,
                         .num_experts = 4,
                         .expert_intermediate_size = 32});
  for (const bool in_4_bits : {false, true}) {
    nlohmann::json stats;
    const Trial trial{.policy = "fixed:other+ngram:2", .drafter = &other, .drafter_in_4_bits = in_4_bits};
    EXPECT_EQ(difference(expected, run(trial, &stats)), "") << in_4_bits;
    EXPECT_GT(stats["speculation"]["draft_tokens"], 0) << in_4_bits;
  }
}

// Also where all memory was given back before, and the model in 4 bits is made again.
TEST_F(ExpertsEngineSm90, WeightsThatArePutAreThoseOfTheCheckpoint) {
  const TinyModel next(mixture(9));
  const Trial trial{.policy = "fixed:self:2"};
  options_model_ = &next;
  nlohmann::json stats;
  const Outputs expected = run(trial, &stats);
  const auto accepted = [](const nlohmann::json& s) { return s["speculation"]["accepted_tokens"].get<int64_t>(); };
  options_model_ = &mixture_;
  const TestEngine engine(create(trial));
  ASSERT_EQ(status_, OTR_OK) << otr_last_error(nullptr);
  EXPECT_NE(difference(expected, engine.run(requests_)), "");
  int64_t before = accepted(engine.stats());
  put_weights_of(next, engine);
  EXPECT_EQ(difference(expected, engine.run(requests_)), "");
  EXPECT_EQ(accepted(engine.stats()) - before, accepted(stats));
  ASSERT_EQ(otr_sleep(engine.get(), OTR_MEMORY_ALL), OTR_OK) << otr_last_error(engine.get());
  ASSERT_EQ(otr_wake(engine.get(), OTR_MEMORY_ALL), OTR_OK) << otr_last_error(engine.get());
  put_weights_of(next, engine);
  before = accepted(engine.stats());
  EXPECT_EQ(difference(expected, engine.run(requests_)), "");
  EXPECT_EQ(accepted(engine.stats()) - before, accepted(stats));
}

TEST_F(ExpertsEngineSm90, WorkersOnTwoDevicesChangeNothing) {
  if (!CudaDevice::open(1).ok()) GTEST_SKIP() << "one device alone";
  EXPECT_EQ(difference(run({}), run({.policy = "fixed:self:2", .device = "cuda:0,1"})), "");
}

// Who takes an expert whose weights are NaN fails; nobody else notices.
TEST_F(ExpertsEngineSm90, ANaNExpertFailsThoseWhoTakeIt) {
  const TinyModel wide({.max_position_embeddings = 512,
                        .eos_ids = {},
                        .num_experts = 24,
                        .experts_per_token = 1,
                        .expert_intermediate_size = 32});
  options_model_ = &wide;
  std::vector<Request> requests;
  for (int32_t token = 0; token < 24; ++token) {
    requests.emplace_back(std::vector<int32_t>{token});
    requests.back().stream = static_cast<uint64_t>(token);
    requests.back().sampling.max_new_tokens = 2;
  }
  const TestEngine engine(create({.max_batch = 24}));
  ASSERT_EQ(status_, OTR_OK) << otr_last_error(nullptr);
  const Outputs clean = engine.run(requests);
  std::vector<TrainerTensor> tensors = trainer_tensors(wide);
  for (TrainerTensor& t : tensors) {
    if (t.name.find("experts.7.down_proj") != t.name.npos) t.values[5] = std::nanf("");
  }
  ASSERT_EQ(otr_weights_begin(engine.get(), 1), OTR_OK) << otr_last_error(engine.get());
  put_all(engine.get(), tensors);
  ASSERT_EQ(otr_weights_commit(engine.get()), OTR_OK) << otr_last_error(engine.get());
  int failed = 0;
  for (const auto& [key, output] : engine.run(requests)) {
    if (output.reason == OTR_FINISH_ERROR) ++failed;
    else EXPECT_EQ(output.tokens, clean.at(key).tokens);
  }
  EXPECT_GT(failed, 0);
  EXPECT_LT(failed, 12);
}

// Scores of the same tokens, on a device and on the host: of another order of sums, and of the same model.
TEST_F(ExpertsEngineSm90, ScoresAreNearThoseOfTheCpu) {
  const std::vector<int32_t> tokens = random_tokens(5, 60, 97), none;
  const TestEngine there(create({})), here(mixture_, {.isa = "cpu-scalar"});
  ASSERT_EQ(status_, OTR_OK) << otr_last_error(nullptr);
  std::vector<std::vector<uint32_t>> scores;
  for (const TestEngine* engine : {&there, &here}) {
    engine->score({3}, tokens, nullptr, 0);
    scores.push_back(engine->collect().begin()->second.raw_logprobs);
  }
  ASSERT_EQ(scores[0].size(), scores[1].size());
  ASSERT_GE(scores[0].size(), tokens.size());
  int compared = 0;
  for (size_t i = 0; i < scores[0].size(); ++i) {
    const double a = static_cast<double>(float_from_bits(scores[0][i])), b = static_cast<double>(float_from_bits(scores[1][i]));
    if (std::isnan(a) && std::isnan(b)) continue;  // of the first token
    EXPECT_NEAR(a, b, 0.05) << i;
    ++compared;
  }
  EXPECT_GE(compared, 60);
}

// The inverse: weights of experts that depend on the batch are found.
void route_by_rows(const RouteParams& p, const LaunchContext& on) {
  RouteParams changed = p;
  changed.normalised = p.num_rows > 4;
  cuda_kernels().device->route(changed, on);
}
// Captures know how many rows there are of their bucket's: the others read no expert.
bool padding_is_known = false;
void gather_knowingly(const GatherExpertsParams& p, const LaunchContext& on) {
  padding_is_known = p.num_rows_at != nullptr;
  cuda_kernels().device->gather_experts(p, on);
}
TEST_F(ExpertsEngineSm90, KernelsThatDependOnTheNumberOfRowsAreFound) {
  DeviceLayouts layouts = *cuda_kernels().device;
  layouts.route = route_by_rows;
  layouts.gather_experts = gather_knowingly;
  KernelTable changed = cuda_kernels();
  changed.device = &layouts;
  EXPECT_NE(logprobs_by(changed, mixture_, 1), logprobs_by(changed, mixture_, 8));
  EXPECT_TRUE(padding_is_known);
}

TEST_F(ExpertsEngineSm90, WidthsThatTheDeviceDoesNotTakeAreRefused) {
  TinyShape narrow = mixture(1);
  narrow.expert_intermediate_size = 24;
  const TinyModel refused(narrow);
  options_model_ = &refused;
  EXPECT_EQ(create({}), nullptr);
  EXPECT_EQ(status_, OTR_UNSUPPORTED);
  EXPECT_NE(std::string(otr_last_error(nullptr)).find("moe_intermediate_size 24"), std::string::npos)
      << otr_last_error(nullptr);
}

}  // namespace
}  // namespace otr
