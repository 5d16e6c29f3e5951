// What the vector paths of linear share: the split into tasks, and linear_epilogue.h. The products are each path's own.
//
// A task is 32 outputs (a block of the packed weight) by up to kLinearTaskRows rows, never a piece of K. Tasks of one row chunk
// come first, so that a chunk of x (192 x 3584 bf16 = 1.4 MB) stays in cache while the whole weight streams past it once.
#pragma once

#include <cstdint>

#include "kernels/base/thread_pool.h"
#include "kernels/linear/linear_epilogue.h"

namespace otr {

inline constexpr int kLinearTaskRows = 192;

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
