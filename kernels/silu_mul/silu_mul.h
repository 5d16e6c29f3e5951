// silu_mul: out[r][i] = Element(g / (1 + exp(-g)) * u),  g = gate_up[r][i], u = gate_up[r][intermediate_size + i].
//
// Element-wise: no reduction; the vector paths run the definition's operations lane by lane and give the same bits. out is
// zero-filled from intermediate_size up to out_stride, as linear asks of its input.
#pragma once

#include <cstdint>

#include "kernels/base/element.h"

namespace otr {

class ThreadPool;

struct SiluMulParams {
  int32_t num_rows;
  int32_t intermediate_size;
  const float* gate_up;  // [num_rows][2 * intermediate_size]
  Element* out;          // [num_rows][out_stride]
  int64_t out_stride;    // a multiple of 32
};

void silu_mul_scalar(const SiluMulParams& params, ThreadPool& pool);
void silu_mul_avx2(const SiluMulParams& params, ThreadPool& pool);
void silu_mul_avx512(const SiluMulParams& params, ThreadPool& pool);

}  // namespace otr
