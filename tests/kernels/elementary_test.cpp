// Our exp, log, sin, cos and pow against libm in float64, and the rounding to bf16.
#include "kernels/base/elementary.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/base/elementary64.h"

namespace otr::elementary_test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// |actual - expected| in units in the last place of the float32 nearest to `expected`.
double ulps(float actual, double expected) {
  int exponent;
  std::frexp(static_cast<float>(expected), &exponent);
  return std::abs(static_cast<double>(actual) - expected) / std::ldexp(1.0, exponent - 24);
}

TEST(Exp32, IsWithinItsClaim) {
  double worst = 0.0;
  for (double x = -87.0; x <= 88.37; x += 7.3e-5) {
    worst = std::max(worst, ulps(exp32(static_cast<float>(x)), std::exp(static_cast<double>(static_cast<float>(x)))));
  }
  EXPECT_LE(worst, 1.02);
  EXPECT_GT(worst, 0.5);  // the measure itself sees rounding
}

TEST(Exp32, SmallArgumentsGiveOne) {
  EXPECT_EQ(exp32(0.0f), 1.0f);
  EXPECT_EQ(exp32(-0.0f), 1.0f);
  EXPECT_EQ(exp32(1e-30f), 1.0f);
  EXPECT_EQ(exp32(-std::numeric_limits<float>::denorm_min()), 1.0f);
}

TEST(Exp32, LimitsAreExact) {
  EXPECT_EQ(exp32(-kInf), 0.0f);
  EXPECT_EQ(exp32(kInf), kInf);
  EXPECT_TRUE(std::isnan(exp32(kNaN)));
  EXPECT_GE(exp32(-87.0f), std::numeric_limits<float>::min());
  EXPECT_EQ(exp32(std::nextafter(-87.0f, -kInf)), 0.0f);
  EXPECT_EQ(exp32(-1e38f), 0.0f);
  EXPECT_LT(exp32(88.37f), kInf);
  EXPECT_EQ(exp32(std::nextafter(88.37f, kInf)), kInf);
  EXPECT_EQ(exp32(1e38f), kInf);
}

TEST(Exp32, HasAShorterFormForArgumentsThatAreNotPositive) {
  for (uint32_t bits = 0x80000000u; bits <= 0xff800000u; bits += 1009) {
    ASSERT_EQ(bits_from_float(exp32_not_positive(float_from_bits(bits))), bits_from_float(exp32(float_from_bits(bits))))
        << bits;
  }
  for (const float x : {0.0f, -87.0f, std::nextafter(-87.0f, -kInf), -kInf, -1e38f})
    EXPECT_EQ(bits_from_float(exp32_not_positive(x)), bits_from_float(exp32(x))) << x;
}

TEST(Log32, IsWithinItsClaim) {
  double worst = 0.0;
  for (uint32_t bits = 0x00800000u; bits < 0x7f800000u; bits += 1009) {  // every exponent
    const float x = float_from_bits(bits);
    worst = std::max(worst, ulps(log32(x), std::log(static_cast<double>(x))));
  }
  for (uint32_t bits = 0x3f300000u; bits < 0x3fc00000u; bits += 17) {  // around 1, where it passes through 0
    const float x = float_from_bits(bits);
    worst = std::max(worst, ulps(log32(x), std::log(static_cast<double>(x))));
  }
  EXPECT_LE(worst, 0.83);
  EXPECT_GT(worst, 0.5);
  EXPECT_EQ(log32(1.0f), 0.0f);
}

TEST(LogSplit, KeepsRelativeAccuracyNextToZero) {
  for (int e = -33; e <= -2; ++e) {
    for (const float sign : {-1.0f, 1.0f}) {
      const float f = sign * std::ldexp(1.0f, e);
      const double expected = std::log1p(static_cast<double>(f));
      EXPECT_NEAR(log_split(f, 0.0f) / expected, 1.0, 1.2e-7) << f;
    }
  }
}

TEST(SinCos64, IsWithinItsClaimUpToItsBound) {
  long double worst = 0.0L;
  for (double angle = -16777215.0; angle < 16777216.0; angle += 97.310585786) {
    const SinCos sc = sincos64(angle);
    const long double a = angle;
    worst = std::max({worst, std::abs(sc.sin - std::sin(a)), std::abs(sc.cos - std::cos(a))});
  }
  for (double angle = -7.0; angle < 7.0; angle += 1.234e-4) {
    const SinCos sc = sincos64(angle);
    const long double a = angle;
    worst = std::max({worst, std::abs(sc.sin - std::sin(a)), std::abs(sc.cos - std::cos(a))});
  }
  EXPECT_LE(worst, 2e-16L);
  EXPECT_EQ(sincos64(0.0).sin, 0.0);
  EXPECT_EQ(sincos64(0.0).cos, 1.0);
}

TEST(Log64, IsWithinItsClaim) {
  long double worst = 0.0L;
  for (double x = 1e-300; x < 1e300; x *= 1.0123)
    worst = std::max(worst, std::abs(log64(x) / std::log(static_cast<long double>(x)) - 1));
  for (double x = 0.5; x < 2.0; x += 1.2345e-5) {
    worst = std::max(worst, std::abs(log64(x) / std::log(static_cast<long double>(x)) - 1));
  }
  EXPECT_LE(worst, 4e-16L);
  EXPECT_EQ(log64(1.0), 0.0);
}

TEST(Pow64, IsWithinItsClaim) {
  long double worst = 0.0L;
  for (double base = 0.001; base < 1e7; base *= 1.37) {
    for (double exponent = -30.0; exponent < 30.0; exponent += 0.37) {
      const double magnitude = std::abs(exponent * std::log(base));
      if (magnitude >= 690.0) continue;
      const long double expected = std::pow(static_cast<long double>(base), static_cast<long double>(exponent));
      worst = std::max(worst, std::abs(pow64(base, exponent) / expected - 1) / (1 + magnitude));
    }
  }
  EXPECT_LE(worst, 4e-16L);
  EXPECT_EQ(pow64(10000.0, 0.0), 1.0);
}

TEST(Bf16, RoundsToNearestEven) {
  const auto round = [](uint32_t bits) { return bf16_from_float(float_from_bits(bits)).bits; };
  EXPECT_EQ(round(0x3f800000u), 0x3f80u);
  EXPECT_EQ(round(0x3f808000u), 0x3f80u);  // tie, down to even
  EXPECT_EQ(round(0x3f818000u), 0x3f82u);  // tie, up to even
  EXPECT_EQ(round(0x3f808001u), 0x3f81u);
  EXPECT_EQ(round(0xbf807fffu), 0xbf80u);
  EXPECT_EQ(round(0x00010000u), 0x0001u);  // denormals stay
  EXPECT_EQ(round(0x80000000u), 0x8000u);
  EXPECT_EQ(round(0x7f7f7fffu), 0x7f7fu);  // largest that stays finite
  EXPECT_EQ(round(0x7f7f8000u), 0x7f80u);
  EXPECT_EQ(round(0xff800000u), 0xff80u);
}

TEST(Bf16, NaNStaysNaN) {
  for (const uint32_t bits : {0x7f800001u, 0x7fffffffu, 0xff80ffffu, 0x7fc00000u}) {
    EXPECT_TRUE(std::isnan(to_float(bf16_from_float(float_from_bits(bits))))) << std::hex << bits;
  }
}

}  // namespace
}  // namespace otr::elementary_test
