// Philox against the Random123 known answers; the noise's layout, range, accuracy and moments.
#include "kernels/base/noise.h"

#include <gtest/gtest.h>

#include <cmath>

namespace otr::noise_test {
namespace {

void expect_philox(PhiloxBlock counter, PhiloxKey key, PhiloxBlock expected) {
  const PhiloxBlock actual = philox4x32(key, counter);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(actual.w[i], expected.w[i]) << "word " << i;
}

TEST(Philox, GivesTheKnownAnswers) {
  constexpr uint32_t kOnes = 0xffffffffu;
  expect_philox({{0, 0, 0, 0}}, {0, 0}, {{0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u}});
  expect_philox({{kOnes, kOnes, kOnes, kOnes}}, {kOnes, kOnes}, {{0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu}});
  expect_philox({{0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u}}, {0xa4093822u, 0x299f31d0u},
                {{0xd16cfe09u, 0x94fdccebu, 0x5001e420u, 0x24126ea1u}});
}

TEST(Noise, FollowsItsCounterLayout) {
  const NoiseKey key{0x0123456789abcdefULL, 0xfedcba9876543210ULL, 7};
  const PhiloxBlock r =
      philox4x32(PhiloxKey{0x89abcdefu, 0x01234567u}, PhiloxBlock{{0x76543210u, 0xfedcba98u, 7, 0x6f747231u}});
  for (const uint32_t token : {0u, 1u, 6u, 151935u}) {
    const PhiloxBlock words = philox4x32(PhiloxKey{r.w[0], r.w[1]}, PhiloxBlock{{token / 4, 42, r.w[2], r.w[3]}});
    EXPECT_EQ(gumbel(noise_stream(key), token, 42), gumbel_from_word(words.w[token % 4])) << token;
  }
}

TEST(Noise, EveryPartOfTheKeyMatters) {
  const NoiseKey base{1, 2, 3};
  const float g = gumbel(noise_stream(base), 5, 9);
  for (const NoiseKey& other : {NoiseKey{2, 2, 3}, NoiseKey{1 + (1ULL << 32), 2, 3}, NoiseKey{1, 3, 3},
                                NoiseKey{1, 2 + (1ULL << 32), 3}, NoiseKey{1, 2, 4}}) {
    EXPECT_NE(gumbel(noise_stream(other), 5, 9), g);
  }
  EXPECT_NE(gumbel(noise_stream(base), 5, 10), g);
  EXPECT_NE(gumbel(noise_stream(base), 4, 9), g);
  EXPECT_NE(gumbel(noise_stream(base), 9, 9), g);
}

double exact_gumbel(uint32_t word) {
  const double u = (word + 0.5) / 4294967296.0, rest = (~word + 0.5) / 4294967296.0;
  return -std::log(u < 0.5 ? -std::log(u) : -std::log1p(-rest));
}

TEST(Gumbel, HasItsRange) {
  EXPECT_NEAR(gumbel_from_word(0xffffffffu), 33.0 * std::log(2.0), 2e-6);  // 22.874
  EXPECT_NEAR(gumbel_from_word(0u), -std::log(33.0 * std::log(2.0)), 1e-6);
}

TEST(Gumbel, IsAccurateIncludingBothTails) {
  double worst = 0.0;
  const auto check = [&](uint32_t word) { worst = std::max(worst, std::abs(gumbel_from_word(word) - exact_gumbel(word))); };
  for (uint32_t i = 0; i < 20000; ++i) {
    check(i);
    check(~i);
    check(kNoiseUpper - 10000 + i);
    check(i * 214741u);
  }
  for (int bit = 0; bit < 32; ++bit) check(1u << bit), check(~(1u << bit));
  EXPECT_LE(worst, 1.1e-6);  // half an ulp of 22 is 0.95e-6
}

TEST(Gumbel, IsMonotoneInTheWord) {
  const auto check = [](uint32_t first, uint32_t step, int count) {
    for (int i = 1; i < count; ++i) {
      const uint32_t word = first + static_cast<uint32_t>(i) * step;
      ASSERT_LE(gumbel_from_word(word - step), gumbel_from_word(word)) << std::hex << word;
    }
  };
  check(0, 1, 20000);
  check(kNoiseUpper - 10000, 1, 20000);
  check(0xffffffffu - 20000, 1, 20001);
  check(0, 65521, 65000);
}

// Words spread evenly over the unit interval integrate G: the mean is Euler's constant and the variance pi^2 / 6.
TEST(Gumbel, HasItsMoments) {
  constexpr int kCount = 1 << 18;
  double sum = 0.0, squares = 0.0;
  for (uint32_t i = 0; i < kCount; ++i) {
    const double g = gumbel_from_word(i * (0xffffffffu / kCount + 1) + 8192);
    sum += g;
    squares += g * g;
  }
  const double mean = sum / kCount;
  EXPECT_NEAR(mean, 0.57721566, 1e-4);
  EXPECT_NEAR(squares / kCount - mean * mean, 1.64493407, 2e-3);
}

}  // namespace
}  // namespace otr::noise_test
