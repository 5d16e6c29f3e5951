// cpu-amx: out = x Wq^T (+ bias) (+ residual) with TDPBF16PS.
//
// A group (32 outputs x 128 inputs) is expanded to bf16 in L1, as linear's weight tiles, for all rows of the task.
// Tiles as in linear: 0 … 3 = C (rows 0-15 | 16-31 x outputs 0-15 | 16-31), 4 and 5 = x, 6 and 7 = weights. The last block of
// a task may have 1 … 31 rows: the tiles are configured to those row counts.
// Reduction order: C starts at 0 in each group and adds steps of 32 inputs ascending, inside a step TDPBF16PS's own
// (linear_amx.cpp); groups ascending, sum = fma(scale, C, sum); then bias, then residual. A row never sees another row.
// Roofline: few rows: memory, if 64 bytes of nibbles (11 operations, 4 stores) are expanded within the 13 cycles that they take
// at 15 GB/s a core. Many rows: 32 rows cost 16 products a group, and the storing and scaling of C beside them.
#include "kernels/amx/tile.h"
#include "kernels/linear_w4/linear_w4_vec.h"
#include "kernels/linear_w4/w4_expand_avx512.h"

namespace otr {
namespace {

constexpr int kRowBlock = 2 * kTileRows;

struct alignas(64) BlockPartial {
  float row[kRowBlock][kLinearBlockN];
};

OTR_INLINE void configure_rows(int upper, int lower) {
  TileConfig config = full_tiles();
  config.rows[0] = config.rows[1] = config.rows[4] = static_cast<uint8_t>(upper);
  config.rows[2] = config.rows[3] = config.rows[5] = static_cast<uint8_t>(lower);
  tile_configure(config);
}

// kBoth: the block has more than 16 rows. REQUIRES: tiles configured to its row counts.
template <bool kBoth>
OTR_INLINE void multiply_block(const Element* x, int64_t x_stride, const W4Expanded& w, int steps, BlockPartial* out) {
  const int64_t row_bytes = x_stride * 2;
  tile_zero<0>();
  tile_zero<1>();
  if constexpr (kBoth) {
    tile_zero<2>();
    tile_zero<3>();
  }
  for (int step = 0; step < steps; ++step, x += kLinearStepK) {
    tile_load<4>(x, row_bytes);
    tile_load<6>(w.pair[step][0], kTileBytes);
    tile_dot<0, 4, 6>();
    tile_load<7>(w.pair[step][1], kTileBytes);
    tile_dot<1, 4, 7>();
    if constexpr (kBoth) {
      tile_load<5>(x + kTileRows * x_stride, row_bytes);
      tile_dot<2, 5, 6>();
      tile_dot<3, 5, 7>();
    }
  }
  constexpr int64_t kStride = kLinearBlockN * static_cast<int64_t>(sizeof(float));
  tile_store<0>(&out->row[0][0], kStride);
  tile_store<1>(&out->row[0][kLinearTileN], kStride);
  if constexpr (kBoth) {
    tile_store<2>(&out->row[kTileRows][0], kStride);
    tile_store<3>(&out->row[kTileRows][kLinearTileN], kStride);
  }
}

void add_group(const W4Group& g, W4Sums* sums) {
  W4Expanded expanded;
  BlockPartial partial;
  w4_expand_group(g.words, g.nibbles, g.pieces, &expanded);
  const int steps = g.pieces * kW4PieceK / kLinearStepK;
  const __m512 scale[2] = {_mm512_load_ps(g.words), _mm512_load_ps(g.words + 64)};
  if (g.num_rows >= kRowBlock) configure_rows(kTileRows, kTileRows);
  for (int first = 0; first < g.num_rows; first += kRowBlock) {
    const int rows = g.num_rows - first < kRowBlock ? g.num_rows - first : kRowBlock;
    const Element* x = g.x + first * g.x_stride;
    if (rows <= kTileRows) {
      configure_rows(rows, kTileRows);
      multiply_block<false>(x, g.x_stride, expanded, steps, &partial);
    } else {
      if (rows < kRowBlock) configure_rows(kTileRows, rows - kTileRows);
      multiply_block<true>(x, g.x_stride, expanded, steps, &partial);
    }
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
  linear_w4_tasks<VecAvx512>(p, pool, [](const W4Group& g, W4Sums* sums) { add_group(g, sums); });
}

}  // namespace otr
