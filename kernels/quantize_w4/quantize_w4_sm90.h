// quantize_w4 on sm_90a: the contract of quantize_w4.h over device pointers, launched on `stream`: scales, zeros and codes have
// the definition's bits. It reads linear_sm90's weight (row-major, linear_sm90_stride) and writes linear_w4_sm90's
// (kernels/layouts/w4_fragments.h), padding included. `paired`: the weight is gate rows, then up rows, and is to be read for
// `gated`.
//
// Errors: kInvalidArgument for a weight that is not aligned to 16 bytes, and for a paired one whose outputs are no multiple of
// 16; else the launch's own (kInternal with CUDA's text). Thread safety: as CUDA streams.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/base/status.h"
#include "kernels/quantize_w4/quantize_w4.h"

namespace otr {

// params.packed: [w4_sm90_packed_bytes], aligned to 16 bytes.
Status quantize_w4_sm90(const QuantizeW4Params& params, bool paired, cudaStream_t stream);

Status load_quantize_w4_sm90();  // see load_kernels

}  // namespace otr
