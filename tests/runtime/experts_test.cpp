// Mixtures of experts: which rows share an expert shows in no bit, whoever drafts and wherever they run; and a drafter of the
// model itself has its experts in 4 bits.
#include <gtest/gtest.h>

#include "tests/runtime/every_path.h"
#include "tests/runtime/mixed_requests.h"
#include "tests/runtime/sanitized.h"
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
  Outputs run(const EngineSetup& s) { return TestEngine(model_, s).run(requests_); }

  const TinyModel model_{mixture(1)};
  std::vector<Request> requests_ = mixed_requests(model_);
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
        << "batch " << s.max_batch << ", chunk " << s.prefill_chunk << ", pages " << s.num_pages << ", " << s.policy;
  }
}

// A draft in 4 bits of the same experts is mostly right, and of other weights' it is not.
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

TEST_P(Experts, NewWeightsMakeANewModel) {
  const TinyModel other(mixture(2));
  const Outputs expected = TestEngine(other, setup()).run(requests_);
  const TestEngine engine(model_, setup());
  EXPECT_NE(difference(expected, engine.run(requests_)), "");
  ASSERT_EQ(otr_weights_begin(engine.get(), 1), OTR_OK) << otr_last_error(engine.get());
  for (const TrainerTensor& tensor : trainer_tensors(other)) {
    const std::vector<std::byte> data = tensor.as(OTR_DTYPE_BF16);
    const otr_tensor t = tensor_of(tensor, OTR_DTYPE_BF16, data.data(), data.size());
    ASSERT_EQ(otr_weights_put(engine.get(), &t), OTR_OK) << otr_last_error(engine.get());
  }
  ASSERT_EQ(otr_weights_commit(engine.get()), OTR_OK) << otr_last_error(engine.get());
  EXPECT_EQ(difference(expected, engine.run(requests_)), "");
}

OTR_INSTANTIATE_EVERY_PATH(Experts);

}  // namespace
}  // namespace otr
