// Element: the storage type of weights, activations between kernels, and KV pages.
//
// bf16 everywhere, except in the test-only build of the scalar path (OUTRIDER_ELEMENT_F32), which keeps float32 so that it
// can be compared with a float32 reference. Accumulators, logits and the residual stream are float32 in both.
#pragma once

#include <cstdint>

#include "kernels/base/macros.h"

namespace otr {

struct Bf16 {
  uint16_t bits;
};

OTR_INLINE float float_from_bits(uint32_t bits) {
  float f;
  __builtin_memcpy(&f, &bits, sizeof f);
  return f;
}

OTR_INLINE uint32_t bits_from_float(float f) {
  uint32_t bits;
  __builtin_memcpy(&bits, &f, sizeof bits);
  return bits;
}

OTR_INLINE float to_float(Bf16 x) { return float_from_bits(static_cast<uint32_t>(x.bits) << 16); }
OTR_INLINE float to_float(float x) { return x; }

// Round to nearest even; NaN stays NaN (quiet).
OTR_INLINE Bf16 bf16_from_float(float f) {
  const uint32_t bits = bits_from_float(f);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return Bf16{static_cast<uint16_t>((bits >> 16) | 0x0040u)};
  return Bf16{static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
}

#if defined(OUTRIDER_ELEMENT_F32)
using Element = float;
OTR_INLINE Element to_element(float f) { return f; }
#else
using Element = Bf16;
OTR_INLINE Element to_element(float f) { return bf16_from_float(f); }
#endif

OTR_INLINE bool is_finite_bits(float f) { return (bits_from_float(f) & 0x7f800000u) != 0x7f800000u; }

}  // namespace otr
