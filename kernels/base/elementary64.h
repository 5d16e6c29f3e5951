// Our own sin, cos, log and pow in float64, for rotary angles (tables of a few hundred entries a tick) and constants at load.
//
// libm differs between systems, as in elementary.h. Accuracy (checked in tests/kernels/elementary_test.cpp): sin and cos <=
// 2e-16 absolute.
#pragma once

#include <cstdint>

#include "kernels/base/macros.h"

namespace otr {

struct SinCos {
  double sin, cos;
};

// REQUIRES: |angle| < 2^24, as that of the last position of the longest context is. Plain +, x and fma; Taylor polynomials on
// [-pi/4, pi/4].
OTR_INLINE SinCos sincos64(double angle) {
  constexpr double kTwoOverPi = 0.63661977236758134308;
  constexpr double kPiHalfHi = 1.57079632679489655800, kPiHalfLo = 6.12323399573676603587e-17;
  constexpr double kMagic = 6755399441055744.0;  // 1.5 * 2^52
  const double shifted = __builtin_fma(angle, kTwoOverPi, kMagic);
  const double n = shifted - kMagic;
  double r = __builtin_fma(n, -kPiHalfHi, angle);
  r = __builtin_fma(n, -kPiHalfLo, r);
  const double r2 = r * r;
  double s = -1.0 / 1307674368000.0;
  s = __builtin_fma(s, r2, 1.0 / 6227020800.0);
  s = __builtin_fma(s, r2, -1.0 / 39916800.0);
  s = __builtin_fma(s, r2, 1.0 / 362880.0);
  s = __builtin_fma(s, r2, -1.0 / 5040.0);
  s = __builtin_fma(s, r2, 1.0 / 120.0);
  s = __builtin_fma(s, r2, -1.0 / 6.0);
  s = __builtin_fma(s * r2, r, r);
  double c = 1.0 / 20922789888000.0;
  c = __builtin_fma(c, r2, -1.0 / 87178291200.0);
  c = __builtin_fma(c, r2, 1.0 / 479001600.0);
  c = __builtin_fma(c, r2, -1.0 / 3628800.0);
  c = __builtin_fma(c, r2, 1.0 / 40320.0);
  c = __builtin_fma(c, r2, -1.0 / 720.0);
  c = __builtin_fma(c, r2, 1.0 / 24.0);
  c = __builtin_fma(c, r2, -0.5);
  c = __builtin_fma(c, r2, 1.0);
  switch (static_cast<int64_t>(n) & 3) {
    case 0: return {s, c};
    case 1: return {c, -s};
    case 2: return {-s, -c};
    default: return {-c, s};
  }
}

// base^exponent, within 4e-16 (1 + |exponent log(base)|) relative; REQUIRES base > 0, normal, and |exponent log(base)| < 700.
double pow64(double base, double exponent);
// Within 4e-16 relative; REQUIRES x > 0, normal.
double log64(double x);

}  // namespace otr
