#include "kernels/quantize_w4/quantize_w4.h"

#include <cmath>

#include "tests/kernels/w4_test_util.h"

namespace otr::quantize_w4_test {
namespace {

using namespace testing_util;

class QuantizeW4 : public PathTest {};
OTR_TEST_ALL_PATHS(QuantizeW4);

std::vector<Element> random_weights(W4Shape s, float scale, uint32_t seed) {
  return random_elements(static_cast<size_t>(s.n) * s.k, scale, seed);
}

// Every weight is within half a step, zeros stay zero, padding is zero; all of it read through the layout's functions.
void expect_near(const std::vector<uint8_t>& packed, const std::vector<Element>& w, W4Shape s) {
  for (int64_t n = 0; n < linear_padded(s.n); ++n) {
    for (int64_t k = 0; k < linear_padded(s.k); ++k) {
      const bool inside = n < s.n && k < s.k;
      const double weight = inside ? static_cast<double>(to_float(w[static_cast<size_t>(n * s.k + k)])) : 0.0;
      const double scale = static_cast<double>(float_from_bits(w4_word(packed.data(), n, k, s.k)));
      const double value = w4_weight(packed.data(), n, k, s.k);
      if (weight == 0.0) {
        ASSERT_EQ(value, 0.0) << n << " " << k;
      } else {
        ASSERT_LE(std::fabs(value - weight), scale * (0.5 + 0x1p-14)) << n << " " << k;
      }
    }
  }
}

TEST_P(QuantizeW4, EveryWeightIsWithinHalfAStepAndZeroStaysZero) {
  for (const W4Shape& s : kW4Shapes) {
    for (const float scale : {0.02f, 1e30f, 1e-30f}) {
      std::vector<Element> w = random_weights(s, scale, 1);
      std::mt19937 bits(2);
      for (Element& v : w) {
        if (bits() % 8 == 0) v = Element{};
      }
      expect_near(quantize(*kernels, w, s), w, s);
    }
  }
}

TEST_P(QuantizeW4, TheScaleIsAFifteenthOfTheRange) {
  const W4Shape s = {40, 300};
  std::vector<Element> w = random_weights(s, 1.0f, 3);
  for (int k = 0; k < s.k; ++k) {  // output 1 is positive, output 2 negative: the range still includes 0
    for (int n = 1; n <= 2; ++n) {
      Element& v = w[static_cast<size_t>(n * s.k + k)];
      v = to_element(std::fabs(to_float(v)) * (n == 1 ? 1.0f : -1.0f));
    }
  }
  const std::vector<uint8_t> packed = quantize(*kernels, w, s);
  expect_near(packed, w, s);
  for (int64_t n = 0; n < s.n; ++n) {
    for (int64_t first = 0; first < s.k; first += kW4GroupK) {
      double max = 0.0, min = 0.0;
      for (int64_t k = first; k < s.k && k < first + kW4GroupK; ++k) {
        const double v = static_cast<double>(to_float(w[static_cast<size_t>(n * s.k + k)]));
        max = v > max ? v : max;
        min = v < min ? v : min;
      }
      const double scale = static_cast<double>(float_from_bits(w4_word(packed.data(), n, first, s.k)));
      const int zero = w4_zero(packed.data(), n, first, s.k);
      EXPECT_NEAR(scale * 15.0 / (max - min), 1.0, 0x1p-19) << n << " " << first;
      EXPECT_NEAR(zero, -min / scale, 0.5001) << n << " " << first;
      EXPECT_TRUE(n != 1 || zero == 0);
      EXPECT_TRUE(n != 2 || zero == 15);
    }
  }
}

TEST_P(QuantizeW4, RepresentableWeightsComeBackAndStayWhenQuantisedAgain) {
  const W4Shape s = {37, 289};
  std::mt19937 bits(5);
  std::vector<int> q(static_cast<size_t>(s.n) * s.k), zero(static_cast<size_t>(s.n) * 3);
  for (int& z : zero) z = static_cast<int>(bits() % 16);
  std::vector<Element> w(q.size());
  for (int64_t n = 0; n < s.n; ++n) {
    for (int64_t k = 0; k < s.k; ++k) {
      const size_t at = static_cast<size_t>(n * s.k + k);
      q[at] = k % kW4GroupK == 0 ? 0 : k % kW4GroupK == 1 ? 15 : static_cast<int>(bits() % 16);
      w[at] = to_element(0x1p-7f * static_cast<float>(q[at] - zero[static_cast<size_t>(n * 3 + k / kW4GroupK)]));
    }
  }
  const std::vector<uint8_t> packed = quantize(*kernels, w, s);
  std::vector<Element> again(w.size());
  for (int64_t n = 0; n < s.n; ++n) {
    for (int64_t k = 0; k < s.k; ++k) {
      const size_t at = static_cast<size_t>(n * s.k + k);
      const uint32_t z = static_cast<uint32_t>(zero[static_cast<size_t>(n * 3 + k / kW4GroupK)]);
      ASSERT_EQ(w4_word(packed.data(), n, k, s.k), bits_from_float(0x1p-7f) | z) << n << " " << k;
      ASSERT_EQ(w4_nibble(packed.data(), n, k, s.k), q[at]) << n << " " << k;
      again[at] = to_element(static_cast<float>(w4_weight(packed.data(), n, k, s.k)));
    }
  }
  EXPECT_EQ(quantize(*kernels, again, s), packed);
}

TEST_P(QuantizeW4, NonFiniteWeightsSpoilTheirGroupAlone) {
  const W4Shape s = {34, 400};
  const std::vector<Element> clean = random_weights(s, 1.0f, 7);
  const std::vector<uint8_t> expected = quantize(*kernels, clean, s);
  for (const uint32_t bad : {0x7f80u, 0xff80u, 0x7f81u, 0xff81u, 0x7fffu, 0xffffu}) {
    for (const int at : {128, 129, 200, 255}) {
      std::vector<Element> w = clean;
      w[static_cast<size_t>(33 * s.k + at)] = Element{static_cast<uint16_t>(bad)};
      const std::vector<uint8_t> packed = quantize(*kernels, w, s);
      for (int64_t n = 0; n < s.n; ++n) {
        for (int64_t k = 0; k < s.k; ++k) {
          const bool spoilt = n == 33 && k / kW4GroupK == 1;
          ASSERT_EQ(w4_word(packed.data(), n, k, s.k), spoilt ? kW4NotFinite : w4_word(expected.data(), n, k, s.k));
          ASSERT_EQ(w4_nibble(packed.data(), n, k, s.k), spoilt ? 0 : w4_nibble(expected.data(), n, k, s.k));
        }
      }
    }
  }
}

TEST_P(QuantizeW4, GroupsOfZerosAndDenormalsAreExactZeros) {
  const W4Shape s = {33, 260};
  std::vector<Element> w(static_cast<size_t>(s.n) * s.k);
  for (int n = 0; n < s.n; n += 2) {
    for (int k = 128; k < 256; ++k) w[static_cast<size_t>(n * s.k + k)] = to_element(k % 2 == 0 ? 1e-39f : -0x1p-118f);
  }
  EXPECT_EQ(quantize(*kernels, w, s), std::vector<uint8_t>(static_cast<size_t>(w4_cpu_packed_bytes(s.n, s.k)), 0));
  w[140] = to_element(0x1p-116f);  // now the first output's group has a base of 2^-119.6, and no other
  const std::vector<uint8_t> packed = quantize(*kernels, w, s);
  for (int64_t n = 0; n < s.n; ++n) {
    for (int64_t k = 0; k < s.k; k += kW4GroupK) {
      EXPECT_EQ(w4_word(packed.data(), n, k, s.k) != 0, n == 0 && k == 128) << n << " " << k;
    }
  }
}

TEST_P(QuantizeW4, TheLargestWeightsDoNotOverflow) {
  const W4Shape s = {16, 128};
  std::vector<Element> w = random_weights(s, 1e38f, 9);
  for (Element& v : w) {
    if (!is_finite_bits(to_float(v))) v = Element{};
  }
  w[0] = to_element(float_from_bits(0x7f7f0000u));
  w[1] = to_element(float_from_bits(0xff7f0000u));
  expect_near(quantize(*kernels, w, s), w, s);
}

TEST_P(QuantizeW4, ThreadsAndGuardsDoNotMatter) {
  for (const W4Shape& s : kW4Shapes) {
    const std::vector<Element> w = random_weights(s, 0.1f, 11);
    const std::vector<uint8_t> packed = quantize(*kernels, w, s);
    EXPECT_EQ(quantize(*kernels, w, s, Guard::kAtStart, 2), packed) << s.n << " x " << s.k;
    EXPECT_EQ(quantize(*kernels, w, s, Guard::kAtEnd, 3), packed) << s.n << " x " << s.k;
  }
}

class QuantizeW4Bits : public PathTest {};
OTR_TEST_VECTOR_PATHS(QuantizeW4Bits);

TEST_P(QuantizeW4Bits, AreTheScalarDefinitions) {
  const KernelTable& scalar = *find_path("cpu-scalar");
  for (const W4Shape& s : kW4Shapes) {
    std::mt19937 bits(13);
    std::vector<Element> any(static_cast<size_t>(s.n) * s.k);  // every bit pattern: nearly every long group has a NaN
    for (Element& v : any) v = Element{static_cast<uint16_t>(bits())};
    EXPECT_EQ(quantize(*kernels, any, s), quantize(scalar, any, s)) << s.n << " x " << s.k;
    for (Element& v : any) {  // all finite, every magnitude
      if (!is_finite_bits(to_float(v))) v = Element{};
    }
    EXPECT_EQ(quantize(*kernels, any, s), quantize(scalar, any, s)) << s.n << " x " << s.k;
    for (Element& v : any) v = to_element(0.5f * static_cast<float>(static_cast<int>(bits() % 31) - 15));  // many ties
    EXPECT_EQ(quantize(*kernels, any, s), quantize(scalar, any, s)) << s.n << " x " << s.k;
    for (const float scale : {1e-38f, 1e-35f, 0.02f, 1e37f}) {
      const std::vector<Element> w = random_weights(s, scale, 17);
      EXPECT_EQ(quantize(*kernels, w, s), quantize(scalar, w, s)) << s.n << " x " << s.k << " of " << scale;
    }
  }
}

}  // namespace
}  // namespace otr::quantize_w4_test
