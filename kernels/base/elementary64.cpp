#include "kernels/base/elementary64.h"

#include <cstring>

namespace otr {

double log64(double x) {
  uint64_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  constexpr uint64_t kSqrtHalf = 0x3fe6a09e667f3bcdULL;
  const int64_t e = static_cast<int64_t>(bits - kSqrtHalf) >> 52;
  bits -= static_cast<uint64_t>(e) << 52;
  double m;
  std::memcpy(&m, &bits, sizeof m);
  // log m = 2 atanh(s), |s| <= 0.1716: the term after s^21 is below 1e-18.
  const double s = (m - 1.0) / (m + 1.0), s2 = s * s;
  double sum = 0.0;
  for (int k = 21; k >= 3; k -= 2) sum = (sum + 1.0 / k) * s2;
  return static_cast<double>(e) * 0.69314718055994530942 + 2.0 * (s + s * sum);
}

double pow64(double base, double exponent) {
  const double x = exponent * log64(base);
  constexpr double kMagic = 6755399441055744.0;
  const double n = __builtin_fma(x, 1.44269504088896340736, kMagic) - kMagic;
  double r = __builtin_fma(n, -0.69314718055994528623, x);
  r = __builtin_fma(n, -2.3190468138462995584e-17, r);
  double sum = 1.0;
  for (int k = 15; k >= 1; --k) sum = __builtin_fma(sum, r / k, 1.0);
  uint64_t bits = static_cast<uint64_t>(static_cast<int64_t>(n) + 1023) << 52;
  double scale;
  std::memcpy(&scale, &bits, sizeof scale);
  return sum * scale;
}

}  // namespace otr
