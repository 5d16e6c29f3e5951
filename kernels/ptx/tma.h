// The copy engine: boxes of a tensor map, or bytes, from global to shared memory, counted in bytes at an mbarrier. One
// instruction a function, each by one thread. What a box lays down where is modelled and tested in
// kernels/layouts/tensor_box.h.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "kernels/base/macros.h"
#include "kernels/ptx/mbarrier.h"

namespace otr::ptx {

OTR_DEVICE void prefetch_tensor_map(const CUtensorMap* map) { asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory"); }

// How long L2 should keep what is read: data that nobody reads again goes first.
OTR_DEVICE uint64_t l2_evict_first() {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
OTR_DEVICE uint64_t l2_evict_last() {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
OTR_DEVICE uint64_t l2_evict_normal() {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

// `bytes` side by side, a multiple of 16 as both addresses are.
OTR_DEVICE void bulk_load(void* shared, const void* from, uint32_t bytes, uint64_t* barrier, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(
          shared_address(shared)),
      "l"(from), "r"(bytes), "r"(shared_address(barrier)), "l"(policy)
      : "memory");
}

OTR_DEVICE void tma_load_2d(void* shared, const CUtensorMap* map, int32_t c0, int32_t c1, uint64_t* barrier, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%2, %3}], "
      "[%4], %5;" ::"r"(shared_address(shared)),
      "l"(map), "r"(c0), "r"(c1), "r"(shared_address(barrier)), "l"(policy)
      : "memory");
}

OTR_DEVICE void tma_load_4d(void* shared, const CUtensorMap* map, int32_t c0, int32_t c1, int32_t c2, int32_t c3,
                            uint64_t* barrier, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%2, %3, %4, %5}], [%6], %7;" ::"r"(shared_address(shared)),
      "l"(map), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(shared_address(barrier)), "l"(policy)
      : "memory");
}

OTR_DEVICE void tma_load_3d(void* shared, const CUtensorMap* map, int32_t c0, int32_t c1, int32_t c2, uint64_t* barrier,
                            uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(shared_address(shared)),
      "l"(map), "r"(c0), "r"(c1), "r"(c2), "r"(shared_address(barrier)), "l"(policy)
      : "memory");
}

OTR_DEVICE void tma_load_5d(void* shared, const CUtensorMap* map, int32_t c0, int32_t c1, int32_t c2, int32_t c3, int32_t c4,
                            uint64_t* barrier, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%2, %3, %4, %5, %6}], [%7], %8;" ::"r"(shared_address(shared)),
      "l"(map), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4), "r"(shared_address(barrier)), "l"(policy)
      : "memory");
}

// A tile into L2 alone.
OTR_DEVICE void tma_prefetch_2d(const CUtensorMap* map, int32_t c0, int32_t c1) {
  asm volatile("cp.async.bulk.prefetch.tensor.2d.L2.global.tile [%0, {%1, %2}];" ::"l"(map), "r"(c0), "r"(c1) : "memory");
}

OTR_DEVICE void tma_prefetch_4d(const CUtensorMap* map, int32_t c0, int32_t c1, int32_t c2, int32_t c3) {
  asm volatile("cp.async.bulk.prefetch.tensor.4d.L2.global.tile [%0, {%1, %2, %3, %4}];" ::"l"(map), "r"(c0), "r"(c1), "r"(c2),
               "r"(c3)
               : "memory");
}

// Into the same place of every block of `mask`, and counted at the same barrier of each.
OTR_DEVICE void tma_load_2d_multicast(void* shared, const CUtensorMap* map, int32_t c0, int32_t c1, uint64_t* barrier,
                                      uint16_t mask, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint "
      "[%0], [%1, {%2, %3}], [%4], %5, %6;" ::"r"(shared_address(shared)),
      "l"(map), "r"(c0), "r"(c1), "r"(shared_address(barrier)), "h"(mask), "l"(policy)
      : "memory");
}

}  // namespace otr::ptx
