// What linear and linear_w4 share on sm_90a: the tiles of experts, and what they do with four finished sums of a thread, which
// lie as wgmma's and mma's results do: outputs n and n + 8 (0, 1 and 2, 3) of tokens r and r + 1. Eight lanes share a 32-byte
// sector.
#pragma once

#include "kernels/base/elementary.h"
#include "kernels/linear/linear_sm90_config.h"
#include "kernels/route/expert_rows.h"

namespace otr {

enum class LinearEpilogue { kLinear, kSiluMul };

struct LinearOutput {
  int32_t num_rows, out_features;
  const float* bias;      // [out_features], may be null
  const float* residual;  // [num_rows][out_stride], may be null
  void* out;              // [num_rows][out_stride] of float, or of Element behind silu_mul
  int64_t out_stride;
};

// What a block makes: of outputs that column m of tiles has, tokens first_row … end_row - 1; of experts, with whose weights.
struct OutputTile {
  int32_t m, first_row, end_row, expert;
};
OTR_DEVICE OutputTile expert_tile_at(const ExpertTiles& tiles, int32_t columns_m, int32_t index) {
  const ExpertTile rows = tiles.list[index / columns_m];
  return {index % columns_m, rows.first_row, rows.end_row, rows.expert};
}

// Bias, residual and store.
OTR_DEVICE void store_linear(const LinearOutput& p, int32_t n, int32_t r, const float* d) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int32_t out = n + i / 2 * 8, row = r + i % 2;
    if (out >= p.out_features || row >= p.num_rows) continue;
    const float y = p.bias != nullptr ? d[i] + p.bias[out] : d[i];
    const int64_t at = row * p.out_stride + out;
    static_cast<float*>(p.out)[at] = p.residual != nullptr ? p.residual[at] + y : y;
  }
}

// The same where sums 0, 1 are gates and 2, 3 the ups beside them: output n of half of out_features.
OTR_DEVICE void store_silu_mul(const LinearOutput& p, int32_t n, int32_t r, const float* d) {
  const int32_t half = p.out_features / 2;
  if (n >= half) return;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (r + i >= p.num_rows) continue;
    const float gate = p.bias != nullptr ? d[i] + p.bias[n] : d[i],
                up = p.bias != nullptr ? d[i + 2] + p.bias[half + n] : d[i + 2];
    static_cast<Element*>(p.out)[(r + i) * p.out_stride + n] = to_element(gate / (1.0f + exp32(-gate)) * up);
  }
}

// Row m of the tile that begins at row tile_m_begin of the weight, and m + 8.
template <LinearEpilogue kEpilogue>
OTR_DEVICE void store_outputs(const LinearOutput& p, int32_t tile_m_begin, int32_t m, int32_t r, const float* d) {
  if constexpr (kEpilogue == LinearEpilogue::kSiluMul) {
    store_silu_mul(p, linear_paired_output(tile_m_begin, m), r, d);
  } else {
    store_linear(p, tile_m_begin + m, r, d);
  }
}

}  // namespace otr
