// Products with the weights of several experts on sm_90a: each row has the bits that linear gives of its expert's weight alone,
// whatever tiles rows share and however they are dealt out.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "kernels/linear/linear_sm90.h"
#include "kernels/linear_w4/linear_w4_sm90.h"
#include "tests/cuda/device_buffer.h"
#include "tests/cuda/w4_repack.h"
#include "tests/kernels/w4_test_util.h"

namespace otr::experts_sm90_test {
namespace {

using namespace testing_util;

class ExpertsSm90 : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string why;
    if (sm90_table(&why) == nullptr) GTEST_SKIP() << why;
  }
};

// A multiplication is of rows by expert: counts[e] rows of expert e, ascending.
std::vector<ExpertTile> tiles_of(const std::vector<int32_t>& counts, int32_t tile_rows) {
  std::vector<ExpertTile> tiles;
  int32_t begin = 0;
  for (size_t e = 0; e < counts.size(); begin += counts[e++]) {
    for (int32_t first = begin; first < begin + counts[e]; first += tile_rows)
      tiles.push_back({static_cast<int32_t>(e), first, std::min(first + tile_rows, begin + counts[e])});
  }
  return tiles;
}

constexpr int32_t kIn = 200, kHalf = 48, kOut = 2 * kHalf, kXStride = 256;
constexpr int32_t kNobody = -1;

// Experts whose weights lie as a model's do, with other data between them, and rows by expert. NaN wherever nobody must look.
struct Operands {
  std::vector<int32_t> counts;
  int32_t rows = 0;
  int64_t stride = 3 * kHalf * kIn;
  std::vector<Element> w, x;
  DeviceBuffer<Element> device_w, device_x;
  std::vector<uint8_t> w4;
  int64_t w4_stride = (w4_sm90_packed_bytes(kOut, kIn) + 127) / 128 * 128 + 256;

  explicit Operands(const std::vector<int32_t>& rows_of, int32_t nan_row = kNobody)
      : counts(rows_of),
        rows(std::accumulate(counts.begin(), counts.end(), 0)),
        w(weights()),
        x(tokens(nan_row)),
        device_w(w),
        device_x(x) {}

  std::vector<Element> weights() const {
    std::vector<Element> all(static_cast<size_t>(stride) * counts.size(), nan_element());
    for (size_t e = 0; e < counts.size(); ++e) {
      const std::vector<Element> one = random_elements(kOut * kIn, 0.3f, static_cast<uint32_t>(10 + e));
      if (counts[e] > 0) std::copy(one.begin(), one.end(), all.begin() + static_cast<std::ptrdiff_t>(e) * stride);
    }
    return all;
  }
  std::vector<Element> tokens(int32_t nan_row) const {
    std::vector<Element> all = random_elements(static_cast<size_t>(rows * kXStride), 1.0f, 2);
    for (int32_t i = 0; i < rows * kXStride; ++i) {
      if (i % kXStride >= kIn || i / kXStride == nan_row) all[static_cast<size_t>(i)] = nan_element();
    }
    return all;
  }
  const Element* expert(size_t e) const { return device_w.data() + static_cast<int64_t>(e) * stride; }
};

// Bits of a row's outputs, of all rows one after the other; what nobody writes stays 0x7f7f….
template <typename Launch>
std::vector<uint32_t> launch_all(const Operands& o, const std::vector<ExpertTile>& tiles, int32_t tile_rows, bool gated,
                                 const Launch& launch) {
  const DeviceBuffer<float> out(static_cast<size_t>(o.rows * kOut));
  const DeviceBuffer<Element> activated(static_cast<size_t>(o.rows * kXStride));
  std::vector<ExpertTile> room = tiles;
  room.push_back({0, 0, 1});  // beyond the count: nobody's work
  const DeviceBuffer<ExpertTile> list(room);
  const DeviceBuffer<int32_t> count(std::vector<int32_t>{static_cast<int32_t>(tiles.size())});
  launch(ExpertTiles{list.data(), count.data(), static_cast<int32_t>(room.size()), tile_rows}, out.data(),
         gated ? activated.data() : nullptr);
  wait_for(side_stream());
  std::vector<uint32_t> bits;
  if (gated) {
    for (const Element e : activated.read()) bits.push_back(bits_of(e));
  } else {
    for (const float f : out.read()) bits.push_back(bits_of(f));
  }
  return bits;
}

