// Weights from tiles to rows, sm_90a. Shapes and layouts: linear.h, linear_sm90.h.
//
// One block an output, a thread an input in turn. Pairs of inputs lie 64 bytes apart in the tiles, so most of what is read is
// not used: it is on every weight once, when a model is loaded. No shared memory, no barrier, no reduction.
#include "kernels/base/launch_status.h"
#include "kernels/linear/linear_rows_sm90.h"
#include "kernels/linear/linear_sm90.h"

namespace otr {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads) rows_kernel(const LinearWeight weight, bool in_turns, Element* rows) {
  const int row = static_cast<int>(blockIdx.x), half = weight.out_features / 2;
  const int of_part = row < half ? row : row - half;
  const int turn = of_part / kLinearTileN * kLinearBlockN + of_part % kLinearTileN + (row < half ? 0 : kLinearTileN);
  const int64_t packed_row = in_turns ? turn : row;
  Element* out = rows + row * linear_sm90_stride(weight.in_features);
  for (int k = static_cast<int>(threadIdx.x); k < weight.in_features; k += kThreads)
    out[k] = weight.packed[linear_packed_index(packed_row, k, weight.in_features)];
}

}  // namespace

Status linear_rows_sm90(const LinearWeight& weight, bool in_turns, Element* rows, cudaStream_t stream) {
  if (weight.out_features == 0) return {};
  rows_kernel<<<static_cast<unsigned>(weight.out_features), kThreads, 0, stream>>>(weight, in_turns, rows);
  return launch_status("linear_rows");
}

Status load_linear_rows_sm90() { return load_kernels("linear_rows", rows_kernel); }

}  // namespace otr
