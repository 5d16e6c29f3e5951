// What the vector paths of linear (and linear_w4) share: the split into tasks, and linear_epilogue.h. The products are each
// path's own.
//
// Where rows are many a task is 32 outputs (a block of the packed weight) by up to kLinearTaskRows rows, never a piece of K.
// Tasks of one row chunk come first, so that a chunk of x (192 x 3584 bf16 = 1.4 MB) stays in cache while the whole weight
// streams past it once.
#pragma once

#include <cstdint>

#include "kernels/base/thread_pool.h"
#include "kernels/linear/linear_epilogue.h"

namespace otr {

inline constexpr int kLinearTaskRows = 192;

// As few tasks of blocks that follow each other as the threads share evenly, of at most `most_bytes` of the weight each where
// that is a block or more.
OTR_INLINE int linear_even_tasks(int blocks, int64_t block_bytes, int64_t most_bytes, int threads) {
  const int most = static_cast<int>(most_bytes / block_bytes > 1 ? most_bytes / block_bytes : 1);
  const int rounds = (blocks + most * threads - 1) / (most * threads), tasks = rounds * threads;
  return tasks < blocks ? tasks : blocks;
}

// Few rows: a task is blocks that follow each other, as few tasks as the threads share evenly, so that what the hardware
// fetches ahead goes on over a block's end. `multiply(block)` computes 32 outputs of all rows.
template <typename Multiply>
OTR_INLINE void linear_streams(const LinearParams& p, ThreadPool& pool, const Multiply& multiply) {
  constexpr int64_t kBytes = 1 << 20;
  const int64_t blocks = linear_padded(p.weight.out_features) / kLinearBlockN;
  const int64_t block_bytes = kLinearBlockN * linear_padded(p.weight.in_features) * static_cast<int64_t>(sizeof(Element));
  const int64_t tasks = linear_even_tasks(static_cast<int>(blocks), block_bytes, kBytes, pool.num_threads());
  pool.parallel_for(static_cast<int>(tasks), [&](int task, int) {
    const int64_t end = blocks * (task + 1) / tasks;
    for (int64_t block = blocks * task / tasks; block < end; ++block) multiply(block);
  });
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
