// rope_append on sm_90a: the contracts of rope_append.h over device pointers, launched on `stream`. RowBatch itself is read on
// the host; its arrays are the device's.
//
// The per-head norm's sum of squares: lane i of a warp takes elements i, i + 32, … in one chain of fma, then lanes are added by
// halves of their distance (16, 8, 4, 2, 1). The rest is the definition's, to the bit. Errors: the launch's own (kInternal with
// CUDA's text). Thread safety: as CUDA streams.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/base/status.h"
#include "kernels/rope_append/rope_append.h"

namespace otr {

Status rope_table_sm90(const RopeTableParams& params, cudaStream_t stream);
Status rope_append_sm90(const RopeAppendParams& params, cudaStream_t stream);

Status load_rope_append_sm90();  // see load_kernels

}  // namespace otr
