// cpu-amx: out = x W^T (+ bias) (+ residual) with TDPBF16PS.
//
// Tiles: 0 … 3 = C (rows 0-15 | 16-31 x outputs 0-15 | 16-31), 4 and 5 = x rows 0-15 and 16-31 (left operand, straight from x),
// 6 and 7 = weight tiles of outputs 0-15 and 16-31 (right operand, straight from the packed weight). Blocks of 32 rows take 4
// loads for 4 products; the last block of a task may have 1 … 31 rows: the tiles are configured to those row counts, so that
// nothing past x is touched and a single row costs neither the cycles nor the loads of sixteen.
// Reduction order: C += step over steps of 32 inputs ascending, the padding (zeros) included. Inside a step TDPBF16PS's own: even
// and odd inputs in two fma chains ascending, added, then added to C; denormals are zero. Then bias, then residual. A row of a
// tile never sees another row, so neither the row count nor the configuration matters.
// Roofline: up to 32 rows read the weight once: bound by memory. Many rows: one tile load per product: load ports and TDPBF16PS
// share the bound.
#include "kernels/amx/tile.h"
#include "kernels/linear/linear_vec.h"
#include "kernels/simd/vec_avx512.h"

namespace otr {
namespace {

constexpr int kRowBlock = 2 * kTileRows;

struct alignas(64) BlockSums {
  float sum[kRowBlock][kLinearBlockN];
};

OTR_INLINE void configure_rows(int upper, int lower) {
  TileConfig config = full_tiles();
  config.rows[0] = config.rows[1] = config.rows[4] = static_cast<uint8_t>(upper);
  config.rows[2] = config.rows[3] = config.rows[5] = static_cast<uint8_t>(lower);
  tile_configure(config);
}

// kBoth: the block has more than 16 rows. REQUIRES: tiles configured to its row counts.
template <bool kBoth>
OTR_INLINE void multiply_block(const Element* x, int64_t x_stride, const Element* w, int64_t steps, BlockSums* out) {
  const int64_t row_bytes = x_stride * 2;
  const Element* lower = x + kTileRows * x_stride;
  tile_zero<0>();
  tile_zero<1>();
  if constexpr (kBoth) {
    tile_zero<2>();
    tile_zero<3>();
  }
  for (int64_t step = 0; step < steps; ++step, w += 1024) {
    tile_load<4>(x + step * kLinearStepK, row_bytes);
    tile_load<6>(w, kTileBytes);
    tile_dot<0, 4, 6>();
    tile_load<7>(w + 512, kTileBytes);
    tile_dot<1, 4, 7>();
    if constexpr (kBoth) {
      tile_load<5>(lower + step * kLinearStepK, row_bytes);
      tile_dot<2, 5, 6>();
      tile_dot<3, 5, 7>();
    }
  }
  constexpr int64_t kSumsStride = kLinearBlockN * static_cast<int64_t>(sizeof(float));
  tile_store<0>(&out->sum[0][0], kSumsStride);
  tile_store<1>(&out->sum[0][kLinearTileN], kSumsStride);
  if constexpr (kBoth) {
    tile_store<2>(&out->sum[kTileRows][0], kSumsStride);
    tile_store<3>(&out->sum[kTileRows][kLinearTileN], kSumsStride);
  }
}

void multiply_rows(const LinearParams& p, int64_t first_row, int num_rows, int64_t block) {
  const int64_t steps = (p.weight.in_features + kLinearStepK - 1) / kLinearStepK;
  const Element* w = p.weight.packed + block * steps * 1024;
  BlockSums sums;
  configure_rows(kTileRows, kTileRows);
  for (int row = 0; row < num_rows; row += kRowBlock) {
    const int rows = num_rows - row < kRowBlock ? num_rows - row : kRowBlock;
    const Element* x = p.x + (first_row + row) * p.x_stride;
    if (rows <= kTileRows) {
      configure_rows(rows, kTileRows);
      multiply_block<false>(x, p.x_stride, w, steps, &sums);
    } else {
      if (rows < kRowBlock) configure_rows(kTileRows, rows - kTileRows);
      multiply_block<true>(x, p.x_stride, w, steps, &sums);
    }
    for (int r = 0; r < rows; ++r) {
      linear_finish(p, first_row + row + r, block, VecAvx512::load(sums.sum[r]), VecAvx512::load(sums.sum[r] + kLinearTileN));
    }
  }
  tile_release();
}

}  // namespace

void linear_amx(const LinearParams& p, ThreadPool& pool) {
  linear_tasks(p, pool, [&](int first_row, int num_rows, int block) { multiply_rows(p, first_row, num_rows, block); });
}

}  // namespace otr
