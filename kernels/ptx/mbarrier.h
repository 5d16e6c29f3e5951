// mbarrier: barriers in shared memory that count arrivals and, for asynchronous copies, bytes. One instruction a function.
//
// A barrier alternates between phases 0 and 1. A phase ends when `count` arrivals have been made and every expected byte has
// come in; waiting for a parity returns once the phase of that parity has ended. A fresh barrier is in phase 0: waiting for
// parity 1 returns at once, which is how a producer finds its first slots empty. Bytes may come in before they are announced,
// as long as the arrival that announces them is still outstanding.
#pragma once

#include <cstdint>

#include "kernels/base/macros.h"

namespace otr::ptx {

OTR_DEVICE uint32_t shared_address(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }

// By one thread; then fence_mbarrier_init and a barrier of the block (or cluster) before others use it.
OTR_DEVICE void mbarrier_init(uint64_t* barrier, uint32_t count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(count) : "memory");
}

// Makes initialised barriers visible to the cluster and to the copy engine.
OTR_DEVICE void fence_mbarrier_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

// Orders this thread's ordinary reads and writes of shared memory before what the copy engine and wgmma do there, once a
// barrier has followed.
OTR_DEVICE void fence_async_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

OTR_DEVICE void mbarrier_arrive(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.release.cta.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

// Arrives at the barrier of another block of the cluster; `barrier` is a shared::cluster address (mapa). Says that this thread
// is done with memory that the other block's copies fill, and publishes nothing that it has stored: .release.cluster would, for
// a MEMBAR.ALL.GPU, which waits for every store so far. Nobody is told when it has landed: before the other block may leave,
// the cluster meets (cluster_arrive).
OTR_DEVICE void mbarrier_arrive_remote(uint32_t barrier) {
  asm volatile("mbarrier.arrive.release.cta.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Arrives and announces `bytes` of asynchronous copies for the current phase.
OTR_DEVICE void mbarrier_arrive_expect_tx(uint64_t* barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
               : "memory");
}

// Whether the phase of `parity` has ended; may sleep for a time the hardware chooses.
OTR_DEVICE bool mbarrier_try_wait(uint64_t* barrier, uint32_t parity) {
  uint32_t done;
  asm volatile(
      "{\n .reg .pred p;\n mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 p, [%1], %2;\n selp.u32 %0, 1, 0, p;\n}"
      : "=r"(done)
      : "r"(shared_address(barrier)), "r"(parity)
      : "memory");
  return done != 0;
}

// The same for a barrier that counts the bytes of other blocks' st_async, which are visible afterwards. Costs a CCTL.IVALL: L1
// forgets.
OTR_DEVICE bool mbarrier_try_wait_cluster(uint64_t* barrier, uint32_t parity) {
  uint32_t done;
  asm volatile(
      "{\n .reg .pred p;\n mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n selp.u32 %0, 1, 0, p;\n}"
      : "=r"(done)
      : "r"(shared_address(barrier)), "r"(parity)
      : "memory");
  return done != 0;
}

OTR_DEVICE void mbarrier_wait(uint64_t* barrier, uint32_t parity) {
  while (!mbarrier_try_wait(barrier, parity)) {
  }
}

OTR_DEVICE void mbarrier_wait_cluster(uint64_t* barrier, uint32_t parity) {
  while (!mbarrier_try_wait_cluster(barrier, parity)) {
  }
}

}  // namespace otr::ptx
