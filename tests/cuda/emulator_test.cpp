// The emulated device sees what it is there to see.
#include <gtest/gtest.h>

#include "tests/cuda/emulated_ptx.h"

namespace otr::emulator_test {
namespace {

uint64_t* first_barrier() { return reinterpret_cast<uint64_t*>(emulator::dynamic_shared()); }

void launch(unsigned threads, const std::function<void()>& kernel) {
  emulator::launch(dim3(1), dim3(threads), 1, 4096, kernel);
}

TEST(EmulatorDeathTest, AWaitThatNobodyEnds) {
  EXPECT_DEATH(launch(32,
                      [] {
                        if (threadIdx.x == 0) ptx::mbarrier_init(first_barrier(), 2);
                        __syncthreads();
                        if (threadIdx.x == 0) ptx::mbarrier_arrive(first_barrier());
                        ptx::mbarrier_wait(first_barrier(), 0);
                      }),
               "no thread can go on");
}

TEST(EmulatorDeathTest, BytesThatNeverCome) {
  EXPECT_DEATH(launch(32,
                      [] {
                        if (threadIdx.x == 0) ptx::mbarrier_init(first_barrier(), 1);
                        __syncthreads();
                        if (threadIdx.x == 0) ptx::mbarrier_arrive_expect_tx(first_barrier(), 16);
                        ptx::mbarrier_wait(first_barrier(), 0);
                      }),
               "no thread can go on");
}

TEST(EmulatorDeathTest, ABarrierThatNotAllReach) {
  EXPECT_DEATH(launch(64,
                      [] {
                        if (threadIdx.x < 63) __syncthreads();
                      }),
               "no thread can go on");
}

TEST(EmulatorDeathTest, AnAddressOutsideSharedMemory) {
  EXPECT_DEATH(launch(32, [] { ptx::mbarrier_init(first_barrier() + 4096 / 8, 1); }), "outside shared memory");
}

// Two blocks, thread 0 of each: what a block may do with the other's barrier.
void launch_pair(const std::function<void(uint32_t remote)>& kernel) {
  emulator::launch(dim3(2), dim3(1), 2, 4096,
                   [kernel] { kernel(ptx::mapa(ptx::shared_address(first_barrier()), 1 - ptx::cluster_rank())); });
}

TEST(EmulatorDeathTest, ABarrierOfAnotherBlockThatNoFenceHasMadeVisible) {
  EXPECT_DEATH(launch_pair([](uint32_t remote) {
                 ptx::mbarrier_init(first_barrier(), 1);
                 ptx::cluster_arrive_relaxed();
                 ptx::cluster_wait();
                 ptx::mbarrier_arrive_remote(remote);
                 ptx::mbarrier_wait(first_barrier(), 0);
               }),
               "no fence has made visible");
}

// Nobody waits for the arrival, so only a releasing meeting keeps its block there.
void arrive_and_leave(bool releases) {
  launch_pair([releases](uint32_t remote) {
    ptx::mbarrier_init(first_barrier(), 1);
    ptx::fence_mbarrier_init();
    ptx::cluster_arrive_relaxed();
    ptx::cluster_wait();
    ptx::mbarrier_arrive_remote(remote);
    releases ? ptx::cluster_arrive() : ptx::cluster_arrive_relaxed();
    ptx::cluster_wait();
  });
}

TEST(EmulatorDeathTest, AnArrivalThatComesWhenItsBlockHasLeft) {
  for (int i = 0; i < 100; ++i) arrive_and_leave(true);
  EXPECT_DEATH(
      {
        for (int i = 0; i < 100; ++i) arrive_and_leave(false);
      },
      "outlive their cluster");
}

TEST(EmulatorDeathTest, AWaitOfTheBlockForStoresOfAnother) {
  EXPECT_DEATH(launch_pair([](uint32_t remote) {
                 ptx::mbarrier_init(first_barrier(), 1);
                 ptx::fence_mbarrier_init();
                 ptx::cluster_arrive_relaxed();
                 ptx::cluster_wait();
                 ptx::st_async(remote + 64, 1, 2, 3, 4, remote);
                 ptx::mbarrier_arrive_expect_tx(first_barrier(), 16);
                 ptx::cluster_arrive();
                 ptx::cluster_wait();
                 ptx::mbarrier_wait(first_barrier(), 0);
               }),
               "does not see what other blocks have stored");
}

// A product of operands that threads have stored: 64 rows, eight of them once more as columns.
void multiply_what_is_stored(unsigned fenced_threads, bool again) {
  constexpr uint32_t kBytes = 64 * kOperandRowBytes;
  emulator::launch(dim3(1), dim3(128), 1, kBytes, [=] {
    uint8_t* operands = emulator::dynamic_shared();
    for (int turn = 0; turn <= (again ? 1 : 0); ++turn) {
      for (uint32_t i = threadIdx.x; i < kBytes; i += 128) operands[i] = static_cast<uint8_t>(turn);
      if (turn == 0 && threadIdx.x < fenced_threads) ptx::fence_async_shared();
      ptx::named_barrier<1>(128);
      float sums[4] = {};
      const uint64_t rows = operand_descriptor(ptx::shared_address(operands));
      ptx::wgmma_bf16(sums, rows, rows, false);
      ptx::wgmma_commit();
      ptx::wgmma_wait<0>();
      ptx::named_barrier<1>(128);
    }
  });
}

TEST(EmulatorDeathTest, AProductOfWhatNoFenceHasMadeVisible) {
  multiply_what_is_stored(128, false);
  constexpr const char* kWhy = "no fence between the proxies";
  EXPECT_DEATH(multiply_what_is_stored(0, false), kWhy);
  EXPECT_DEATH(multiply_what_is_stored(127, false), kWhy);
  EXPECT_DEATH(multiply_what_is_stored(128, true), kWhy);  // stored after the fence
}

TEST(EmulatorDeathTest, ALaunchBesideACopyThatMayBeUnderWay) {
  EXPECT_DEATH(
      {
        cudaStream_t stream = nullptr;
        void* data = nullptr;
        cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
        cudaMalloc(&data, 16);
        cudaMemset(data, 1, 16);
        cudaMemsetAsync(data, 2, 16, stream);
      },
      "may still set or copy");
}

__global__ void kernel_of_a_size(int) {}
__global__ void kernel_of_two_sizes(int) {}

cudaError_t launch_with(void (*kernel)(int), size_t shared_bytes) {
  cudaLaunchConfig_t config = {};
  config.gridDim = config.blockDim = dim3(1);
  config.dynamicSmemBytes = shared_bytes;
  return cudaLaunchKernelEx(&config, kernel, 0);
}

TEST(EmulatorDeathTest, ALaunchWithMoreSharedMemoryThanItsKernelIsAllowed) {
  constexpr int kKb = 1024;
  EXPECT_EQ(launch_with(kernel_of_a_size, 48 * kKb), cudaSuccess);
  EXPECT_DEATH(launch_with(kernel_of_a_size, 49 * kKb), "more shared memory than its kernel is allowed");
  EXPECT_EQ(cudaFuncSetAttribute(kernel_of_a_size, cudaFuncAttributeMaxDynamicSharedMemorySize, 100 * kKb), cudaSuccess);
  EXPECT_EQ(launch_with(kernel_of_a_size, 100 * kKb), cudaSuccess);
  EXPECT_DEATH(launch_with(kernel_of_a_size, 101 * kKb), "more shared memory than its kernel is allowed");
  EXPECT_DEATH(launch_with(kernel_of_two_sizes, 49 * kKb), "more shared memory than its kernel is allowed");  // another one's
}

TEST(EmulatorDeathTest, AKernelsSharedMemoryThatIsLowered) {
  EXPECT_DEATH(
      {
        for (const int bytes : {100 * 1024, 90 * 1024})
          cudaFuncSetAttribute(kernel_of_two_sizes, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
      },
      "is lowered");
}

TEST(Emulator, APhaseEndsWithItsArrivalsAndBytes) {
  int seen = 0;
  launch(64, [&seen] {
    uint64_t* barrier = first_barrier();
    if (threadIdx.x == 0) {
      ptx::mbarrier_init(barrier, 1);
      ptx::fence_mbarrier_init();
    }
    __syncthreads();
    ptx::mbarrier_wait(barrier, 1);  // a fresh barrier lets the other parity pass
    if (threadIdx.x == 0) {
      ptx::st_async(ptx::shared_address(barrier) + 64, 1, 2, 3, 4, ptx::shared_address(barrier));
      ptx::mbarrier_arrive_expect_tx(barrier, 16);
    }
    ptx::mbarrier_wait(barrier, 0);
    seen += reinterpret_cast<const float*>(emulator::dynamic_shared())[16 + 3] == 4.0f ? 1 : 0;
  });
  EXPECT_EQ(seen, 64);
}

}  // namespace
}  // namespace otr::emulator_test