std::vector<uint32_t> multiply(const Operands& o, const std::vector<ExpertTile>& tiles, int32_t tile_rows, bool gated) {
  return launch_all(o, tiles, tile_rows, gated, [&](const ExpertTiles& list, float* out, Element* activated) {
    check_status(linear_experts_sm90({static_cast<int32_t>(o.counts.size()),
                                      {kIn, kOut, o.device_w.data(), nullptr},
                                      o.stride,
                                      o.rows,
                                      o.device_x.data(),
                                      kXStride,
                                      out,
                                      activated,
                                      kXStride,
                                      list},
                                     side_stream()));
  });
}

// By the ordinary product, an expert after the other.
std::vector<uint32_t> multiply_one_by_one(const Operands& o, bool gated) {
  const LinearSm90Config config = choose_linear_sm90({8, kOut, kIn, gated}, device_limits_sm90().value(), 1);
  return launch_all(o, {}, 8, gated, [&](const ExpertTiles&, float* out, Element* activated) {
    int32_t first = 0;
    for (size_t e = 0; e < o.counts.size(); first += o.counts[e++]) {
      for (int32_t row = first; row < first + o.counts[e]; row += 8) {
        const int32_t rows = std::min(8, first + o.counts[e] - row);
        const LinearWeight weight = {kIn, kOut, o.expert(e), nullptr};
        const Element* x = o.device_x.data() + row * kXStride;
        check_status(gated ? linear_silu_mul_sm90({rows, weight, x, kXStride, activated + row * kXStride, kXStride}, config,
                                                  side_stream())
                           : linear_sm90({rows, weight, x, kXStride, nullptr, out + row * kOut, kOut}, config, side_stream()));
      }
    }
  });
}

// All on one, none on some, uneven.
const std::vector<std::vector<int32_t>> kCounts = {{1}, {0, 0, 37, 0}, {3, 0, 30, 1, 9}, {0, 1, 0, 1, 1, 0}};

TEST_F(ExpertsSm90, EveryRowHasTheBitsOfItsExpertsOwnProduct) {
  for (const std::vector<int32_t>& counts : kCounts) {
    const Operands o(counts);
    for (const bool gated : {false, true}) {
      const std::vector<uint32_t> expected = multiply_one_by_one(o, gated);
      for (const int32_t tile_rows : {8, 16, 32, 64, 128})
        EXPECT_EQ(multiply(o, tiles_of(counts, tile_rows), tile_rows, gated), expected)
            << counts.size() << " experts, tiles of " << tile_rows << (gated ? ", gated" : "");
    }
  }
}

// Rows alone, in tiles of their own, in another order: the same bits, and nothing is written but theirs.
TEST_F(ExpertsSm90, ARowIsTheSameAloneAndAmongOthers) {
  const Operands o({3, 0, 21, 1, 2});
  for (const bool gated : {false, true}) {
    const std::vector<uint32_t> all = multiply(o, tiles_of(o.counts, 32), 32, gated);
    const size_t width = all.size() / static_cast<size_t>(o.rows);
    std::vector<ExpertTile> alone = tiles_of(o.counts, 1);
    for (const int32_t tile_rows : {8, 128}) {
      std::reverse(alone.begin(), alone.end());
      EXPECT_EQ(multiply(o, alone, tile_rows, gated), all) << tile_rows;
      const std::vector<uint32_t> one = multiply(o, {alone[5]}, tile_rows, gated);
      for (size_t i = 0; i < one.size(); ++i) {
        const bool mine = static_cast<int32_t>(i / width) == alone[5].first_row;
        ASSERT_EQ(one[i], mine ? all[i] : gated ? 0x7f7fu : 0x7f7f7f7fu) << i;
      }
    }
  }
}

TEST_F(ExpertsSm90, IsNearTheFloat64Product) {
  const Operands o({3, 0, 7, 1});
  const std::vector<uint32_t> out = multiply(o, tiles_of(o.counts, 8), 8, false);
  const std::vector<uint32_t> gated = multiply(o, tiles_of(o.counts, 8), 8, true);
  size_t row = 0;
  for (size_t e = 0; e < o.counts.size(); ++e) {
    for (int32_t of = 0; of < o.counts[e]; ++of, ++row) {
      std::vector<double> sums(kOut, 0.0);
      for (size_t n = 0; n < kOut; ++n) {
        for (size_t k = 0; k < kIn; ++k)
          sums[n] += static_cast<double>(to_float(o.x[row * kXStride + k])) *
                     static_cast<double>(to_float(o.w[e * static_cast<size_t>(o.stride) + n * kIn + k]));
        ASSERT_NEAR(static_cast<double>(float_from_bits(out[row * kOut + n])), sums[n], 1e-4) << row << " " << n;
      }
      for (size_t i = 0; i < kHalf; ++i) {
        const double y = sums[i] / (1.0 + std::exp(-sums[i])) * sums[kHalf + i];
        ASSERT_NEAR(static_cast<double>(to_float(Element{static_cast<uint16_t>(gated[row * kXStride + i])})), y,
                    std::abs(y) * kBf16Rounding + 1e-4)
            << row << " " << i;
      }
    }
  }
}

