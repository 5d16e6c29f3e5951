// The vector form of silu_mul: the definition's operations, 16 elements at a time, with its bits. V is a float type of
// kernels/simd.
#pragma once

#include "kernels/base/elementary.h"
#include "kernels/base/thread_pool.h"
#include "kernels/silu_mul/silu_mul.h"

namespace otr {

template <typename V>
OTR_INLINE V silu_times(V gate, V up) {
  return gate / (V::broadcast(1.0f) + exp32(-gate)) * up;
}

template <typename V>
OTR_INLINE void silu_mul_vec(const SiluMulParams& p, ThreadPool& pool) {
  pool.parallel_for(p.num_rows, [&](int row, int) {
    const int n = p.intermediate_size;
    const float* gate = p.gate_up + int64_t{row} * 2 * n;
    const float* up = gate + n;
    Element* out = p.out + row * p.out_stride;
    int i = 0;
    for (; i + 16 <= n; i += 16) store(out + i, silu_times(V::load(gate + i), V::load(up + i)));
    if (i < n) store_first(out + i, n - i, silu_times(V::load_first(gate + i, n - i), V::load_first(up + i, n - i)));
    for (int64_t pad = n; pad < p.out_stride; ++pad) out[pad] = Element{};
  });
}

}  // namespace otr
