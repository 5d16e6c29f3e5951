// quantize_w4: the weight of linear in 4 bits: reads it as it lies in memory for linear, writes the layout of linear_w4
// (linear_w4.h), in one pass. Asymmetric round to nearest in groups of 128 inputs of an output. For a group, in float32:
//
//   max, min = the largest and the smallest weight, or 0 if that is larger or smaller   (so the range includes 0)
//   base     = (max / 2 - min / 2) / 7.5, its lowest 4 mantissa bits cleared             (halves, so that it cannot overflow)
//   zero     = round(-min * (1 / base)), 0 … 15                                          (to nearest, ties to even)
//   scale    = base with zero as its lowest 4 bits: what linear_w4 multiplies by
//   q        = round(w * (1 / base) + zero), clamped to 0 … 15                           (the sum rounds, ties to even)
//
// So w = 0 has q = zero and stays exactly 0, padding included, and |w - scale (q - zero)| <= scale (1/2 + 2^-14). A float32
// scale costs 0.125 bits a weight more than a bf16 one, which would be off by up to 2^-9, 0.03 steps at q - zero = 15; sharing
// its word with the zero point makes both one aligned load.
// Groups of zeros, and groups so small that base < 2^-120, become exact zeros: scale word 0, every q 0. A group with a NaN or
// an infinity gets scale word 0x7fc00000 and every q 0: its output is NaN for every row.
//
// Every operation is elementwise and the same on all paths: the bits written are equal on all of them.
// Errors: none. Thread safety: the weight is read only.
#pragma once

#include "kernels/linear_w4/linear_w4.h"

namespace otr {

inline constexpr float kW4SmallestBase = 0x1p-120f;
inline constexpr uint32_t kW4NotFinite = 0x7fc00000u;

struct QuantizeW4Params {
  LinearWeight weight;  // the bias is not read
  uint8_t* packed;      // [w4_cpu_packed_bytes(out_features, in_features)], 64-byte aligned
  bool gated = false;   // to be read for `gated`: of interest where gates and ups do not lie in turns already (on a device)
};

void quantize_w4_scalar(const QuantizeW4Params& params, ThreadPool& pool);
void quantize_w4_avx2(const QuantizeW4Params& params, ThreadPool& pool);
void quantize_w4_avx512(const QuantizeW4Params& params, ThreadPool& pool);

}  // namespace otr
