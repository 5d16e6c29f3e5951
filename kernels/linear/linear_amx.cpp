// cpu-amx: out = x W^T (+ bias) (+ residual) with TDPBF16PS.
//
// Tiles and reduction order: kernels/amx/row_block.h, with the weight's tiles straight from the packed weight, over all steps of 32 inputs,
// the padding (zeros) included. Then bias, then residual.
// Roofline: up to 32 rows read the weight once: bound by memory. Many rows: one tile load per product: load ports and TDPBF16PS
// share the bound.
#include "kernels/amx/row_block.h"
#include "kernels/linear/linear_vec.h"
#include "kernels/simd/vec_avx512.h"

namespace otr {
namespace {

static_assert(kAmxBlockColumns == kLinearBlockN && kTileDepth == kLinearStepK);

void multiply_rows(const LinearParams& p, int64_t first_row, int num_rows, int64_t block) {
  const int64_t steps = (p.weight.in_features + kLinearStepK - 1) / kLinearStepK;
  const Element* w = p.weight.packed + block * steps * kAmxStepElements;
  AmxBlock sums;
  amx_configure_rows(kTileRows, kTileRows);
  for (int row = 0; row < num_rows; row += kAmxBlockRows) {
    const int rows = num_rows - row < kAmxBlockRows ? num_rows - row : kAmxBlockRows;
    amx_multiply_rows(p.x + (first_row + row) * p.x_stride, p.x_stride, rows, w, steps, &sums);
    for (int r = 0; r < rows; ++r) {
      linear_finish(p, first_row + row + r, block, VecAvx512::load(sums.row[r]), VecAvx512::load(sums.row[r] + kLinearTileN));
    }
  }
  tile_release();
}

}  // namespace

void linear_amx(const LinearParams& p, ThreadPool& pool) {
  linear_tasks(p, pool, [&](int first_row, int num_rows, int block) { multiply_rows(p, first_row, num_rows, block); });
}

}  // namespace otr
