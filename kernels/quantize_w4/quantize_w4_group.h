// The arithmetic of quantize_w4.h for one group and one weight: the definition, and what a GPU's thread runs.
#pragma once

#include "kernels/quantize_w4/quantize_w4.h"

namespace otr {

inline constexpr float kW4Magic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer, in the lowest mantissa bits

struct W4Scale {
  uint32_t word;
  float inverse;  // 0: every q is 0
  float magic_and_zero;
};

// REQUIRES: max >= 0 >= min, of the group's weights and 0, if all are finite.
OTR_INLINE W4Scale w4_scale(float max, float min, bool finite) {
  if (!finite) return {kW4NotFinite, 0.0f, kW4Magic};
  const float base = (max * 0.5f - min * 0.5f) / 7.5f;
  if (base < kW4SmallestBase) return {0, 0.0f, kW4Magic};
  const uint32_t cleared = bits_from_float(base) & ~kW4ZeroPointMask;
  const float inverse = 1.0f / float_from_bits(cleared);
  float zero = -min * inverse + kW4Magic;
  if (zero > kW4Magic + 15.0f) zero = kW4Magic + 15.0f;
  return {cleared | (bits_from_float(zero) & kW4ZeroPointMask), inverse, zero};
}

OTR_INLINE uint32_t w4_quantize(float w, const W4Scale& scale) {
  if (scale.inverse == 0.0f) return 0;
  const float q = w * scale.inverse + scale.magic_and_zero;
  if (q < kW4Magic) return 0;
  return q > kW4Magic + 15.0f ? 15 : bits_from_float(q) & 0xf;
}

}  // namespace otr
