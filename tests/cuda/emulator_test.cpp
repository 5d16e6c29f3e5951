// The emulated device sees what it is there to see.
#include <gtest/gtest.h>

#include "tests/cuda/emulated_ptx.h"

namespace otr {
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

TEST(Emulator, APhaseEndsWithItsArrivalsAndBytes) {
  int seen = 0;
  launch(64, [&seen] {
    uint64_t* barrier = first_barrier();
    if (threadIdx.x == 0) ptx::mbarrier_init(barrier, 1);
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
}  // namespace otr
