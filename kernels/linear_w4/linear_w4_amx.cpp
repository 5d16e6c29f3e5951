// cpu-amx: out = x Wq^T (+ bias) (+ residual) with TDPBF16PS.
//
// Tiles: kernels/amx/row_block.h.
// Reduction order: C of each group as there; groups ascending, sum = fma(scale, C, sum); then bias, then residual. A row never
// sees another row.
//
// Up to 32 rows: a step of 32 inputs is expanded to bf16 while the products of the step before run, and a group's sums are
// scaled a step after its end, so that what was stored has left the store buffer when it is loaded. Memory bounds that if 512
// bytes of nibbles (about 200 operations, 32 stores) are expanded within the 30 ns that they take at 16 GB/s a core. More rows:
// a group (32 outputs x 128 inputs) is expanded in L1 for all rows of the task. 32 rows cost 16 products a group, and the
// storing and scaling of C beside them.
#include <algorithm>

#include "kernels/amx/row_block.h"
#include "kernels/linear_w4/linear_w4_vec.h"
#include "kernels/linear_w4/w4_expand_avx512.h"

namespace otr {
namespace {

static_assert(kAmxBlockColumns == kLinearBlockN && kTileDepth == kLinearStepK);

// ---- Few rows

constexpr int64_t kTaskBytes = 128 << 10;  // of the weight, side by side
constexpr int64_t kFetchAhead = 3072;      // bytes
constexpr int kGroupSteps = kW4GroupK / kLinearStepK;

// What a group's products came to, and its scales.
struct PendingGroup {
  AmxBlock sums;
  const uint8_t* words;
};

OTR_INLINE void add_scaled(const PendingGroup& group, int num_rows, AmxBlock* sums) {
  const __m512 scale[2] = {_mm512_load_ps(group.words), _mm512_load_ps(group.words + 64)};
  for (int r = 0; r < num_rows; ++r) {
#pragma GCC unroll 2
    for (int tile = 0; tile < 2; ++tile) {
      float* sum = sums->row[r] + tile * kLinearTileN;
      const __m512 c = _mm512_load_ps(group.sums.row[r] + tile * kLinearTileN);
      _mm512_store_ps(sum, _mm512_fmadd_ps(scale[tile], c, _mm512_load_ps(sum)));
    }
  }
}

// One block of 32 outputs for up to 32 rows. REQUIRES: tiles configured to them.
template <bool kBoth>
OTR_INLINE void multiply_block(const LinearW4Params& p, const LinearParams& shape, int64_t block,
                               const W4Constants& constants) {
  const int64_t in_features = p.weight.in_features, steps = linear_padded(in_features) / kLinearStepK;
  const int64_t row_bytes = p.x_stride * 2;
  const uint8_t* words = p.weight.packed + block * w4_cpu_block_bytes(in_features);
  W4Step ring[2];
  PendingGroup pending[2];
  AmxBlock sums;
  for (int r = 0; r < p.num_rows; ++r) {
    for (int tile = 0; tile < 2; ++tile) store(sums.row[r] + tile * kLinearTileN, VecAvx512::zero());
  }
  __m512i offsets[2] = {w4_offsets(words), w4_offsets(words + 64)};
  const uint8_t* nibbles = words + kW4WordsBytes;
  w4_expand_step(nibbles, offsets, constants, &ring[0]);
  for (int64_t step = 0; step < steps; ++step) {
    const int64_t group = step / kGroupSteps;
    const int in_group = static_cast<int>(step % kGroupSteps);
    const bool ends = in_group == kGroupSteps - 1 || step + 1 == steps;
    const uint8_t* group_words = words;
    if (in_group == 0) {
      tile_zero<0>();
      tile_zero<1>();
      if constexpr (kBoth) {
        tile_zero<2>();
        tile_zero<3>();
      }
    }
    if (step + 1 < steps) {
      nibbles += kW4StepBytes;
      if (ends) {
        words += kW4GroupBytes;
        nibbles = words + kW4WordsBytes;
        offsets[0] = w4_offsets(words);
        offsets[1] = w4_offsets(words + 64);
      }
      w4_expand_step(nibbles, offsets, constants, &ring[(step + 1) % 2]);
    }
    const W4Step& w = ring[step % 2];
    const Element* x = p.x + step * kTileDepth;
    tile_load<4>(x, row_bytes);
    tile_load<6>(w.pair[0], kTileBytes);
    tile_dot<0, 4, 6>();
    tile_load<7>(w.pair[1], kTileBytes);
    tile_dot<1, 4, 7>();
    if constexpr (kBoth) {
      tile_load<5>(x + kTileRows * p.x_stride, row_bytes);
      tile_dot<2, 5, 6>();
      tile_dot<3, 5, 7>();
    }
    if (in_group == 1 && group > 0) add_scaled(pending[(group - 1) % 2], p.num_rows, &sums);
    if (ends) {
      constexpr int64_t kStride = kAmxBlockColumns * static_cast<int64_t>(sizeof(float));
      PendingGroup& done = pending[group % 2];
      if (in_group == 0 && group > 0) add_scaled(pending[(group - 1) % 2], p.num_rows, &sums);  // a last group of one step
      done.words = group_words;
      tile_store<0>(done.sums.row[0], kStride);
      tile_store<1>(done.sums.row[0] + kTileColumns, kStride);
      if constexpr (kBoth) {
        tile_store<2>(done.sums.row[kTileRows], kStride);
        tile_store<3>(done.sums.row[kTileRows] + kTileColumns, kStride);
      }
    }
#pragma GCC unroll 9
    for (int line = 0; line < 9; ++line) __builtin_prefetch(nibbles + kFetchAhead + line * 64);
  }
  add_scaled(pending[(steps - 1) / kGroupSteps % 2], p.num_rows, &sums);
  for (int r = 0; r < p.num_rows; ++r) {
    linear_finish(shape, r, block, VecAvx512::load(sums.row[r]), VecAvx512::load(sums.row[r] + kLinearTileN));
  }
}

void multiply_few(const LinearW4Params& p, ThreadPool& pool) {
  const LinearParams shape = linear_shape(p);
  const int64_t blocks = linear_padded(p.weight.out_features) / kLinearBlockN;
  const int64_t most = std::max<int64_t>(1, kTaskBytes / w4_cpu_block_bytes(p.weight.in_features));
  const int64_t size = std::min(most, std::max<int64_t>(1, blocks / (4 * pool.num_threads())));
  pool.parallel_for(static_cast<int>((blocks + size - 1) / size), [&](int task, int) {
    const bool both = p.num_rows > kTileRows;
    const W4Constants constants;
    amx_configure_rows(both ? kTileRows : p.num_rows, both ? p.num_rows - kTileRows : kTileRows);
    for (int64_t block = task * size; block < std::min(blocks, (task + 1) * size); ++block) {
      if (both) multiply_block<true>(p, shape, block, constants);
      else multiply_block<false>(p, shape, block, constants);
    }
    tile_release();
  });
}

// ---- More rows

void add_group(const W4Group& g, W4Sums* sums) {
  W4Expanded expanded;
  AmxBlock partial;
  w4_expand_group(g.words, g.nibbles, g.pieces, &expanded);
  const int steps = g.pieces * kW4PieceK / kLinearStepK;
  const __m512 scale[2] = {_mm512_load_ps(g.words), _mm512_load_ps(g.words + 64)};
  if (g.num_rows >= kAmxBlockRows) amx_configure_rows(kTileRows, kTileRows);
  for (int first = 0; first < g.num_rows; first += kAmxBlockRows) {
    const int rows = g.num_rows - first < kAmxBlockRows ? g.num_rows - first : kAmxBlockRows;
    amx_multiply_rows(g.x + first * g.x_stride, g.x_stride, rows, &expanded.step[0].pair[0][0][0], steps, &partial);
    for (int r = 0; r < rows; ++r) {
      for (int tile = 0; tile < 2; ++tile) {
        float* sum = sums->row[first + r] + tile * kLinearTileN;
        const __m512 c = _mm512_load_ps(partial.row[r] + tile * kLinearTileN);
        _mm512_store_ps(sum, _mm512_fmadd_ps(scale[tile], c, _mm512_load_ps(sum)));
      }
    }
  }
  tile_release();
}

}  // namespace

void linear_w4_amx(const LinearW4Params& p, ThreadPool& pool) {
  if (p.num_rows == 0) return;
  if (p.num_rows <= kAmxBlockRows) return multiply_few(p, pool);
  linear_w4_tasks<VecAvx512>(p, pool, [](const W4Group& g, W4Sums* sums) { add_group(g, sums); });
}

}  // namespace otr
