// embed on sm_90a: the contract of embed.h over device pointers and a row-major table, launched on `stream`.
//
// Errors: kUnsupported for a packed embedding, whose layout is the CPU's; the launch's own (kInternal with CUDA's text).
// Thread safety: as CUDA streams.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/base/status.h"
#include "kernels/embed/embed.h"

namespace otr {

Status embed_sm90(const EmbedParams& params, cudaStream_t stream);

}  // namespace otr
