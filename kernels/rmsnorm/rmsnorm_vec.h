// The vector form of rmsnorm: 16 float32 lanes of squares (element i in lane i % 16, accumulated by fma), added by halves. V is
// a float type of kernels/simd; the AVX2 and the AVX-512 path give the same bits.
#pragma once

#include "kernels/base/elementary.h"
#include "kernels/base/thread_pool.h"
#include "kernels/rmsnorm/rmsnorm.h"

namespace otr {

// 1 / sqrt(mean(x^2) + eps); one chain of fma is enough: 3,584 elements take 224 steps of 4 cycles.
template <typename V>
OTR_INLINE V inverse_rms(const float* x, int n, float eps) {
  V squares = V::zero();
  int i = 0;
  for (; i + 16 <= n; i += 16) {
    const V a = V::load(x + i);
    squares = fma_(a, a, squares);
  }
  if (i < n) {
    const V a = V::load_first(x + i, n - i);
    squares = fma_(a, a, squares);
  }
  const V mean = V::broadcast(reduce_add(squares)) / V::broadcast(static_cast<float>(n));
  return V::broadcast(1.0f) / sqrt_(mean + V::broadcast(eps));
}

template <typename V>
OTR_INLINE void rmsnorm_vec(const RmsNormParams& p, ThreadPool& pool) {
  pool.parallel_for(p.num_rows, [&](int row, int) {
    const int64_t source = p.row_index != nullptr ? p.row_index[row] : row;
    const float* x = p.x + source * p.hidden_size;
    Element* out = p.out + row * p.out_stride;
    const int n = p.hidden_size;
    const V inv = inverse_rms<V>(x, n, p.eps);
    int i = 0;
    for (; i + 16 <= n; i += 16) store(out + i, V::load(x + i) * inv * V::load(p.weight + i));
    if (i < n) store_first(out + i, n - i, V::load_first(x + i, n - i) * inv * V::load_first(p.weight + i, n - i));
    for (int64_t pad = n; pad < p.out_stride; ++pad) out[pad] = Element{};
  });
}

}  // namespace otr
