// What becomes of a block when the driver does not do what is asked of it; without a device, for none can be told to refuse.
#include "kernels/cuda/device_memory.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include "tests/cuda/emulated_runtime.h"
#include "tests/runtime/engine_runs.h"
#include "tests/runtime/test_engine.h"

namespace otr {
namespace {

constexpr size_t kBytes = size_t{1} << 20;  // mapped

size_t free_memory() {
  size_t free = 0, total = 0;
  EXPECT_EQ(cudaMemGetInfo(&free, &total), cudaSuccess);
  return free;
}

TEST(DeviceMemory, AnUnmappingThatFailsLeavesTheBlockItsMemory) {
  DeviceMemory memory(0, {});
  void* const data = memory.allocate(kBytes);
  ASSERT_NE(data, nullptr);
  const size_t free = free_memory();
  emulated_refuse(1, 0);
  const Status refused = memory.give_back(data);
  EXPECT_EQ(refused.code(), StatusCode::kInternal);
  EXPECT_EQ(refused.message(), "cuda:0: cuMemUnmap: refused");
  EXPECT_EQ(free_memory(), free);
  EXPECT_EQ(memory.take_back(data).value(), 0u);  // nothing is undefined
  EXPECT_TRUE(memory.give_back(data).ok());
  EXPECT_EQ(free_memory(), free + kBytes);
  EXPECT_EQ(memory.take_back(data).value(), kBytes);
  memory.release(data);
  EXPECT_EQ(free_memory(), free + kBytes);
}

TEST(DeviceMemory, AReleaseThatFailsIsSaidAndTheBlockGetsOtherMemory) {
  DeviceMemory memory(0, {});
  void* const data = memory.allocate(kBytes);
  ASSERT_NE(data, nullptr);
  emulated_refuse(0, 1);
  const Status refused = memory.give_back(data);
  EXPECT_EQ(refused.code(), StatusCode::kInternal);
  EXPECT_EQ(refused.message(), "cuda:0: cuMemRelease: refused");
  EXPECT_EQ(memory.take_back(data).value(), kBytes);
  memory.release(data);
}

// Memory that is still mapped when a block goes keeps its addresses: the driver would not take them.
TEST(DeviceMemory, ABlockThatCannotBeUnmappedGoesWithItsAddresses) {
  DeviceMemory memory(0, {});
  void* const data = memory.allocate(kBytes);
  ASSERT_NE(data, nullptr);
  const size_t free = free_memory();
  emulated_refuse(1, 0);
  memory.release(data);
  EXPECT_EQ(free_memory(), free);
  void* const next = memory.allocate(kBytes);
  EXPECT_NE(next, data);
  memory.release(next);
}

TEST(DeviceMemory, AnEngineThatCannotSleepGoesOn) {
  const TinyModel model({.hidden_size = 64, .max_position_embeddings = 512});
  otr_engine_options options;
  otr_engine_options_init(&options, sizeof options);
  options.model_path = model.path().c_str();
  options.device = "cuda";
  options.policy = "off";
  options.num_threads = 1;
  options.kv_bytes = model.kv_bytes(8);
  otr_engine* created = nullptr;
  ASSERT_EQ(otr_engine_create(&options, &created), OTR_OK) << otr_last_error(nullptr);
  const TestEngine engine(created);
  std::vector<Request> requests(1, Request({5, 6, 7}));
  requests[0].sampling.max_new_tokens = 3;
  const Outputs expected = engine.run(requests);
  emulated_refuse(1'000, 0);
  EXPECT_EQ(otr_sleep(engine.get(), OTR_MEMORY_KV), OTR_INTERNAL);
  emulated_refuse(0, 0);
  EXPECT_NE(std::string(otr_last_error(engine.get())).find("cuMemUnmap"), std::string::npos);
  EXPECT_EQ(difference(expected, engine.run(requests)), "");
  const size_t free = free_memory();
  EXPECT_EQ(otr_sleep(engine.get(), OTR_MEMORY_KV), OTR_OK);
  EXPECT_GE(free_memory(), free + model.kv_bytes(8));
}

}  // namespace
}  // namespace otr
