// Our own exp and log in float32; elementary64.h has what is done in float64.
//
// libm differs between systems and compilers vectorise it with other roundings, so the exactness contract cannot rest on it.
// exp32 and log32 are templates over the float type F: F = float is the definition; the vector types of kernels/simd and CUDA
// run the same sequence of +, x, fma and integer operations, lane by lane, and give the same bits.
//
// Accuracy (checked in tests/kernels/elementary_test.cpp): exp32 <= 1.02 ulp, log32 <= 0.83 ulp.
// exp32: 0 -> exactly 1; below -87 -> exactly 0 (never a denormal, so flush-to-zero modes cannot matter); above 88.37 -> inf.
// log32: REQUIRES a positive normal argument.
#pragma once

#include <cstdint>

#include "kernels/base/element.h"
#include "kernels/base/macros.h"

namespace otr {

// ---- The operations a float type must offer (float itself here; vectors in kernels/simd) ----------------------------------

OTR_INLINE float fma_(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
OTR_INLINE float broadcast(float, float value) { return value; }
OTR_INLINE float select_less(float a, float b, float yes, float no) { return a < b ? yes : no; }
// 2^n for the integer n that `magic_sum` = n + 1.5 * 2^23 carries in its low mantissa bits; REQUIRES -126 <= n <= 127.
OTR_INLINE float exp2_of_magic(float magic_sum) { return float_from_bits((bits_from_float(magic_sum) + 127u) << 23); }
// Splits x = 2^k (1 + f), sqrt(1/2) <= 1 + f < sqrt(2); returns f, stores k.
OTR_INLINE float split_exponent(float x, float* k) {
  constexpr uint32_t kSqrtHalf = 0x3f3504f3u;
  const uint32_t bits = bits_from_float(x);
  const int32_t e = static_cast<int32_t>(bits - kSqrtHalf) >> 23;
  *k = static_cast<float>(e);
  return float_from_bits(bits - (static_cast<uint32_t>(e) << 23)) - 1.0f;
}

// ---- exp and log --------------------------------------------------------------------------------------------------------

// exp(r) for |r| <= log(2) / 2.
template <typename F>
OTR_INLINE F exp_polynomial(F r) {
  F p = broadcast(r, 1.9875691500e-4f);
  p = fma_(p, r, broadcast(r, 1.3981999507e-3f));
  p = fma_(p, r, broadcast(r, 8.3334519073e-3f));
  p = fma_(p, r, broadcast(r, 4.1665795894e-2f));
  p = fma_(p, r, broadcast(r, 1.6666665459e-1f));
  p = fma_(p, r, broadcast(r, 5.0000001201e-1f));
  return fma_(p, r * r, r) + broadcast(r, 1.0f);
}

template <typename F>
OTR_INLINE F exp32(F x) {
  const F magic = broadcast(x, 12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
  // Keep n in range; the two selects at the end restore the true limits. NaN passes both and propagates through r.
  const F low = broadcast(x, -87.0f), high = broadcast(x, 88.37f);
  F y = select_less(x, low, low, x);
  y = select_less(high, y, high, y);
  const F shifted = fma_(y, broadcast(x, 1.44269504088896341f), magic);
  const F n = shifted - magic;
  F r = fma_(n, broadcast(x, -0.693359375f), y);
  r = fma_(n, broadcast(x, 2.12194440e-4f), r);
  F result = exp_polynomial(r) * exp2_of_magic(shifted);
  result = select_less(x, low, broadcast(x, 0.0f), result);
  return select_less(high, x, broadcast(x, __builtin_inff()), result);
}

// exp32(x) for x <= 0, -inf included, to the bit: without the clamps that only larger arguments and the exponent's range need.
template <typename F>
OTR_INLINE F exp32_not_positive(F x) {
  const F magic = broadcast(x, 12582912.0f);
  const F shifted = fma_(x, broadcast(x, 1.44269504088896341f), magic);
  const F n = shifted - magic;
  F r = fma_(n, broadcast(x, -0.693359375f), x);
  r = fma_(n, broadcast(x, 2.12194440e-4f), r);
  const F p = exp_polynomial(r);
  return select_less(x, broadcast(x, -87.0f), broadcast(x, 0.0f), p * exp2_of_magic(shifted));
}

// log(2^k (1 + f)) for f in [sqrt(1/2) - 1, sqrt(2) - 1]; keeps full relative accuracy as f -> 0 with k = 0 (log1p).
template <typename F>
OTR_INLINE F log_split(F f, F k) {
  F p = broadcast(f, 7.0376836292e-2f);
  p = fma_(p, f, broadcast(f, -1.1514610310e-1f));
  p = fma_(p, f, broadcast(f, 1.1676998740e-1f));
  p = fma_(p, f, broadcast(f, -1.2420140846e-1f));
  p = fma_(p, f, broadcast(f, 1.4249322787e-1f));
  p = fma_(p, f, broadcast(f, -1.6668057665e-1f));
  p = fma_(p, f, broadcast(f, 2.0000714765e-1f));
  p = fma_(p, f, broadcast(f, -2.4999993993e-1f));
  p = fma_(p, f, broadcast(f, 3.3333331174e-1f));
  const F f2 = f * f;
  F y = p * (f2 * f);
  y = fma_(k, broadcast(f, -2.12194440e-4f), y);
  y = fma_(f2, broadcast(f, -0.5f), y);
  return fma_(k, broadcast(f, 0.693359375f), f + y);
}

template <typename F>
OTR_INLINE F log32(F x) {
  F k;
  const F f = split_exponent(x, &k);
  return log_split(f, k);
}

}  // namespace otr
