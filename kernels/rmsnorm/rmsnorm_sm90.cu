// rmsnorm, sm_90a: out[r][i] = Element((x[r][i] * inv) * weight[i]),  inv = 1 / sqrt(mean(x[r]^2) + eps).
//
// Shapes and layouts: rmsnorm.h. One block of 256 threads a row, which is read twice, the second time from L1. Reduction order:
// rmsnorm_sm90.h. One barrier: the warps' sums.
// Roofline: memory; num_rows * hidden_size * 6 bytes.
#include "kernels/base/elementary.h"
#include "kernels/base/launch_status.h"
#include "kernels/ptx/cluster.h"
#include "kernels/rmsnorm/rmsnorm_sm90.h"

namespace otr {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads) rmsnorm_kernel(const RmsNormParams p) {
  __shared__ float warp_sums[kThreads / 32];
  ptx::grid_let_next();  // a linear that fetches its weights
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t row = blockIdx.x, source = p.row_index != nullptr ? p.row_index[row] : row;
  const float* x = p.x + source * p.hidden_size;
  Element* out = p.out + row * p.out_stride;

  float sum = 0.0f;
  if (p.hidden_size % 4 == 0) {
    for (int i = thread * 4; i < p.hidden_size; i += kThreads * 4) {
      const float4 v = *reinterpret_cast<const float4*>(x + i);
      sum = fma_(v.w, v.w, fma_(v.z, v.z, fma_(v.y, v.y, fma_(v.x, v.x, sum))));
    }
  } else {
    for (int four = thread * 4; four < p.hidden_size; four += kThreads * 4) {
      for (int i = four; i < four + 4 && i < p.hidden_size; ++i) sum = fma_(x[i], x[i], sum);
    }
  }
  for (int distance = 16; distance > 0; distance /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, distance);
  if (thread % 32 == 0) warp_sums[thread / 32] = sum;
  __syncthreads();
  sum = warp_sums[0];
  for (int warp = 1; warp < kThreads / 32; ++warp) sum += warp_sums[warp];
  const float inv = 1.0f / sqrtf(sum / static_cast<float>(p.hidden_size) + p.eps);

  for (int i = thread; i < p.out_stride; i += kThreads)
    out[i] = i < p.hidden_size ? to_element(x[i] * inv * p.weight[i]) : Element{};
}

}  // namespace

Status rmsnorm_sm90(const RmsNormParams& p, cudaStream_t stream) {
  if (p.num_rows == 0) return {};
  rmsnorm_kernel<<<static_cast<unsigned>(p.num_rows), kThreads, 0, stream>>>(p);
  return launch_status("rmsnorm");
}

Status load_rmsnorm_sm90() { return load_kernels("rmsnorm", rmsnorm_kernel); }

}  // namespace otr
