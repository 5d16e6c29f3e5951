// The gated form of linear and linear_w4: silu(gate) * up, to the bit of what the sums would give that the ungated form writes.
#include <cmath>
#include <limits>

#include "kernels/linear/linear_epilogue.h"
#include "tests/kernels/w4_test_util.h"

namespace otr::linear_gated_test {
namespace {

using namespace testing_util;

// One product of gate and up, in both weights. Rows of x have no padding beyond the kernels' own.
struct GatedProblem {
  int rows, k, n;  // n: outputs of the weight, gates and ups
  int64_t x_stride;
  std::vector<Element> x;
  GuardedBuffer<Element> packed;
  std::vector<uint8_t> quantized;

  GatedProblem(int num_rows, int in_features, int out_features, const std::vector<Element>& inputs,
               const std::vector<Element>& w)
      : rows(num_rows),
        k(in_features),
        n(out_features),
        x_stride(linear_padded(k)),
        x(static_cast<size_t>(rows * x_stride), Element{}),
        packed(static_cast<size_t>(linear_packed_elements(n, k)), Guard::kAtEnd),
        quantized(quantize(*find_path("cpu-scalar"), w, {n, k})) {
    for (int64_t r = 0; r < rows; ++r)
      std::copy_n(&inputs[static_cast<size_t>(r * k)], k, &x[static_cast<size_t>(r * x_stride)]);
    pack_linear(w.data(), n, k, packed.data());
  }
  GatedProblem(int num_rows, int in_features, int out_features, float scale = 1.0f)
      : GatedProblem(
            num_rows, in_features, out_features,
            random_elements(static_cast<size_t>(num_rows) * in_features, scale / std::sqrt(static_cast<float>(in_features)), 1),
            random_elements(static_cast<size_t>(out_features) * in_features, 4.0f, 2)) {}

  // Writes the ungated sums or, where it is not null, `gated`.
  void run(const KernelTable& kernels, bool w4, int first, int count, float* out, Element* gated, int threads = 1) const {
    ThreadPool pool(threads);
    const GuardedBuffer<Element> rows_of_x(
        std::vector<Element>(x.begin() + first * x_stride, x.begin() + (first + count) * x_stride), Guard::kAtEnd);
    const GuardedBuffer<uint8_t> weight(quantized, Guard::kAtEnd);
    const int64_t gated_stride = n / 2;
    if (w4) {
      kernels.linear_w4(
          {count, {k, n, weight.data(), nullptr}, rows_of_x.data(), x_stride, nullptr, out, n, gated, gated_stride}, pool);
    } else {
      kernels.linear({count, {k, n, packed.data(), nullptr}, rows_of_x.data(), x_stride, nullptr, out, n, gated, gated_stride},
                     pool);
    }
  }

  std::vector<Element> gated(const KernelTable& kernels, bool w4, int first, int count, int threads = 1) const {
    GuardedBuffer<Element> out(untouched(static_cast<size_t>(count) * n / 2), Guard::kAtEnd);
    run(kernels, w4, first, count, nullptr, out.data(), threads);
    return out.values();
  }

  // The definition's last step on the path's own sums.
  std::vector<Element> one_after_the_other(const KernelTable& kernels, bool w4) const {
    std::vector<float> sums(static_cast<size_t>(rows) * n);
    run(kernels, w4, 0, rows, sums.data(), nullptr);
    std::vector<Element> out;
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t i = 0; i < n / 2; ++i) {
        const float* block = &sums[static_cast<size_t>(r * n + i / 16 * 32 + i % 16)];
        out.push_back(to_element(block[0] / (1.0f + exp32(-block[0])) * block[16]));
      }
    }
    return out;
  }
};

class LinearGated : public PathTest {};
OTR_TEST_ALL_PATHS(LinearGated);

TEST_P(LinearGated, HasTheBitsOfTheTwoStepsOneAfterTheOther) {
  for (const auto& [rows, k, n] :
       {std::tuple(1, 32, 32), {3, 100, 64}, {12, 224, 96}, {13, 65, 160}, {33, 128, 64}, {200, 40, 64}}) {
    for (const float scale : {0.01f, 1.0f, 30.0f}) {
      const GatedProblem problem(rows, k, n, scale);
      for (const bool w4 : {false, true}) {
        EXPECT_TRUE(same_bits(problem.gated(*kernels, w4, 0, rows, 2), problem.one_after_the_other(*kernels, w4)))
            << rows << " x " << k << " x " << n << " scale " << scale << (w4 ? " in 4 bits" : "");
      }
    }
  }
}