// A tile's box holds rows of the next expert.
TEST_F(ExpertsSm90, ANaNStaysInItsRow) {
  const std::vector<int32_t> counts = {3, 0, 12, 1, 2};
  for (const int32_t spoilt : {2, 3, 15}) {
    const Operands clean(counts), o(counts, spoilt);
    for (const bool gated : {false, true}) {
      const std::vector<uint32_t> expected = multiply(clean, tiles_of(counts, 8), 8, gated),
                                  found = multiply(o, tiles_of(counts, 8), 8, gated);
      const size_t width = expected.size() / static_cast<size_t>(o.rows), outputs = gated ? kHalf : kOut;
      for (size_t i = 0; i < found.size(); ++i) {
        if (static_cast<int32_t>(i / width) != spoilt || i % width >= outputs) ASSERT_EQ(found[i], expected[i]) << i;
        else ASSERT_TRUE(is_nan(gated ? to_float(Element{static_cast<uint16_t>(found[i])}) : float_from_bits(found[i]))) << i;
      }
    }
  }
}

// The other experts' weights would lie outside all memory: whoever reads them ends the program.
TEST_F(ExpertsSm90, AnExpertThatNoRowTakesIsNotRead) {
  const Operands o({11});
  for (const int32_t expert : {0, 2}) {
    constexpr int64_t kFar = int64_t{kHalf} * kIn << 25;  // 600 GiB
    for (const bool gated : {false, true}) {
      const auto launch = [&](const ExpertTiles& list, float* out, Element* activated) {
        check_status(linear_experts_sm90({3,
                                          {kIn, kOut, o.device_w.data() - expert * kFar, nullptr},
                                          kFar,
                                          o.rows,
                                          o.device_x.data(),
                                          kXStride,
                                          out,
                                          activated,
                                          kXStride,
                                          list},
                                         side_stream()));
      };
      EXPECT_EQ(launch_all(o, {{expert, 0, 8}, {expert, 8, 11}}, 8, gated, launch),
                multiply(o, tiles_of(o.counts, 8), 8, gated));
    }
  }
}

TEST_F(ExpertsSm90, NoTilesAreNoWork) {
  const Operands o({3});
  for (const uint32_t bits : multiply(o, {}, 8, false)) ASSERT_EQ(bits, 0x7f7f7f7fu);
}

// ---- 4 bits ---------------------------------------------------------------------------------------------------------------

// gated: gates, then ups; as quantize_w4_sm90 makes it of the rows of each expert.
std::vector<uint8_t> quantised(const Operands& o, bool gated) {
  std::vector<uint8_t> all(static_cast<size_t>(o.w4_stride) * o.counts.size(), 0x7f);
  for (size_t e = 0; e < o.counts.size(); ++e) {
    const auto begin = o.w.begin() + static_cast<std::ptrdiff_t>(e) * o.stride;
    std::vector<Element> ordered(kOut * kIn);
    for (int64_t n = 0; n < kOut; ++n)
      std::copy_n(begin + n * kIn, kIn, ordered.begin() + (gated ? gated_row(n, kOut) : n) * kIn);
    if (o.counts[e] == 0) continue;
    const std::vector<uint8_t> one =
        repack_w4(quantize(*find_path("cpu-scalar"), ordered, {kOut, kIn}).data(), kOut, kIn, gated);
    std::copy(one.begin(), one.end(), all.begin() + static_cast<std::ptrdiff_t>(e) * o.w4_stride);
  }
  return all;
}

std::vector<uint32_t> multiply_w4(const Operands& o, const DeviceBuffer<uint8_t>& w4, const std::vector<ExpertTile>& tiles,
                                  int32_t tile_rows, bool gated) {
  return launch_all(o, tiles, tile_rows, gated, [&](const ExpertTiles& list, float* out, Element* activated) {
    check_status(linear_w4_experts_sm90({static_cast<int32_t>(o.counts.size()),
                                         {kIn, kOut, w4.data(), nullptr},
                                         o.w4_stride,
                                         o.rows,
                                         o.device_x.data(),
                                         kXStride,
                                         out,
                                         activated,
                                         kXStride,
                                         list},
                                        side_stream()));
  });
}

