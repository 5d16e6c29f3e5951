// A device that never finishes: whoever gives up on it is not held up again, and takes nothing away that it may still use.
#include <gtest/gtest.h>

#include "kernels/base/clock.h"
#include "kernels/cuda/cuda_device.h"
#include "tests/cuda/emulated_runtime.h"

namespace otr {
namespace {

TEST(HungDevice, IsWaitedForOnceAndKeepsItsMemory) {
  auto opened = CudaDevice::open(0);
  ASSERT_TRUE(opened.ok()) << opened.status().message();
  std::shared_ptr<CudaDevice> device = std::move(opened.value());
  constexpr size_t kSmall = 100, kLarge = size_t{1} << 20;  // of cudaMalloc, and mapped
  void *const small = device->allocate(kSmall), *const large = device->allocate(kLarge), *const kept = device->allocate(kLarge);
  void* const host = device->allocate_host(kSmall);
  ASSERT_TRUE(small != nullptr && large != nullptr && kept != nullptr && host != nullptr);
  const Result<Capture> capture = device->capture([&] { device->clear(small, kSmall); });
  ASSERT_TRUE(capture.ok());
  const uint64_t free = device->free_bytes();
  cudaStream_t stream = device->stream();
  emulated_hold(stream, 1);
  for (void* p : {small, host}) device->clear(p, kSmall);
  for (void* p : {large, kept}) device->clear(p, kLarge);

  device->keep({StatusCode::kTimeout, "the device did not finish"});  // as its wait() says
  const Stopwatch time;
  EXPECT_EQ(device->wait().code(), StatusCode::kTimeout);
  for (void* p : {small, large}) device->release(p);
  device->release_host(host);
  device->destroy(capture.value());
  EXPECT_EQ(device->give_back(kept).code(), StatusCode::kTimeout);
  EXPECT_EQ(device->free_bytes(), free);
  device.reset();
  EXPECT_LT(time.seconds(), CudaDevice::kPatience / 4);

  emulated_hold(stream, -1);
  EXPECT_EQ(cudaStreamQuery(stream), cudaSuccess);  // what was asked of it still has its memory
  EXPECT_EQ(cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(capture.value().executable)), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  EXPECT_EQ(cudaFree(small), cudaSuccess);
  EXPECT_EQ(cudaFreeHost(host), cudaSuccess);
}

// A trainer's work on the default stream is no business of a copy's, nor is its device.
TEST(HungDevice, WhatIsFetchedWaitsForNothingElse) {
  ASSERT_EQ(cudaSetDevice(2), cudaSuccess);
  auto opened = CudaDevice::open(1);
  ASSERT_TRUE(opened.ok()) << opened.status().message();
  std::vector<std::byte> here(2 * CudaDevice::kFetchBytes + 77), there;
  for (size_t i = 0; i < here.size(); ++i) here[i] = static_cast<std::byte>(i % 251);
  void* const data = opened.value()->allocate(here.size());
  ASSERT_NE(data, nullptr);
  opened.value()->copy(data, here.data(), here.size());
  ASSERT_TRUE(opened.value()->wait().ok());
  ASSERT_EQ(cudaSetDevice(2), cudaSuccess);

  emulated_hold(nullptr, 1);
  emulated_hold(opened.value()->stream(), 1);
  ASSERT_EQ(cudaSetDevice(2), cudaSuccess);
  EXPECT_TRUE(CudaDevice::fetch(data, here.size(), &there).ok());
  emulated_hold(opened.value()->stream(), -1);
  emulated_hold(nullptr, -1);
  EXPECT_TRUE(there == here);
  there.clear();
  ASSERT_EQ(cudaSetDevice(2), cudaSuccess);
  EXPECT_TRUE(CudaDevice::fetch(here.data(), here.size(), &there).ok());
  EXPECT_TRUE(there.empty());  // the host's
  int current = -1;
  ASSERT_EQ(cudaGetDevice(&current), cudaSuccess);
  EXPECT_EQ(current, 2);
  opened.value()->release(data);
}

}  // namespace
}  // namespace otr
