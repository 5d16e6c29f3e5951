// linear: out = x W^T (+ bias) (+ residual), the matrix product of every projection and of the lm_head.
//
//   out[r][n] = residual[r][n] + (sum_k x[r][k] * w[n][k] + bias[n])          float32 accumulation
//
// or, of a weight that holds gate and up in turns, 16 outputs of each (so out_features is a multiple of 32),
//
//   gated[r][16 b + i] = Element(g / (1 + exp(-g)) * u),  g = sum_k x[r][k] * w[32 b + i][k],  u that of w[32 b + 16 + i]
//
// without bias and residual. Gates of zero weights give 0, so a gated row is its own padding. (A pass of its own that reads
// gates and ups from float32 took 4 to 9 % more than the product alone at Qwen2.5-0.5B's shape, 1 to 64 rows.)
//
// Reduction order: a function of (path, in_features) alone: never of the rows, their number or the threads.
//   cpu-scalar  one float32 chain over k ascending
//   cpu-avx2    the same chain, one fma a step
//   cpu-avx512  one float32 chain over input pairs ascending, each added by VDPBF16PS
//   cpu-amx     one float32 chain over steps of 32 inputs ascending, each summed and added by TDPBF16PS
// The files have the details. Zero padding takes part; bias, then residual, are added last.
//
// Weight layout (all CPU paths): blocks of 32 outputs; inside a block, steps of 32 inputs; inside a step, two tiles of
// 16 outputs; a tile is [16 input pairs][16 outputs][2] — the VNNI form that AMX takes as its right operand and VDPBF16PS as
// a vector. Outputs and inputs are padded to 32 with zeros.
//
// Errors: none. Thread safety: params are read only; `out` rows must not overlap other live buffers, but may equal `residual`.
#pragma once

#include <cstdint>

#include "kernels/base/element.h"

namespace otr {

class ThreadPool;

inline constexpr int kLinearTileN = 16;
inline constexpr int kLinearBlockN = 32;  // outputs of a task's smallest piece
inline constexpr int kLinearStepK = 32;   // inputs of a step: one AMX tile row of bf16

OTR_INLINE constexpr int64_t linear_padded(int64_t n) { return (n + 31) / 32 * 32; }

// What x_stride should be on a CPU: an odd number of cache lines, so that the same inputs of neighbouring rows lie in different
// sets of the caches. (16 rows of 3584 inputs side by side use 4 of L1's 64 sets: with AMX at 16 rows 0.85 of the read
// bandwidth, not 0.95.)
OTR_INLINE constexpr int64_t linear_row_stride(int64_t in_features) { return linear_padded(in_features) | 32; }

OTR_INLINE constexpr int64_t linear_packed_elements(int64_t out_features, int64_t in_features) {
  return linear_padded(out_features) * linear_padded(in_features);
}

// Element index of w[n][k] in the packed weight.
OTR_INLINE constexpr int64_t linear_packed_index(int64_t n, int64_t k, int64_t in_features) {
  const int64_t block = n / kLinearBlockN, tile = n % kLinearBlockN / kLinearTileN, lane = n % kLinearTileN;
  const int64_t step = k / kLinearStepK, pair = k % kLinearStepK / 2, half = k % 2;
  const int64_t steps = linear_padded(in_features) / kLinearStepK;
  return (((block * steps + step) * 2 + tile) * 16 + pair) * 32 + lane * 2 + half;
}

struct LinearWeight {
  int32_t in_features = 0;
  int32_t out_features = 0;
  const Element* packed = nullptr;  // [linear_packed_elements], 64-byte aligned
  const float* bias = nullptr;      // [out_features], may be null
};

struct LinearParams {
  int32_t num_rows;
  LinearWeight weight;
  const Element* x;       // [num_rows][x_stride], zero from in_features up to the next multiple of 32; 64-byte aligned
  int64_t x_stride;       // elements, a multiple of 32
  const float* residual;  // [num_rows][out_stride], may be null, may equal out
  float* out;             // [num_rows][out_stride]
  int64_t out_stride;
  Element* gated = nullptr;  // [num_rows][gated_stride]: written instead of `out` where not null
  int64_t gated_stride = 0;  // elements, at least out_features / 2
};

// Packs num_rows <= 32 rows [num_rows][in_features] into one block [32 * linear_padded(in_features)], padding included.
void linear_pack_block(const Element* rows, int32_t num_rows, int32_t in_features, Element* block);

// The same of a block whose halves, of num_rows <= 16 rows each, come from two places.
void linear_pack_halves(const Element* first, const Element* last, int32_t num_rows, int32_t in_features, Element* block);

// Packs num_rows rows [num_rows][in_features] as rows first_row … of a weight of out_features rows; its other rows stay as they
// are.
void linear_pack_rows(const Element* rows, int32_t first_row, int32_t num_rows, int32_t out_features, int32_t in_features,
                      Element* packed);

// The way back: num_rows <= 16 rows from first_row, a multiple of 16, on, as [num_rows][in_features].
void linear_unpack_rows(const Element* packed, int64_t first_row, int32_t num_rows, int32_t in_features, Element* rows);

void linear_scalar(const LinearParams& params, ThreadPool& pool);
void linear_avx2(const LinearParams& params, ThreadPool& pool);
void linear_avx512(const LinearParams& params, ThreadPool& pool);
void linear_amx(const LinearParams& params, ThreadPool& pool);

}  // namespace otr
