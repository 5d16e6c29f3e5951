#include "kernels/silu_mul/silu_mul.h"

#include <cmath>
#include <limits>

#include "tests/kernels/vector_test_util.h"

namespace otr {
namespace {

using namespace testing_util;

constexpr int kSizes[] = {1, 15, 16, 17, 33, 608, 4864};

int64_t stride_of(int n) { return (n + 31) / 32 * 32 + 32; }

std::vector<Element> run(const KernelTable& kernels, const std::vector<float>& gate_up, int rows, int n, int threads = 1) {
  ThreadPool pool(threads);
  std::vector<Element> out = untouched(static_cast<size_t>(rows * stride_of(n)));
  kernels.silu_mul({rows, n, gate_up.data(), out.data(), stride_of(n)}, pool);
  return out;
}

class SiluMul : public PathTest {};
OTR_TEST_ALL_PATHS(SiluMul);

class SiluMulVector : public PathTest {};
OTR_TEST_VECTOR_PATHS(SiluMulVector);

TEST_P(SiluMul, IsNearTheFloat64Formula) {
  for (const int n : kSizes) {
    const std::vector<float> gate_up = random_normal(static_cast<size_t>(2 * 2 * n), 4.0f, 3);
    std::vector<double> expected(static_cast<size_t>(2 * stride_of(n)), 0.0);
    for (int r = 0; r < 2; ++r) {
      for (int i = 0; i < n; ++i) {
        const double g = gate_up[static_cast<size_t>(r * 2 * n + i)], u = gate_up[static_cast<size_t>(r * 2 * n + n + i)];
        expected[static_cast<size_t>(r * stride_of(n) + i)] = g / (1.0 + std::exp(-g)) * u;
      }
    }
    EXPECT_TRUE(all_near(run(*kernels, gate_up, 2, n), expected, kBf16Rounding + 4 * 0x1p-24, 1e-37)) << n;
  }
}

TEST_P(SiluMulVector, HasTheBitsOfTheDefinition) {
  const KernelTable& scalar = *find_path("cpu-scalar");
  for (const int n : kSizes) {
    for (const float scale : {1e-30f, 0.1f, 5.0f, 60.0f}) {
      const std::vector<float> gate_up = random_normal(static_cast<size_t>(3 * 2 * n), scale, 4);
      EXPECT_TRUE(same_bits(run(*kernels, gate_up, 3, n), run(scalar, gate_up, 3, n))) << n << " " << scale;
    }
  }
}

TEST_P(SiluMulVector, HasTheBitsOfTheDefinitionAtTheEdges) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  const float edges[] = {0.0f,
                         -0.0f,
                         1e-45f,
                         -1e-40f,
                         1e-38f,
                         1.0f,
                         -1.0f,
                         86.99f,
                         87.0f,
                         87.01f,
                         -87.0f,
                         -87.01f,
                         88.37f,
                         -88.37f,
                         -88.38f,
                         89.0f,
                         1e30f,
                         -1e30f,
                         3.4e38f,
                         kInf,
                         -kInf,
                         std::numeric_limits<float>::quiet_NaN(),
                         float_from_bits(0x7fffffffu),
                         float_from_bits(0xffffffffu)};
  constexpr int kCount = static_cast<int>(std::size(edges));
  std::vector<float> gate_up;
  for (const float g : edges) gate_up.insert(gate_up.end(), kCount, g);
  for (int i = 0; i < kCount; ++i) gate_up.insert(gate_up.end(), edges, edges + kCount);
  EXPECT_TRUE(
      same_bits(run(*kernels, gate_up, 1, kCount * kCount), run(*find_path("cpu-scalar"), gate_up, 1, kCount * kCount)));
}

TEST_P(SiluMul, IsTheSameForEveryThreadCount) {
  const std::vector<float> gate_up = random_normal(7 * 2 * 100, 4.0f, 5);
  const std::vector<Element> one = run(*kernels, gate_up, 7, 100);
  for (int threads = 2; threads <= 4; ++threads)
    EXPECT_TRUE(same_bits(run(*kernels, gate_up, 7, 100, threads), one)) << threads;
}

}  // namespace
}  // namespace otr
