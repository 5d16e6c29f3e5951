// linear_w4 and quantize_w4 on sm_90a beyond what the CPU's tests ask of every path: all bytes of a weight, gated or not, and
// what is refused.
#include "kernels/linear_w4/linear_w4_sm90.h"

#include "kernels/quantize_w4/quantize_w4_sm90.h"
#include "tests/cuda/device_buffer.h"
#include "tests/cuda/w4_repack.h"
#include "tests/kernels/w4_test_util.h"

namespace otr::linear_w4_sm90_test {
namespace {

using namespace testing_util;

class LinearW4Sm90 : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string why;
    if (sm90_table(&why) == nullptr) GTEST_SKIP() << why;
  }
};

// Row-major as linear_sm90's weight, NaN in the gaps, at `offset` elements behind an aligned address.
DeviceBuffer<Element> row_major(const std::vector<Element>& w, W4Shape s, size_t offset = 0) {
  const size_t stride = static_cast<size_t>((s.k + 7) / 8 * 8);
  std::vector<Element> rows(offset + static_cast<size_t>(s.n) * stride, nan_element());
  for (size_t n = 0; n < static_cast<size_t>(s.n); ++n)
    std::copy_n(w.begin() + static_cast<std::ptrdiff_t>(n) * s.k, s.k,
                rows.begin() + static_cast<std::ptrdiff_t>(offset + n * stride));
  return DeviceBuffer<Element>(rows);
}

// Every byte, padding included; of gate and up in the order in which the CPU paths' gated weight has them.
TEST_F(LinearW4Sm90, QuantisingWritesTheBytesOfTheDefinition) {
  for (const W4Shape& s : {W4Shape{1, 1}, {15, 129}, {32, 33}, {64, 128}, {80, 257}, {208, 300}, {16, 4864}}) {
    const std::vector<Element> w = random_elements(static_cast<size_t>(s.n) * s.k, 0.05f, 21);
    const DeviceBuffer<Element> weight = row_major(w, s);
    for (const bool paired : {false, true}) {
      if (paired && s.n % 32 != 0) continue;  // what the CPU paths can hold
      std::vector<Element> ordered(w.size());
      for (int64_t n = 0; n < s.n; ++n)
        std::copy_n(w.begin() + n * s.k, s.k, ordered.begin() + (paired ? gated_row(n, s.n) : n) * s.k);
      const std::vector<uint8_t> expected = repack_w4(quantize(*find_path("cpu-scalar"), ordered, s).data(), s.n, s.k, paired);
      const DeviceBuffer<uint8_t> packed(expected.size());
      check_status(quantize_w4_sm90({{s.k, s.n, weight.data(), nullptr}, packed.data()}, paired, nullptr));
      EXPECT_EQ(packed.read(), expected) << s.n << " x " << s.k << (paired ? ", gate and up" : "");
    }
  }
}

TEST_F(LinearW4Sm90, WhatIsNotAlignedIsAnError) {
  const W4Shape s = {48, 128};
  const DeviceBuffer<Element> weight = row_major(random_elements(static_cast<size_t>(s.n) * s.k, 1.0f, 1), s, 1), x(4 * 128),
                              gated(4 * 32);
  const DeviceBuffer<uint8_t> packed(static_cast<size_t>(w4_sm90_packed_bytes(s.n, s.k)) + 16);
  const DeviceBuffer<float> out(4 * 48);
  const auto quantize_code = [&](int n, const Element* from, uint8_t* to, bool paired) {
    return quantize_w4_sm90({{s.k, n, from, nullptr}, to}, paired, nullptr).code();
  };
  EXPECT_EQ(quantize_code(48, weight.data() + 1, packed.data(), false), StatusCode::kInvalidArgument);
  EXPECT_EQ(quantize_code(48, weight.data(), packed.data() + 8, false), StatusCode::kInvalidArgument);
  EXPECT_EQ(quantize_code(40, weight.data(), packed.data(), true), StatusCode::kInvalidArgument);
  EXPECT_EQ(quantize_code(48, weight.data(), packed.data(), true), StatusCode::kOk);
  const auto code = [&](int n, const uint8_t* w, const Element* tokens, Element* to) {
    return linear_w4_sm90({4, {s.k, n, w, nullptr}, tokens, 128, nullptr, out.data(), n, to, 32}, nullptr).code();
  };
  EXPECT_EQ(code(48, packed.data() + 8, x.data(), nullptr), StatusCode::kInvalidArgument);
  EXPECT_EQ(code(48, packed.data(), x.data() + 1, nullptr), StatusCode::kInvalidArgument);
  EXPECT_EQ(code(40, packed.data(), x.data(), gated.data()), StatusCode::kInvalidArgument);
  EXPECT_EQ(code(48, packed.data(), x.data(), gated.data()), StatusCode::kOk);
}

}  // namespace
}  // namespace otr::linear_w4_sm90_test
