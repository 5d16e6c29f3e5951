// route, and what stands around the products of experts (expert_rows.h), on sm_90a: over device pointers, launched on `stream`.
//
// route_sm90 has the bits of route.h, and leaves the logits as they are. All sums are one thread's, in the definition's order;
// places follow from counts, which no order of additions changes.
//
// Errors: kUnsupported for more than kMostRoutedExperts experts; the launch's own (kInternal with CUDA's text). Thread safety:
// as CUDA streams.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/base/status.h"
#include "kernels/route/expert_rows.h"
#include "kernels/route/route.h"

namespace otr {

Status route_sm90(const RouteParams& params, cudaStream_t stream);
Status gather_experts_sm90(const GatherExpertsParams& params, cudaStream_t stream);
Status combine_experts_sm90(const CombineExpertsParams& params, cudaStream_t stream);

Status load_route_sm90();  // see load_kernels

}  // namespace otr
