// What goes wrong with captures, and what they must not spoil.
#include <cudaTypedefs.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/current_device.h"
#include "tests/cuda/emulated_runtime.h"
#include "tests/cuda/engine_sm90.h"

namespace otr {
namespace {

class Captures : public EngineSm90 {
 protected:
  void TearDown() override { emulated_spoil(0, 0); }
};

TEST_F(Captures, ThatAnotherThreadHasEndedBeginAgain) {
  const std::shared_ptr<CudaDevice> device = CudaDevice::open(0).value();
  void* const data = device->allocate(64);
  int times = 0;
  const auto clear = [&] { device->clear(data, 64), ++times; };
  emulated_spoil(2, 0);
  Result<Capture> capture = device->capture(clear);
  ASSERT_TRUE(capture.ok()) << capture.status().message();
  EXPECT_EQ(times, 3);
  device->launch(capture.value());
  EXPECT_TRUE(device->wait().ok());
  device->destroy(capture.value());

  emulated_spoil(100, 0);
  EXPECT_EQ(device->capture(clear).status().code(), StatusCode::kInternal);
  EXPECT_LE(times, 6);
  emulated_spoil(0, 0);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  EXPECT_TRUE(device->wait().ok()) << "nothing of it has run";
  device->release(data);
}

TEST_F(Captures, WithoutMemoryLeaveNothingBehind) {
  const std::shared_ptr<CudaDevice> device = CudaDevice::open(0).value();
  void* const data = device->allocate(64);
  ASSERT_TRUE(device->wait().ok());
  const uint64_t free = device->free_bytes();
  emulated_spoil(0, 1);
  const auto clear = [&] { device->clear(data, 64); };
  EXPECT_EQ(device->capture(clear).status().code(), StatusCode::kOutOfMemory);
  EXPECT_EQ(device->free_bytes(), free);
  EXPECT_TRUE(device->wait().ok());
  const Result<Capture> capture = device->capture(clear);
  ASSERT_TRUE(capture.ok()) << capture.status().message();
  device->destroy(capture.value());
  device->release(data);
}

// A launch that a dead capture has refused is no failure of the next one's.
TEST_F(Captures, OfAnEngineGoOnOrAreTriedAgain) {
  const Outputs expected = run({.policy = "fixed:self:2"});
  emulated_spoil(2, 0);
  const TestEngine engine(create({.policy = "fixed:self:2"}));
  ASSERT_EQ(status_, OTR_OK) << otr_last_error(nullptr);
  EXPECT_EQ(difference(expected, engine.run(requests_)), "");
  for (const bool broken : {false, true}) {
    ASSERT_EQ(otr_sleep(engine.get(), OTR_MEMORY_KV), OTR_OK);
    const size_t asleep = free_memory();
    emulated_spoil(broken ? 100 : 0, broken ? 0 : 1);
    EXPECT_EQ(otr_wake(engine.get(), OTR_MEMORY_KV), broken ? OTR_INTERNAL : OTR_OUT_OF_MEMORY);
    emulated_spoil(0, 0);
    EXPECT_GE(free_memory() + kAround, asleep);
    ASSERT_EQ(otr_wake(engine.get(), OTR_MEMORY_KV), OTR_OK) << otr_last_error(engine.get());
    EXPECT_EQ(difference(expected, engine.run(requests_)), "");
  }
}

// As torch captures, for all threads: an engine minds it neither in its own threads nor in calls, and leaves a caller's thread
// minding it.
TEST_F(Captures, OfOthersAreLeftAlone) {
  PFN_cuThreadExchangeStreamCaptureMode_v10010 exchange = nullptr;
  ASSERT_TRUE(find_driver_function("cuThreadExchangeStreamCaptureMode", &exchange));
  const Outputs expected = run({});
  std::thread([&] {
    emulated_capture_elsewhere(true);
    EXPECT_EQ(difference(expected, run({})), "");
    EXPECT_FALSE(emulated_capture_is_broken());
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    EXPECT_EQ(exchange(&mode), CUDA_SUCCESS);
    EXPECT_EQ(mode, CU_STREAM_CAPTURE_MODE_GLOBAL);
    EXPECT_EQ(exchange(&mode), CUDA_SUCCESS);
    void* data = nullptr;
    EXPECT_NE(cudaMalloc(&data, 64), cudaSuccess);
    EXPECT_TRUE(emulated_capture_is_broken()) << "it would have been seen";
    emulated_capture_elsewhere(false);
    (void)cudaGetLastError();
  }).join();
}

// A host's tensor that is put, from a thread without a context, is no reason for one on a device that nobody uses.
TEST(Contexts, AreNotMadeByAsking) {
  PFN_cuDevicePrimaryCtxGetState_v7000 state = nullptr;
  ASSERT_TRUE(find_driver_function("cuDevicePrimaryCtxGetState", &state));
  const auto is_used = [state](int device) {
    unsigned flags = 0;
    int active = 0;
    EXPECT_EQ(state(device, &flags, &active), CUDA_SUCCESS);
    return active != 0;
  };
  for (const int device : {0, 1}) {
    if (is_used(device)) GTEST_SKIP() << "another test has made one";
  }
  const auto fetch = [] {
    const int here = 7;
    std::vector<std::byte> there;
    EXPECT_TRUE(CudaDevice::fetch(&here, sizeof here, &there).ok());
    EXPECT_TRUE(there.empty());
  };
  std::thread(fetch).join();
  EXPECT_FALSE(is_used(0));
  std::shared_ptr<CudaDevice> device;
  std::thread([&] { device = CudaDevice::open(1).value(); }).join();
  std::thread(fetch).join();
  std::thread([&] { EXPECT_TRUE(device->can_copy(&device)); }).join();
  EXPECT_FALSE(is_used(0));
}

}  // namespace
}  // namespace otr
