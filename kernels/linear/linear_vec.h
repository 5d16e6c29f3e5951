// What the vector paths of linear share: the split into tasks and the epilogue. The products are each path's own.
//
// A task is 32 outputs (a block of the packed weight) by up to kLinearTaskRows rows, never a piece of K. Tasks of one row chunk
// come first, so that a chunk of x (192 x 3584 bf16 = 1.4 MB) stays in cache while the whole weight streams past it once.
#pragma once

#include <cstdint>

#include "kernels/base/thread_pool.h"
#include "kernels/linear/linear.h"

namespace otr {

inline constexpr int kLinearTaskRows = 192;

// V: a float type of kernels/simd. out[row][n0 + lane] = residual + (acc + bias), for the lanes that are outputs.
template <typename V>
OTR_INLINE void linear_finish(const LinearParams& p, int64_t row, int64_t n0, V acc) {
  const int64_t left = p.weight.out_features - n0;
  if (left <= 0) return;
  const int lanes = left < kLinearTileN ? static_cast<int>(left) : kLinearTileN;
  V y = p.weight.bias != nullptr ? acc + V::load_first(p.weight.bias + n0, lanes) : acc;
  const int64_t i = row * p.out_stride + n0;
  if (p.residual != nullptr) y = V::load_first(p.residual + i, lanes) + y;
  store_first(p.out + i, lanes, y);
}

// `multiply(first_row, num_rows, block)` computes 32 outputs of 1 … kLinearTaskRows rows.
template <typename Multiply>
OTR_INLINE void linear_tasks(const LinearParams& p, ThreadPool& pool, const Multiply& multiply) {
  const int blocks = static_cast<int>(linear_padded(p.weight.out_features) / kLinearBlockN);
  const int chunks = (p.num_rows + kLinearTaskRows - 1) / kLinearTaskRows;
  pool.parallel_for(blocks * chunks, [&](int task, int) {
    const int first_row = task / blocks * kLinearTaskRows;
    const int left = p.num_rows - first_row;
    multiply(first_row, left < kLinearTaskRows ? left : kLinearTaskRows, task % blocks);
  });
}

}  // namespace otr
