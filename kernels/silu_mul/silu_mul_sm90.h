// silu_mul on sm_90a: the contract of silu_mul.h over device pointers, launched on `stream`; the definition's bits.
//
// Errors: the launch's own (kInternal with CUDA's text). Thread safety: as CUDA streams.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/base/status.h"
#include "kernels/silu_mul/silu_mul.h"

namespace otr {

Status silu_mul_sm90(const SiluMulParams& params, cudaStream_t stream);

}  // namespace otr
