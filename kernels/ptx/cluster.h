// Thread block clusters, warp roles and registers. One instruction a function.
#pragma once

#include <cstdint>

#include "kernels/base/macros.h"

namespace otr::ptx {

OTR_DEVICE uint32_t cluster_rank() {
  uint32_t rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// The two halves of a barrier over all threads of all blocks of the cluster. Writes and arrivals before `arrive` are done and
// visible after `wait`, at the price of a MEMBAR.ALL.GPU. cluster_arrive_relaxed: of what came before, only mbarriers behind a
// fence_mbarrier_init are.
OTR_DEVICE void cluster_arrive() { asm volatile("barrier.cluster.arrive.release;" ::: "memory"); }
OTR_DEVICE void cluster_arrive_relaxed() { asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory"); }
OTR_DEVICE void cluster_wait() { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }

// Programmatic dependent launch. grid_wait: the launches before are done and what they wrote is seen; at once where this one
// was not launched early. grid_let_next: the next launch, if it is such a one, may begin as soon as there is room, up to its
// own grid_wait.
OTR_DEVICE void grid_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
OTR_DEVICE void grid_let_next() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

// The shared::cluster address, in block `rank`, of what has the shared::cta address `local` here.
OTR_DEVICE uint32_t mapa(uint32_t local, uint32_t rank) {
  uint32_t remote;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(local), "r"(rank));
  return remote;
}

// Stores 16 bytes in another block's shared memory and counts them as bytes come in at `barrier` of that block.
OTR_DEVICE void st_async(uint32_t remote, float a, float b, float c, float d, uint32_t remote_barrier) {
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(remote),
               "f"(a), "f"(b), "f"(c), "f"(d), "r"(remote_barrier)
               : "memory");
}

// 16 bytes of another block's shared memory. REQUIRES: the cluster has met since they were written.
OTR_DEVICE float4 load_remote(uint32_t remote) {
  float4 v;
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "r"(remote)
               : "memory");
  return v;
}

// A barrier of `threads` threads of the block, whole warps, under a number of its own; 0 is __syncthreads.
template <int kNumber>
OTR_DEVICE void named_barrier(int threads) {
  static_assert(kNumber >= 1 && kNumber <= 15);
  asm volatile("bar.sync %0, %1;" ::"n"(kNumber), "r"(threads) : "memory");
}

// Two floats to bf16, to nearest even, `low` in the lower half.
OTR_DEVICE uint32_t pack_bf16(float low, float high) {
  uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

// Registers of each thread of a warpgroup, by all its warps. REQUIRES: the kernel has a register cap at entry.
template <int kRegisters>
OTR_DEVICE void setmaxnreg_inc() {
  static_assert(kRegisters % 8 == 0 && kRegisters >= 24 && kRegisters <= 256);
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
OTR_DEVICE void setmaxnreg_dec() {
  static_assert(kRegisters % 8 == 0 && kRegisters >= 24 && kRegisters <= 256);
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

}  // namespace otr::ptx
