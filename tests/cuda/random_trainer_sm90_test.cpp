// Random trainers on cuda-sm90a (tests/runtime/random_trainer.h): what the contract says holds there whatever is called.
// OUTRIDER_TRAINER_SEEDS=FIRST:LAST runs other seeds than the usual.

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdio>
#include <string>

#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/cuda_kernels.h"
#include "tests/kernels/temp_folder.h"
#include "tests/runtime/random_trainer.h"

namespace otr {
namespace {

#if defined(OUTRIDER_TEST_EMULATED)
constexpr bool kEmulated = true;
#else
constexpr bool kEmulated = false;
#endif

class RandomTrainersSm90 : public testing::TestWithParam<uint32_t> {};

TEST_P(RandomTrainersSm90, GetWhatTheContractSays) {
  if (const auto device = CudaDevice::open(0); !device.ok()) GTEST_SKIP() << device.status().message();
  const int32_t num_gpus = CudaDevice::open(1).ok() ? 2 : 1;
  const bool experts = GetParam() % 3 == 2;
  TinyShape shape{
      .hidden_size = 64, .intermediate_size = 72, .num_heads = 4, .num_kv_heads = 2, .max_position_embeddings = 512};
  if (experts) shape.num_experts = 8, shape.experts_per_token = 3, shape.expert_intermediate_size = 32;
  const TrainedModel model(shape, {.hidden_size = 32, .intermediate_size = 48, .max_position_embeddings = 512, .seed = 9});
  const TrainerOracle oracle(model, kCudaPath);
  const TempFolder folder;
  {
    const TrainerHost host{
        .isa = kCudaPath, .device = num_gpus == 2 ? "cuda:0,1" : "cuda", .num_gpus = num_gpus, .is_slow = kEmulated};
    RandomTrainer trainer(model, host, GetParam(), folder.path());
    if (!HasFailure()) trainer.live(kEmulated ? 50 : 200);
    if (!HasFailure()) {
      EXPECT_GT(trainer.judge(oracle), 0u);
    }
    if (HasFailure()) std::printf("%s\n%s", experts ? "experts" : "dense", trainer.log().c_str());
  }
}

INSTANTIATE_TEST_SUITE_P(Seed, RandomTrainersSm90, testing::ValuesIn(trainer_seeds(kEmulated ? 2 : 16)),
                         [](const testing::TestParamInfo<uint32_t>& one) { return std::to_string(one.param); });

}  // namespace
}  // namespace otr
