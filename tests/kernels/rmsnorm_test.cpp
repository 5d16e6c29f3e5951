#include "kernels/rmsnorm/rmsnorm.h"

#include <cmath>
#include <limits>

#include "tests/kernels/vector_test_util.h"

namespace otr::rmsnorm_test {
namespace {

using namespace testing_util;

constexpr int kSizes[] = {1, 15, 16, 17, 31, 224, 896, 1000, 3584};

struct Problem {
  int rows, hidden;
  std::vector<float> x, weight;

  Problem(int num_rows, int hidden_size)
      : rows(num_rows),
        hidden(hidden_size),
        x(random_normal(static_cast<size_t>(num_rows) * hidden_size, 3.0f, 1)),
        weight(random_normal(static_cast<size_t>(hidden_size), 1.0f, 2)) {}

  int64_t stride() const { return (hidden + 31) / 32 * 32 + 32; }  // wider than needed: the rest is zero-filled too

  std::vector<Element> run(const KernelTable& kernels, int threads = 1, const std::vector<int32_t>* index = nullptr) const {
    ThreadPool pool(threads);
    const int count = index != nullptr ? static_cast<int>(index->size()) : rows;
    std::vector<Element> out = untouched(static_cast<size_t>(count * stride()));
    kernels.rmsnorm(
        {count, hidden, 1e-6f, x.data(), index != nullptr ? index->data() : nullptr, weight.data(), out.data(), stride()},
        pool);
    return out;
  }
};

class RmsNorm : public PathTest {};
OTR_TEST_ALL_PATHS(RmsNorm);

TEST_P(RmsNorm, IsNearTheFloat64Formula) {
  for (const int hidden : kSizes) {
    const Problem problem(3, hidden);
    std::vector<double> expected(static_cast<size_t>(3 * problem.stride()), 0.0);
    for (int r = 0; r < 3; ++r) {
      const float* x = problem.x.data() + int64_t{r} * hidden;
      double sum = 0.0;
      for (int i = 0; i < hidden; ++i) sum += static_cast<double>(x[i]) * x[i];
      const double inv = 1.0 / std::sqrt(sum / hidden + static_cast<double>(1e-6f));
      for (int i = 0; i < hidden; ++i)
        expected[static_cast<size_t>(r * problem.stride() + i)] = x[i] * inv * problem.weight[static_cast<size_t>(i)];
    }
    // Half a bf16 ulp, and float32 roundings: hidden / 16 in a lane and a dozen after it, halved by the square root.
    const double relative = kBf16Rounding + (hidden / 16 + 12) * 0x1p-24;
    EXPECT_TRUE(all_near(problem.run(*kernels), expected, relative, 1e-30)) << hidden;
  }
}

TEST_P(RmsNorm, PicksRowsByIndex) {
  const Problem problem(5, 224);
  const std::vector<int32_t> index = {4, 0, 0, 3};
  const std::vector<Element> all = problem.run(*kernels), picked = problem.run(*kernels, 1, &index);
  for (size_t r = 0; r < index.size(); ++r) {
    for (int64_t i = 0; i < problem.stride(); ++i) {
      ASSERT_EQ(bits_of(picked[r * problem.stride() + i]), bits_of(all[index[r] * problem.stride() + i])) << r << " " << i;
    }
  }
}

TEST_P(RmsNorm, IsTheSameForEveryThreadCount) {
  const Problem problem(7, 1000);
  const std::vector<Element> one = problem.run(*kernels, 1);
  for (int threads = 2; threads <= 4; ++threads) EXPECT_TRUE(same_bits(problem.run(*kernels, threads), one)) << threads;
}

TEST_P(RmsNorm, ANaNStaysInItsRow) {
  Problem problem(3, 100);
  const std::vector<Element> clean = problem.run(*kernels);
  problem.x[100 + 57] = std::numeric_limits<float>::quiet_NaN();
  const std::vector<Element> dirty = problem.run(*kernels);
  for (int64_t i = 0; i < problem.stride(); ++i) {
    EXPECT_EQ(bits_of(dirty[i]), bits_of(clean[i]));
    EXPECT_EQ(bits_of(dirty[2 * problem.stride() + i]), bits_of(clean[2 * problem.stride() + i]));
    EXPECT_EQ(is_nan(to_float(dirty[problem.stride() + i])), i < 100) << i;  // and not in the zero-filled end
  }
}

TEST(RmsNormPaths, Avx2AndAvx512Agree) {
  const KernelTable *a = find_path("cpu-avx2"), *b = find_path("cpu-avx512");
  if (a == nullptr || b == nullptr) GTEST_SKIP() << "needs both vector paths";
  // A last bit of the sum turns the rounding of about one element in 100,000: a million of them.
  for (const int hidden : kSizes) {
    const Problem problem(1000000 / 9 / hidden + 1, hidden);
    EXPECT_TRUE(same_bits(problem.run(*a), problem.run(*b))) << hidden;
  }
}

}  // namespace
}  // namespace otr::rmsnorm_test
