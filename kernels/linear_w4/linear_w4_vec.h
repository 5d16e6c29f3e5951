// What the vector paths of linear_w4 share: x rounded once for all outputs, the split into tasks, the order of groups. Rounding
// and products are each path's own. (cpu-amx, whose tasks are others, has the sums and the threads of the rounding from here.)
//
// Up to 64 rows at a time: all threads round x, group after group, into the first thread's scratch (64 rows of 4864 inputs: 331
// KB, which stay in L2). Then a task is some blocks of 32 outputs by all these rows. It goes through a block's groups once:
// each path adds a group to the rows' sums, which wait on the stack (64 x 128 bytes = 8 KB). Where not one row fits the scratch
// every task rounds for itself.
#pragma once

#include "kernels/base/thread_pool.h"
#include "kernels/linear/linear_vec.h"
#include "kernels/linear_w4/linear_w4.h"

namespace otr {

inline constexpr int kW4TaskRows = 64;

// How far ahead of its use the weight is fetched. The reorder buffer holds some 10 lines of it with their products: without
// help memory and arithmetic take turns. No harm is done past the end.
inline constexpr int64_t kW4PrefetchBytes = 4096;

struct alignas(64) W4Sums {
  float row[kW4TaskRows][kLinearBlockN];
};
template <typename V>
OTR_INLINE void w4_clear(int rows, W4Sums* sums) {
  for (int r = 0; r < rows; ++r) {
    for (int tile = 0; tile < 2; ++tile) store(sums->row[r] + tile * kLinearTileN, V::zero());
  }
}

// Into how many tasks the rounding of a task's rows is cut: fewer groups than these, of all rows, are not worth a thread's
// start.
inline constexpr int kW4GroupsOfAThread = 64;
OTR_INLINE int w4_rounding_tasks(int rows, int groups, int threads) {
  const int worth = rows * groups / kW4GroupsOfAThread;
  return worth < 1 ? 1 : worth < threads ? worth : threads;
}

// A group of x of some rows: integers in the weight's order, their unit, and their sum (exact).
struct W4Rounded {
  int8_t (*integers)[kW4GroupK];  // [rows], 64-byte aligned
  float* units;                   // [rows]
  float* sums;                    // [rows]
};
OTR_INLINE int64_t w4_rounded_bytes(int rows) {
  return (rows * static_cast<int64_t>(kW4GroupK + 2 * sizeof(float)) + 63) / 64 * 64;
}
OTR_INLINE W4Rounded w4_rounded(char* at, int rows) {
  float* const units = reinterpret_cast<float*>(at + int64_t{rows} * kW4GroupK);
  return {reinterpret_cast<int8_t(*)[kW4GroupK]>(at), units, units + rows};
}

// One group of a task: words and nibbles of 32 outputs.
struct W4Group {
  const uint8_t* words;
  const uint8_t* nibbles;
  int pieces;
  W4Rounded x;
  int num_rows;
};

// Of the weight in a task: it begins with lines that nobody has fetched, and fetches behind its end what may be another
// thread's. (Two Zen 4 cores, 1 to 8 rows of Qwen2.5-7B's shapes: 64 KB took 1.13 to 1.45 times as long, of 0.5B's 1.09
// to 1.17.)
inline constexpr int64_t kW4TaskBytes = 512 << 10;

// V: a float type of kernels/simd. `round(x, inputs, row, rounded)` rounds `inputs` of a row's group, and zeros;
// `add_group(group, &sums)` adds scale * unit * partial to the first num_rows rows of sums.
template <typename V, typename Round, typename AddGroup>
OTR_INLINE void linear_w4_tasks(const LinearW4Params& p, ThreadPool& pool, const Round& round, const AddGroup& add_group) {
  const LinearParams shape = linear_shape(p);
  const int64_t k = p.weight.in_features, block_bytes = w4_cpu_block_bytes(k);
  const int groups = static_cast<int>(w4_cpu_groups(k)), threads = pool.num_threads();
  const int blocks = static_cast<int>(linear_padded(p.weight.out_features) / kLinearBlockN);
  const int tasks = linear_even_tasks(blocks, block_bytes, kW4TaskBytes, threads);
  const int64_t row_bytes = groups * static_cast<int64_t>(kW4GroupK + 2 * sizeof(float)), padding = int64_t{groups} * 64;
  const int64_t fit = (static_cast<int64_t>(ThreadPool::kScratchBytes) - padding) / row_bytes;
  const bool shared = fit >= 1;
  const int most_rows = shared && fit < kW4TaskRows ? static_cast<int>(fit) : kW4TaskRows;
  const int chunks = (p.num_rows + most_rows - 1) / most_rows;
  for (int chunk = 0; chunk < chunks; ++chunk) {
    const int64_t first_row = int64_t{p.num_rows} * chunk / chunks;
    const int rows = static_cast<int>(int64_t{p.num_rows} * (chunk + 1) / chunks - first_row);
    const auto round_group = [&](int g, char* to) {
      const W4Rounded rounded = w4_rounded(to, rows);
      const Element* x = p.x + first_row * p.x_stride + int64_t{g} * kW4GroupK;
      for (int r = 0; r < rows; ++r) round(x + r * p.x_stride, w4_cpu_pieces(k, g) * kW4PieceK, r, rounded);
      return rounded;
    };
    char* const scratch = static_cast<char*>(pool.scratch(0));
    const int64_t group_bytes = w4_rounded_bytes(rows);
    if (shared) {
      const int parts = w4_rounding_tasks(rows, groups, threads);
      pool.parallel_for(parts, [&](int part, int) {
        for (int g = groups * part / parts; g < groups * (part + 1) / parts; ++g) round_group(g, scratch + g * group_bytes);
      });
    }
    pool.parallel_for(tasks, [&](int task, int) {
      alignas(64) char own[kW4TaskRows * (kW4GroupK + 2 * sizeof(float))];
      W4Sums sums;
      for (int block = static_cast<int>(int64_t{blocks} * task / tasks); block < int64_t{blocks} * (task + 1) / tasks;
           ++block) {
        const uint8_t* packed = p.weight.packed + block * block_bytes;
        w4_clear<V>(rows, &sums);
        for (int g = 0; g < groups; ++g, packed += kW4GroupBytes) {
          const W4Rounded x = shared ? w4_rounded(scratch + g * group_bytes, rows) : round_group(g, own);
          add_group(W4Group{packed, packed + kW4WordsBytes, w4_cpu_pieces(k, g), x, rows}, &sums);
        }
        for (int r = 0; r < rows; ++r) {
          linear_finish(shape, first_row + r, block, V::load(sums.row[r]), V::load(sums.row[r] + kLinearTileN));
        }
      }
    });
  }
}

}  // namespace otr
