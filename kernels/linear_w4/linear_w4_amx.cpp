// cpu-amx: out = x Wq^T (+ bias) (+ residual) with TDPBF16PS.
//
// A group (32 outputs x 128 inputs) is expanded to bf16 in L1, as linear's weight tiles, for all rows of the task.
// Tiles: kernels/amx/row_block.h.
// Reduction order: C of each group as there; groups ascending, sum = fma(scale, C, sum); then bias, then residual. A row never sees another row.
// Roofline: few rows: memory, if 64 bytes of nibbles (11 operations, 4 stores) are expanded within the 13 cycles that they take
// at 15 GB/s a core. Many rows: 32 rows cost 16 products a group, and the storing and scaling of C beside them.
#include "kernels/amx/row_block.h"
#include "kernels/linear_w4/linear_w4_vec.h"
#include "kernels/linear_w4/w4_expand_avx512.h"

namespace otr {
namespace {

static_assert(kAmxBlockColumns == kLinearBlockN && kTileDepth == kLinearStepK);

void add_group(const W4Group& g, W4Sums* sums) {
  W4Expanded expanded;
  AmxBlock partial;
  w4_expand_group(g.words, g.nibbles, g.pieces, &expanded);
  const int steps = g.pieces * kW4PieceK / kLinearStepK;
  const __m512 scale[2] = {_mm512_load_ps(g.words), _mm512_load_ps(g.words + 64)};
  if (g.num_rows >= kAmxBlockRows) amx_configure_rows(kTileRows, kTileRows);
  for (int first = 0; first < g.num_rows; first += kAmxBlockRows) {
    const int rows = g.num_rows - first < kAmxBlockRows ? g.num_rows - first : kAmxBlockRows;
    amx_multiply_rows(g.x + first * g.x_stride, g.x_stride, rows, &expanded.pair[0][0][0][0], steps, &partial);
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
