// rmsnorm on sm_90a: the contract of rmsnorm.h over device pointers, launched on `stream`.
//
// Sum of squares: 256 chains of fma, thread t taking fours of elements 4 t … 4 t + 3, then every 1,024th four after it; then
// the lanes of a warp by halves of their distance (16, 8, 4, 2, 1), then the warps ascending. Never of the number of rows.
// Errors: the launch's own (kInternal with CUDA's text). Thread safety: as CUDA streams.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/base/status.h"
#include "kernels/rmsnorm/rmsnorm.h"

namespace otr {

Status rmsnorm_sm90(const RmsNormParams& params, cudaStream_t stream);

Status load_rmsnorm_sm90();  // see load_kernels

}  // namespace otr
