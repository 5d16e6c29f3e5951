// rmsnorm: out[r][i] = Element((x[r][i] * inv) * weight[i]),  inv = 1 / sqrt(mean(x[r]^2) + eps).
//
// Rows may be picked by index (the final norm runs only on rows whose logits are wanted). Reduction order: cpu-scalar sums the
// squares in float64, ascending; vector paths in 16 float32 lanes (element i in lane i % 16, by fma), then by halves. The
// square root and the divisions are IEEE. out is zero-filled from hidden_size up to out_stride, as linear asks of its input.
#pragma once

#include <cstdint>

#include "kernels/base/element.h"

namespace otr {

class ThreadPool;

struct RmsNormParams {
  int32_t num_rows;
  int32_t hidden_size;
  float eps;
  const float* x;            // [*][hidden_size]
  const int32_t* row_index;  // [num_rows] rows of x, may be null: row r is x's row r
  const float* weight;       // [hidden_size]
  Element* out;              // [num_rows][out_stride]
  int64_t out_stride;        // a multiple of 32
};

void rmsnorm_scalar(const RmsNormParams& params, ThreadPool& pool);
void rmsnorm_avx2(const RmsNormParams& params, ThreadPool& pool);
void rmsnorm_avx512(const RmsNormParams& params, ThreadPool& pool);

}  // namespace otr
