// linear_w4 on sm_90a: the contract of linear_w4.h over device pointers, launched on `stream`.
//
// Weight layout: kernels/layouts/w4_fragments.h; quantize_w4_sm90 writes it. A weight that is read for `gated` is packed
// `paired`: its bias is not read. x needs no zero padding: what lies beyond in_features is not read. x_stride is a multiple of
// 8; x is aligned to 16 bytes, packed to 128.
//
// Two forms: narrow, up to kW4NarrowRows rows, reads weights into registers for mma; wide, above, expands them in shared memory
// for wgmma. Only drafts depend on these sums, so the forms may differ in their bits.
//
// Reduction order: a function of the weight's shape and the form. Narrow: groups g of equal g mod S (S = w4_sm90_splits)
// ascending, one float32 fma each, from 0; then splits ascending; then bias, then residual. Inside a group 8 steps of
// mma.m16n8k16 on inputs {0 … 3, 8 … 11, 16 … 19, 24 … 27} and their upper neighbours (+ 4) of 32 inputs, ascending. Wide: the
// same with splits of S ranges of groups (w4_wide_splits), and 8 steps of 16 inputs ascending in a group.
//
// Errors: kInvalidArgument for what the copy engine refuses (alignment) and for a gated weight whose outputs are no multiple of
// 16; kUnsupported without a driver; kInternal with CUDA's text. Thread safety: as CUDA streams.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/base/status.h"
#include "kernels/linear_w4/linear_w4.h"
#include "kernels/linear_w4/linear_w4_sm90_config.h"
#include "kernels/linear_w4/linear_w4_wide_sm90_config.h"
#include "kernels/route/expert_rows.h"

namespace otr {

// packed: [w4_sm90_packed_bytes].
Status linear_w4_sm90(const LinearW4Params& params, cudaStream_t stream);
// One form, whatever the rows: for measurements.
Status linear_w4_narrow_sm90(const LinearW4Params& params, cudaStream_t stream);
Status linear_w4_wide_sm90(const LinearW4Params& params, cudaStream_t stream);

// The same of experts, each for the rows that take it, in the narrow form, with 8 splits whatever the weight: expert weights
// are packed weight_stride bytes apart, a multiple of 16. A tile has 8, 16 or 32 rows.
Status linear_w4_experts_sm90(const LinearW4ExpertsParams& params, cudaStream_t stream);

// What neither form takes: see Errors.
inline Status check_linear_w4_sm90(const LinearW4Params& p) {
  if (p.gated != nullptr && p.weight.out_features % 16 != 0)
    return invalid_argument("linear_w4: the intermediate size is not a multiple of 8");
  if (reinterpret_cast<uintptr_t>(p.weight.packed) % 16 != 0)
    return invalid_argument("linear_w4: the weight is not aligned to 16 bytes");
  return {};
}

Status load_linear_w4_sm90();  // both forms: see load_kernels
Status load_linear_w4_wide_sm90();

}  // namespace otr
