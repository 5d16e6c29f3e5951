// Page moves on sm_90a: the contracts of page.h over device pointers, launched on `stream`.
//
// Errors: the launch's own (kInternal with CUDA's text). Thread safety: as CUDA streams.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/base/status.h"
#include "kernels/page/page.h"

namespace otr {

Status page_copy_sm90(const PageCopyParams& params, cudaStream_t stream);
Status page_zero_sm90(const PageZeroParams& params, cudaStream_t stream);

}  // namespace otr
