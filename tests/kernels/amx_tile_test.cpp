// The tile instructions against their definition. linear on cpu-amx is nothing but TDPBF16PS over steps of 32 inputs, so that
// comparing its bits with a literal transcription proves software tiles, and on a machine that has them the hardware's too.
#include <cmath>
#include <limits>

#include "kernels/linear/linear.h"
#include "tests/kernels/kernel_test_util.h"

namespace otr::amx_tile_test {
namespace {

using namespace testing_util;

// Denormals are zero (DAZ, FTZ); the sign stays.
float flush(float x) { return std::fabs(x) < std::numeric_limits<float>::min() ? std::copysign(0.0f, x) : x; }
float fma_flushed(float a, float b, float c) { return flush(std::fma(flush(a), flush(b), flush(c))); }
float add_flushed(float a, float b) { return flush(flush(a) + flush(b)); }

// One output of TDPBF16PS (Intel SDM): temp[0] and temp[1] are its even and odd chains.
float tdpbf16ps(float c, const Element* a, const Element* b) {
  float temp[2] = {0.0f, 0.0f};
  for (int k = 0; k < 16; ++k) {
    temp[0] = fma_flushed(to_float(a[2 * k]), to_float(b[2 * k]), temp[0]);
    temp[1] = fma_flushed(to_float(a[2 * k + 1]), to_float(b[2 * k + 1]), temp[1]);
  }
  return add_flushed(c, add_flushed(temp[0], temp[1]));
}

// Rows and outputs of several sizes, three steps of 32 inputs.
void expect_definition(const std::vector<Element>& values) {
  const KernelTable* amx = find_path("cpu-amx");
  ASSERT_NE(amx, nullptr);
  constexpr int kIn = 96, kOut = 144;  // blocks in pairs and single ones
  for (const int rows : {1, 2, 15, 16, 17, 31, 32, 33, 45}) {
    std::mt19937 pick(static_cast<uint32_t>(rows));
    std::vector<Element> w(kOut * kIn);
    for (Element& e : w) e = values[pick() % values.size()];
    GuardedBuffer<Element> x(static_cast<size_t>(rows) * kIn, Guard::kAtEnd);
    for (int i = 0; i < rows * kIn; ++i) x.data()[i] = values[pick() % values.size()];
    GuardedBuffer<Element> packed(linear_packed_elements(kOut, kIn), Guard::kAtEnd);
    pack_linear(w.data(), kOut, kIn, packed.data());

    std::vector<float> expected(static_cast<size_t>(rows) * kOut), actual(expected.size(), 7e33f);
    for (int r = 0; r < rows; ++r) {
      for (int n = 0; n < kOut; ++n) {
        float c = 0.0f;
        for (int k = 0; k < kIn; k += 32) c = tdpbf16ps(c, x.data() + r * kIn + k, w.data() + n * kIn + k);
        expected[static_cast<size_t>(r * kOut + n)] = c;
      }
    }
    ThreadPool pool(1);
    amx->linear({rows, {kIn, kOut, packed.data(), nullptr}, x.data(), kIn, nullptr, actual.data(), kOut}, pool);
    EXPECT_TRUE(same_bits(actual, expected)) << rows << " rows";
  }
}

class AmxTile : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const PathInfo& path : list_paths()) {
      if (std::string(path.table->path) == "cpu-amx" && !path.available) GTEST_SKIP() << path.reason;
    }
  }
};

TEST_F(AmxTile, IsTheDefinitionOnOrdinaryNumbers) { expect_definition(random_elements(4096, 1.0f, 11)); }

TEST_F(AmxTile, IsTheDefinitionOnEveryMagnitude) {
  std::vector<Element> values(4096);
  std::mt19937 bits(12);
  for (Element& e : values) {
    do e = Element{static_cast<uint16_t>(bits())};
    while (!is_finite_bits(to_float(e)));
  }
  expect_definition(values);
}

TEST_F(AmxTile, FlushesDenormalInputsAndResults) {
  std::vector<Element> values;
  std::mt19937 bits(13);
  for (int i = 0; i < 4096; ++i) {  // exponents around sqrt(2^-126): products on both sides of the smallest normal number
    values.push_back(to_element(std::ldexp(static_cast<float>(bits() % 256 + 1), -72 + static_cast<int>(bits() % 8)) *
                                (bits() % 2 != 0 ? 1.0f : -1.0f)));
  }
  for (int i = 0; i < 64; ++i) values.push_back(Element{static_cast<uint16_t>(bits() & 0x807fu)});  // denormals
  expect_definition(values);
}

TEST_F(AmxTile, CarriesInfinityAndNaN) {
  std::vector<Element> values = random_elements(4096, 1.0f, 14);
  values[5] = to_element(std::numeric_limits<float>::infinity());
  values[6] = to_element(-std::numeric_limits<float>::infinity());
  values[7] = nan_element();
  expect_definition(values);
}

}  // namespace
}  // namespace otr::amx_tile_test
