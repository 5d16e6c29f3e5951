// silu_mul, sm_90a: out[r][i] = Element(g / (1 + exp(-g)) * u).
//
// Shapes and layouts: silu_mul.h. A thread computes four neighbours of a row; no shared memory, no reduction.
// Roofline: memory; num_rows * intermediate_size * 10 bytes.
#include "kernels/base/elementary.h"
#include "kernels/base/launch_status.h"
#include "kernels/silu_mul/silu_mul_sm90.h"

namespace otr {
namespace {

constexpr int kThreads = 256, kEach = 4;

__global__ void __launch_bounds__(kThreads) silu_mul_kernel(const SiluMulParams p) {
  const float* gate = p.gate_up + int64_t{blockIdx.y} * 2 * p.intermediate_size;
  const float* up = gate + p.intermediate_size;
  Element* out = p.out + blockIdx.y * p.out_stride;
  const int64_t begin = int64_t{blockIdx.x} * kThreads * kEach;
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    const int64_t i = begin + j * kThreads + threadIdx.x;
    if (i < p.intermediate_size)
      out[i] = to_element(gate[i] / (1.0f + exp32(-gate[i])) * up[i]);
    else if (i < p.out_stride)
      out[i] = Element{};
  }
}

}  // namespace

Status silu_mul_sm90(const SiluMulParams& p, cudaStream_t stream) {
  constexpr int32_t kMaxRows = 65535;  // of a grid
  const unsigned blocks = static_cast<unsigned>((p.out_stride + kThreads * kEach - 1) / (kThreads * kEach));
  for (int32_t row = 0; row < p.num_rows; row += kMaxRows) {
    SiluMulParams part = p;
    part.num_rows = p.num_rows - row < kMaxRows ? p.num_rows - row : kMaxRows;
    part.gate_up += int64_t{row} * 2 * p.intermediate_size;
    part.out += row * p.out_stride;
    silu_mul_kernel<<<dim3(blocks, static_cast<unsigned>(part.num_rows)), kThreads, 0, stream>>>(part);
    OTR_RETURN_IF_ERROR(launch_status("silu_mul"));
  }
  return {};
}

}  // namespace otr
