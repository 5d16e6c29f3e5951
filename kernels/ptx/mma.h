// Products of a warp and arithmetic on pairs of bf16. One instruction a function.
#pragma once

#include <cstdint>

#include "kernels/base/macros.h"

namespace otr::ptx {

// D[16][8] += A[16][16] B[16][8], bf16 into float32, by all 32 lanes. With g = lane / 4 and q = lane % 4: registers 0 … 3 of A
// hold rows g, g + 8, g, g + 8 at k = 2 q and the next (0, 1) or 2 q + 8 and the next (2, 3); those of B column g at k = 2 q
// and at 2 q + 8; those of D row g (0, 1) or g + 8 (2, 3) at columns 2 q and 2 q + 1.
OTR_DEVICE void mma_bf16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// a - b of two bf16 each, rounded to nearest even.
OTR_DEVICE uint32_t sub_bf16x2(uint32_t a, uint32_t b) {
  uint32_t d;
  asm("sub.rn.bf16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
  return d;
}

}  // namespace otr::ptx
