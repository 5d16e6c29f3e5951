// wgmma: D[64][N] += A[64][16] B[16][N], bf16 operands in shared memory (descriptors of kernels/layouts/wgmma_layout.h),
// float32 accumulators in the registers of a warpgroup: N / 2 a thread (accumulator_row, accumulator_column). One instruction a
// function.
//
// Asynchronous: wgmma_fence before the first of a group, wgmma_commit after the last; a group's registers may be read, and its
// operands overwritten, once wgmma_wait has seen it done. pin_registers keeps the compiler from moving uses across these.
#pragma once

#include <cstdint>

#include "kernels/base/macros.h"

namespace otr::ptx {

OTR_DEVICE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
OTR_DEVICE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Until at most kPending groups are outstanding.
template <int kPending>
OTR_DEVICE void wgmma_wait() {
  static_assert(kPending >= 0 && kPending <= 7);
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

template <int kCount>
OTR_DEVICE void pin_registers(float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

// Operand lists: OTR_D8(i) names d[i] … d[i + 7].
#define OTR_D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define OTR_D8(i) OTR_D4(i), OTR_D4(i + 4)
#define OTR_D16(i) OTR_D8(i), OTR_D8(i + 8)
#define OTR_D32(i) OTR_D16(i), OTR_D16(i + 16)
#define OTR_D64(i) OTR_D32(i), OTR_D32(i + 32)
#define OTR_D96(i) OTR_D64(i), OTR_D32(i + 64)
#define OTR_D128(i) OTR_D64(i), OTR_D64(i + 64)

// `registers`: the text of the operand list; a, b, s: the operands' numbers after it.
#define OTR_WGMMA(n, count, registers, a, b, s)                                                                 \
  OTR_DEVICE void wgmma_bf16(float(&d)[count], uint64_t a_descriptor, uint64_t b_descriptor, bool accumulate) { \
    static_assert(n % 8 == 0 && n >= 8 && n <= 256 && count == n / 2);                                          \
    asm volatile("{\n .reg .pred p;\n setp.ne.b32 p, " s ", 0;\n wgmma.mma_async.sync.aligned.m64n" #n          \
                 "k16.f32.bf16.bf16 {" registers "}, " a ", " b ", p, 1, 1, 0, 0;\n}"                           \
                 : OTR_D##count(0)                                                                              \
                 : "l"(a_descriptor), "l"(b_descriptor), "r"(static_cast<int>(accumulate)));                    \
  }

// The text of registers, 16 a piece.
#define OTR_R0 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define OTR_R1 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define OTR_R2 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define OTR_R3 ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define OTR_R4 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
#define OTR_R5 ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define OTR_R6 ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111"
#define OTR_R7 ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"

OTR_WGMMA(8, 4, "%0, %1, %2, %3", "%4", "%5", "%6")
OTR_WGMMA(16, 8, "%0, %1, %2, %3, %4, %5, %6, %7", "%8", "%9", "%10")
OTR_WGMMA(32, 16, OTR_R0, "%16", "%17", "%18")
OTR_WGMMA(64, 32, OTR_R0 OTR_R1, "%32", "%33", "%34")
OTR_WGMMA(128, 64, OTR_R0 OTR_R1 OTR_R2 OTR_R3, "%64", "%65", "%66")
OTR_WGMMA(192, 96, OTR_R0 OTR_R1 OTR_R2 OTR_R3 OTR_R4 OTR_R5, "%96", "%97", "%98")
OTR_WGMMA(256, 128, OTR_R0 OTR_R1 OTR_R2 OTR_R3 OTR_R4 OTR_R5 OTR_R6 OTR_R7, "%128", "%129", "%130")

// The same with A in registers: register r of a thread holds two neighbouring elements of k (operand_a_row, operand_a_k).
#define OTR_WGMMA_REGISTERS(n, count, registers, a0, a1, a2, a3, b, s)                                                \
  OTR_DEVICE void wgmma_bf16(float(&d)[count], const uint32_t(&a)[4], uint64_t b_descriptor, bool accumulate) {       \
    static_assert(n % 8 == 0 && n >= 8 && n <= 256 && count == n / 2);                                                \
    asm volatile("{\n .reg .pred p;\n setp.ne.b32 p, " s ", 0;\n wgmma.mma_async.sync.aligned.m64n" #n                \
                 "k16.f32.bf16.bf16 {" registers "}, {" a0 ", " a1 ", " a2 ", " a3 "}, " b ", p, 1, 1, 0;\n}"         \
                 : OTR_D##count(0)                                                                                    \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b_descriptor), "r"(static_cast<int>(accumulate))); \
  }

OTR_WGMMA_REGISTERS(32, 16, OTR_R0, "%16", "%17", "%18", "%19", "%20", "%21")
OTR_WGMMA_REGISTERS(64, 32, OTR_R0 OTR_R1, "%32", "%33", "%34", "%35", "%36", "%37")
OTR_WGMMA_REGISTERS(128, 64, OTR_R0 OTR_R1 OTR_R2 OTR_R3, "%64", "%65", "%66", "%67", "%68", "%69")

#undef OTR_WGMMA_REGISTERS
#undef OTR_WGMMA
#undef OTR_R0
#undef OTR_R1
#undef OTR_R2
#undef OTR_R3
#undef OTR_R4
#undef OTR_R5
#undef OTR_R6
#undef OTR_R7
#undef OTR_D4
#undef OTR_D8
#undef OTR_D16
#undef OTR_D32
#undef OTR_D64
#undef OTR_D96
#undef OTR_D128

}  // namespace otr::ptx
