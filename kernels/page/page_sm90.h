// Page moves on sm_90a: the contracts of page.h and page_transfer.h over device pointers, launched on `stream`.
//
// Errors: the launch's own (kInternal with CUDA's text). Thread safety: as CUDA streams.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/base/status.h"
#include "kernels/page/page.h"
#include "kernels/page/page_transfer.h"

namespace otr {

Status page_copy_sm90(const PageCopyParams& params, cudaStream_t stream);
Status page_zero_sm90(const PageZeroParams& params, cudaStream_t stream);
// REQUIRES: head_dim is a multiple of 8, at most 256.
Status page_gather_sm90(const PageGatherParams& params, cudaStream_t stream);
Status page_scatter_sm90(const PageScatterParams& params, cudaStream_t stream);

Status load_page_sm90();  // see load_kernels

}  // namespace otr