TEST_P(LinearGated, ARowIsTheSameAloneAndInEveryBatch) {
  const GatedProblem problem(70, 231, 64);
  for (const bool w4 : {false, true}) {
    const std::vector<Element> all = problem.gated(*kernels, w4, 0, 70, 2);
    std::vector<Element> few = all;
    for (int first = 0; kOnSm90 && w4 && first < 70; first += 10) {  // there linear_w4 has a form for few rows
      std::ranges::copy(problem.gated(*kernels, w4, first, 10), few.begin() + first * 32);
    }
    for (const int count : {1, 2, 5, 6, 12, 13, 17, 32, 33, 64, 65}) {
      const int first = 31 * count % (70 - count + 1);
      EXPECT_TRUE(same_bits(problem.gated(*kernels, w4, first, count),
                            std::vector<Element>((count <= 32 ? few : all).begin() + first * 32,
                                                 (count <= 32 ? few : all).begin() + (first + count) * 32)))
          << count;
    }
  }
}

// Every pair of the values at which exp, the division or the rounding change their behaviour: one input, which is 1.
TEST_P(LinearGated, EdgesHaveTheirBitsToo) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  const float edges[] = {0.0f,  -0.0f,  1e-38f, 1.0f,  -1.0f,  86.5f,   87.0f,    87.5f, -87.0f, -87.5f,
                         88.5f, -88.5f, 89.0f,  1e30f, -1e30f, 3.3e38f, -3.3e38f, kInf,  -kInf,  std::nanf("")};
  std::vector<Element> w;
  for (const float gate : edges) {
    for (size_t begin = 0; begin < std::size(edges); begin += 16) {
      w.insert(w.end(), 16, to_element(gate));
      for (size_t i = begin; i < begin + 16; ++i) w.push_back(to_element(edges[i % std::size(edges)]));
    }
  }
  const GatedProblem problem(2, 1, static_cast<int>(w.size()), {to_element(1.0f), to_element(-0.5f)}, w);
  EXPECT_TRUE(same_bits(problem.gated(*kernels, false, 0, 2), problem.one_after_the_other(*kernels, false)));
}

TEST_P(LinearGated, ZeroWeightsGiveZeros) {
  const GatedProblem problem(5, 64, 64, random_elements(5 * 64, 10.0f, 3), std::vector<Element>(64 * 64, Element{}));
  for (const bool w4 : {false, true}) {
    for (const Element e : problem.gated(*kernels, w4, 0, 5)) ASSERT_EQ(to_float(e), 0.0f);
  }
}

TEST(Silu, IsNearTheFloat64Formula) {
  for (const float gate : random_normal(20000, 12.0f, 3)) {
    const double g = gate, expected = g / (1.0 + std::exp(-g)) * 3.0;
    EXPECT_NEAR(silu_times(gate, 3.0f), expected, 4 * 0x1p-24 * std::abs(expected) + 1e-36) << gate;
  }
}

// Halves of a block that come from two places are the block that they would be in one.
TEST(LinearPack, HalvesAreABlock) {
  for (const int rows : {16, 7, 0}) {
    for (const int k : {32, 100}) {
      const std::vector<Element> first = random_elements(static_cast<size_t>(16 * k), 1.0f, 4),
                                 last = random_elements(static_cast<size_t>(16 * k), 1.0f, 5);
      std::vector<Element> stacked(static_cast<size_t>(32 * k), Element{});
      std::copy_n(first.begin(), rows * k, stacked.begin());
      std::copy_n(last.begin(), rows * k, stacked.begin() + 16 * k);
      const size_t size = static_cast<size_t>(linear_packed_elements(32, k));
      std::vector<Element> expected(size), actual(size);
      linear_pack_block(stacked.data(), 32, k, expected.data());
      linear_pack_halves(first.data(), last.data(), rows, k, actual.data());
      EXPECT_TRUE(same_bits(actual, expected)) << rows << " " << k;
    }
  }
}

}  // namespace
}  // namespace otr::linear_gated_test
