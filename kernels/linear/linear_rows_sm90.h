// Weights of linear from the CPU paths' tiles (linear.h), in which checkpoints are packed on their way through the loader, to
// linear_sm90's rows, over device pointers, launched on `stream`.
//
// Errors: the launch's own (kInternal with CUDA's text). Thread safety: as CUDA streams.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/base/status.h"
#include "kernels/linear/linear.h"

namespace otr {

// rows: [weight.out_features][linear_sm90_stride(weight.in_features)], gaps left alone. `in_turns`: the weight has gate and up
// in turns of 16; rows has all gates, then all ups.
Status linear_rows_sm90(const LinearWeight& weight, bool in_turns, Element* rows, cudaStream_t stream);

Status load_linear_rows_sm90();  // see load_kernels

}  // namespace otr
