// What the vector paths of linear_w4 share: the split into tasks and the order of groups. The products are each path's own.
//
// A task is 32 outputs by up to kW4TaskRows rows. It goes through the groups once: each path adds a group to the rows' sums,
// which wait on the stack (64 x 128 bytes = 8 KB). So a group is expanded once for all rows of a task. As x is read in pieces
// of a group's 256 bytes, which the prefetcher does not foresee, a task's rows should fit L2 (64 x 3584 bf16 = 448 KB).
#pragma once

#include "kernels/linear/linear_vec.h"
#include "kernels/linear_w4/linear_w4.h"

namespace otr {

inline constexpr int kW4TaskRows = 64;

// How far ahead of its use the weight is fetched. The reorder buffer holds some 10 lines of it with their products: without
// help memory and arithmetic take turns (Zen 4: 2 rows 14 GB/s against 18, 4 rows 9.7 against 12.5). No harm is done past the
// end.
inline constexpr int64_t kW4PrefetchBytes = 4096;

struct alignas(64) W4Sums {
  float row[kW4TaskRows][kLinearBlockN];
};

// One group of a task: words and nibbles of 32 outputs, and x from the group's first input on.
struct W4Group {
  const uint8_t* words;
  const uint8_t* nibbles;
  int pieces;
  const Element* x;
  int64_t x_stride;
  int num_rows;
};

// V: a float type of kernels/simd. `add_group(group, &sums)` adds scale * partial to the first num_rows rows of sums.
template <typename V, typename AddGroup>
OTR_INLINE void linear_w4_tasks(const LinearW4Params& p, ThreadPool& pool, const AddGroup& add_group) {
  const LinearParams shape = linear_shape(p);
  const int64_t k = p.weight.in_features;
  const int blocks = static_cast<int>(linear_padded(p.weight.out_features) / kLinearBlockN);
  const int chunks = (p.num_rows + kW4TaskRows - 1) / kW4TaskRows;
  pool.parallel_for(blocks * chunks, [&](int task, int) {
    const int first_row = task / blocks * kW4TaskRows, block = task % blocks;
    const int num_rows = p.num_rows - first_row < kW4TaskRows ? p.num_rows - first_row : kW4TaskRows;
    const uint8_t* packed = p.weight.packed + block * w4_cpu_block_bytes(k);
    const Element* x = p.x + first_row * p.x_stride;
    W4Sums sums;
    for (int r = 0; r < num_rows; ++r) {
      for (int tile = 0; tile < 2; ++tile) store(sums.row[r] + tile * kLinearTileN, V::zero());
    }
    for (int64_t g = 0; g < w4_cpu_groups(k); ++g, packed += kW4GroupBytes, x += kW4GroupK) {
      add_group(W4Group{packed, packed + kW4WordsBytes, w4_cpu_pieces(k, g), x, p.x_stride, num_rows}, &sums);
    }
    for (int r = 0; r < num_rows; ++r) {
      linear_finish(shape, first_row + r, block, V::load(sums.row[r]), V::load(sums.row[r] + kLinearTileN));
    }
  });
}

}  // namespace otr