TEST_F(ExpertsSm90, InFourBitsEveryRowHasTheBitsOfItsExpertsOwnProduct) {
  for (const std::vector<int32_t>& counts : kCounts) {
    const Operands o(counts);
    for (const bool gated : {false, true}) {
      const DeviceBuffer<uint8_t> w4(quantised(o, gated));
      const std::vector<uint32_t> expected =
          launch_all(o, {}, 8, gated, [&](const ExpertTiles&, float* out, Element* activated) {
            int32_t row = 0;
            for (size_t e = 0; e < counts.size(); row += counts[e++]) {
              const LinearW4Weight weight = {kIn, kOut, w4.data() + static_cast<int64_t>(e) * o.w4_stride, nullptr};
              check_status(
                  linear_w4_narrow_sm90({counts[e], weight, o.device_x.data() + row * kXStride, kXStride, nullptr,
                                         out + row * kOut, kOut, gated ? activated + row * kXStride : nullptr, kXStride},
                                        side_stream()));
            }
          });
      for (const int32_t tile_rows : {8, 16, 32})
        EXPECT_EQ(multiply_w4(o, w4, tiles_of(counts, tile_rows), tile_rows, gated), expected)
            << counts.size() << " experts, tiles of " << tile_rows << (gated ? ", gated" : "");
    }
  }
}

TEST_F(ExpertsSm90, InFourBitsANaNStaysInItsRow) {
  const std::vector<int32_t> counts = {3, 0, 12, 1, 2};
  constexpr int32_t kSpoilt = 3;  // in a box with the rows of expert 0
  const Operands clean(counts), o(counts, kSpoilt);
  const DeviceBuffer<uint8_t> w4(quantised(o, false));
  const std::vector<uint32_t> expected = multiply_w4(clean, w4, tiles_of(counts, 8), 8, false),
                              found = multiply_w4(o, w4, tiles_of(counts, 8), 8, false);
  for (size_t i = 0; i < found.size(); ++i) {
    if (static_cast<int32_t>(i) / kOut != kSpoilt) ASSERT_EQ(found[i], expected[i]) << i;
    else ASSERT_TRUE(is_nan(float_from_bits(found[i]))) << i;
  }
}

// ---- What is refused ------------------------------------------------------------------------------------------------------

TEST_F(ExpertsSm90, WhatTheKernelsDoNotTakeIsAnError) {
  const DeviceBuffer<Element> w(1024), x(1024), gated(1024);
  const DeviceBuffer<uint8_t> w4(8192);
  const DeviceBuffer<float> out(1024);
  const DeviceBuffer<ExpertTile> list(1);
  const DeviceBuffer<int32_t> count(std::vector<int32_t>{0});
  const auto code = [&](int32_t out_features, int64_t stride, int32_t tile_rows, bool is_gated) {
    return linear_experts_sm90({2,
                                {8, out_features, w.data(), nullptr},
                                stride,
                                4,
                                x.data(),
                                32,
                                out.data(),
                                is_gated ? gated.data() : nullptr,
                                32,
                                {list.data(), count.data(), 1, tile_rows}},
                               side_stream())
        .code();
  };
  const auto code_w4 = [&](int32_t out_features, int64_t stride, int32_t tile_rows, bool is_gated) {
    return linear_w4_experts_sm90({2,
                                   {8, out_features, w4.data(), nullptr},
                                   stride,
                                   4,
                                   x.data(),
                                   32,
                                   out.data(),
                                   is_gated ? gated.data() : nullptr,
                                   32,
                                   {list.data(), count.data(), 1, tile_rows}},
                                  side_stream())
        .code();
  };
  EXPECT_EQ(code(24, 192, 8, false), StatusCode::kOk);
  EXPECT_EQ(code(24, 192, 12, false), StatusCode::kInvalidArgument);
  EXPECT_EQ(code(24, 192, 256, false), StatusCode::kInvalidArgument);
  EXPECT_EQ(code(24, 196, 8, false), StatusCode::kInvalidArgument);
  EXPECT_EQ(code(24, 184, 8, false), StatusCode::kInvalidArgument);  // experts that overlap
  EXPECT_EQ(code(24, 192, 8, true), StatusCode::kInvalidArgument);   // 12 gates
  EXPECT_EQ(code(32, 256, 8, true), StatusCode::kOk);
  EXPECT_EQ(code(32, 264, 8, true), StatusCode::kInvalidArgument);  // no multiple of the gates
  EXPECT_EQ(code_w4(24, 4352, 8, false), StatusCode::kOk);
  EXPECT_EQ(code_w4(24, 4352, 64, false), StatusCode::kInvalidArgument);
  EXPECT_EQ(code_w4(24, 4360, 8, false), StatusCode::kInvalidArgument);
  EXPECT_EQ(code_w4(24, 4352, 8, true), StatusCode::kInvalidArgument);
  wait_for(side_stream());
}

}  // namespace
}  // namespace otr::experts_sm90_test
