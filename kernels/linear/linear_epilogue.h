// What linear and linear_w4 do with the finished sums of a block of 32 outputs: bias and residual, or silu(gate) * up.
//
// Where the weight is gate and up, 16 outputs of each in turns (linear.h, gated), a block's first 16 sums are gates and its
// last 16 their ups. The product of the two is rounded once, to Element; sums never go through memory.
#pragma once

#include "kernels/base/elementary.h"
#include "kernels/linear/linear.h"

namespace otr {

// Element(gate / (1 + exp(-gate)) * up); F: float, or a float type of kernels/simd.
template <typename F>
OTR_INLINE F silu_times(F gate, F up) {
  return gate / (broadcast(gate, 1.0f) + exp32(-gate)) * up;
}

// What linear_finish needs to know, of either op's params.
template <typename Params>
OTR_INLINE LinearParams linear_shape(const Params& p) {
  const LinearWeight weight = {p.weight.in_features, p.weight.out_features, nullptr, p.weight.bias};
  return {p.num_rows, weight, p.x, p.x_stride, p.residual, p.out, p.out_stride, p.gated, p.gated_stride};
}

// The definition: sums [32] of one row and block.
OTR_INLINE void linear_finish(const LinearParams& p, int64_t row, int64_t block, const float* sums) {
  const int64_t n0 = block * kLinearBlockN, left = p.weight.out_features - n0;
  if (p.gated != nullptr) {
    Element* out = p.gated + row * p.gated_stride + block * kLinearTileN;
    for (int i = 0; i < kLinearTileN; ++i) out[i] = to_element(silu_times(sums[i], sums[kLinearTileN + i]));
    return;
  }
  for (int lane = 0; lane < (left < kLinearBlockN ? left : kLinearBlockN); ++lane) {
    const float y = p.weight.bias != nullptr ? sums[lane] + p.weight.bias[n0 + lane] : sums[lane];
    const int64_t i = row * p.out_stride + n0 + lane;
    p.out[i] = p.residual != nullptr ? p.residual[i] + y : y;
  }
}

// Its vector form, V: sums of the block's first and last 16 outputs.
template <typename V>
OTR_INLINE void linear_finish_tile(const LinearParams& p, int64_t row, int64_t n0, V sums) {
  const int64_t left = p.weight.out_features - n0;
  if (left <= 0) return;
  const int lanes = left < kLinearTileN ? static_cast<int>(left) : kLinearTileN;
  V y = p.weight.bias != nullptr ? sums + V::load_first(p.weight.bias + n0, lanes) : sums;
  const int64_t i = row * p.out_stride + n0;
  if (p.residual != nullptr) y = V::load_first(p.residual + i, lanes) + y;
  store_first(p.out + i, lanes, y);
}
template <typename V>
OTR_INLINE void linear_finish(const LinearParams& p, int64_t row, int64_t block, V first, V last) {
  if (p.gated != nullptr) {
    store(p.gated + row * p.gated_stride + block * kLinearTileN, silu_times(first, last));
    return;
  }
  linear_finish_tile(p, row, block * kLinearBlockN, first);
  linear_finish_tile(p, row, block * kLinearBlockN + kLinearTileN, last);
}

}  // namespace otr
