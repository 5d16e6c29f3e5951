// linear on sm_90a: the contract of linear.h over device pointers, launched on `stream`; and with silu_mul behind it in one
// launch.
//
// Weight layout: `packed` is row-major [out_features][linear_sm90_stride(in_features)], as checkpoints have it; rows of
// in_features that are a multiple of 8 lie without gaps, so a tied embedding is its lm_head. x needs no zero padding: what lies
// beyond in_features is not read. x_stride is a multiple of 8; x and packed are aligned to 16 bytes.
//
// Arithmetic: a row's output depends on that row, the weight and nothing else: not on how many rows there are or where in the
// batch it stands. One float32 accumulator over steps of 16 inputs ascending, each summed and added by wgmma, inside a split;
// splits added ascending (split_schedule.h); then bias, then residual.
//
// Errors: kInvalidArgument for what the copy engine refuses (alignment); kUnsupported without a driver; kInternal with CUDA's
// text. Thread safety: as CUDA streams.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "kernels/base/status.h"
#include "kernels/linear/linear.h"
#include "kernels/linear/linear_sm90_config.h"
#include "kernels/route/expert_rows.h"

namespace otr {

OTR_HOST_DEVICE constexpr int64_t linear_sm90_stride(int64_t in_features) { return (in_features + 7) / 8 * 8; }

Status linear_sm90(const LinearParams& params, cudaStream_t stream);
// With another config than choose_linear_sm90's for this problem: for measurements. Another number of splits gives other bits.
Status linear_sm90(const LinearParams& params, const LinearSm90Config& config, cudaStream_t stream);

// out[r][i] = Element(g / (1 + exp(-g)) * u), g and u the outputs i and i + out_features / 2 of linear: to the bit what
// the formula gives of linear_sm90's sums, without the float32 [num_rows][out_features] between them: `gated` of linear.h.
// REQUIRES: out_features is a multiple of 16. Columns of out from out_features / 2 on are left alone.
struct LinearSiluMulParams {
  int32_t num_rows;
  LinearWeight weight;  // gate rows, then up rows; bias may be null
  const Element* x;     // [num_rows][x_stride]
  int64_t x_stride;
  Element* out;  // [num_rows][out_stride]
  int64_t out_stride;
};
Status linear_silu_mul_sm90(const LinearSiluMulParams& params, cudaStream_t stream);
Status linear_silu_mul_sm90(const LinearSiluMulParams& params, const LinearSm90Config& config, cudaStream_t stream);

// The same of experts, each for the rows that take it: `out`, or `gated` of gate rows, then up rows. The weights lie
// weight_stride elements apart: a multiple of 8 and of in_features (of a gated weight, of half its elements). A tile has 8, 16,
// 32, 64 or 128 rows.
//
// Arithmetic: as above without splits, whatever the tile: a row's output depends on the row and its expert's weight alone.
Status linear_experts_sm90(const LinearExpertsParams& params, cudaStream_t stream);

// What it and linear_w4_experts_sm90 do not take.
template <typename Weight>
Status check_expert_product(const ExpertProductParams<Weight>& p, int32_t most_tile_rows) {
  if (p.gated != nullptr && p.weight.out_features % 16 != 0)
    return invalid_argument("experts: the intermediate size is not a multiple of 8");
  const int32_t rows = p.tiles.tile_rows;
  if (rows < 8 || rows > most_tile_rows || (rows & (rows - 1)) != 0)
    return invalid_argument("experts: no tile has " + std::to_string(rows) + " rows");
  return {};
}

// What DeviceLimits are on the current device.
Result<DeviceLimits> device_limits_sm90();

Status load_linear_sm90();  // see load_kernels

}  // namespace otr
