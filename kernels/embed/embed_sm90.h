// embed on sm_90a: the contract of embed.h over device pointers, launched on `stream`. `packed` is the layout that linear has
// on sm_90a (linear_sm90.h): a tied lm_head.
//
// Errors: the launch's own (kInternal with CUDA's text). Thread safety: as CUDA streams.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/base/status.h"
#include "kernels/embed/embed.h"

namespace otr {

Status embed_sm90(const EmbedParams& params, cudaStream_t stream);

Status load_embed_sm90();  // see load_kernels

}  // namespace otr
