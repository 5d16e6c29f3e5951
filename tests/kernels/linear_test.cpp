#include "kernels/linear/linear.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <utility>

#include "tests/kernels/kernel_test_util.h"

namespace otr::linear_test {
namespace {

using namespace testing_util;

// Tensor cores cut the bits below an accumulator's last one off, one step of 16 terms after the other: an error of up to k / 16
// ulp that does not average out.
constexpr double kSlack = kOnSm90 ? 4.0 : 1.0;

// One product, its operands guarded. Rows of x are wider than needed and NaN past the zero padding.
struct Problem {
  int rows, k, n;
  int64_t x_stride, out_stride;
  std::vector<Element> w, x;
  std::vector<float> bias, residual;
  GuardedBuffer<Element> packed;

  Problem(int num_rows, int in_features, int out_features, std::vector<Element> weights, std::vector<Element> inputs,
          Guard guard = Guard::kAtEnd)
      : rows(num_rows),
        k(in_features),
        n(out_features),
        x_stride(linear_padded(in_features) + 32),
        out_stride(out_features + 3),
        w(std::move(weights)),
        x(static_cast<size_t>(num_rows * x_stride), nan_element()),
        bias(random_normal(static_cast<size_t>(n), 1.0f, 3)),
        residual(random_normal(static_cast<size_t>(rows * out_stride), 1.0f, 4)),
        packed(static_cast<size_t>(linear_packed_elements(out_features, in_features)), guard) {
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t i = 0; i < linear_padded(k); ++i) {
        x[static_cast<size_t>(r * x_stride + i)] = i < k ? inputs[static_cast<size_t>(r * k + i)] : Element{};
      }
    }
    pack_linear(w.data(), n, k, packed.data());
  }

  Problem(int num_rows, int in_features, int out_features, uint32_t seed = 1, Guard guard = Guard::kAtEnd)
      : Problem(num_rows, in_features, out_features,
                random_elements(static_cast<size_t>(out_features) * in_features, 1.0f, seed),
                random_elements(static_cast<size_t>(num_rows) * in_features, 1.0f, seed + 1000), guard) {}

  LinearWeight weight(bool with_bias) const { return {k, n, packed.data(), with_bias ? bias.data() : nullptr}; }

  // Rows [first, first + count) in one call; out is poisoned with 7e33.
  std::vector<float> run(const KernelTable& kernels, int first, int count, bool extras, int threads = 1) const {
    ThreadPool pool(threads);
    std::vector<float> out(static_cast<size_t>(count * out_stride), 7e33f);
    // A 64-byte aligned copy that ends at inaccessible memory.
    const GuardedBuffer<Element> rows_of_x(
        std::vector<Element>(x.begin() + first * x_stride, x.begin() + (first + count) * x_stride), Guard::kAtEnd);
    kernels.linear({count, weight(extras), rows_of_x.data(), x_stride, extras ? residual.data() + first * out_stride : nullptr,
                    out.data(), out_stride},
                   pool);
    return out;
  }

  // Float64 values, and what float32 sums of k terms may be off: rounding errors of a sum of k independent terms of root mean
  // square q grow as k q eps / sqrt(12); 8 times that, and a few ulp of what is added at the end.
  void reference(bool extras, std::vector<double>* value, std::vector<double>* tolerance) const {
    value->assign(static_cast<size_t>(rows * out_stride), static_cast<double>(7e33f));
    tolerance->assign(value->size(), 0x1p-100);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t o = 0; o < n; ++o) {
        double sum = 0.0, squares = 0.0;
        for (int64_t i = 0; i < k; ++i) {
          const double term = static_cast<double>(to_float(x[static_cast<size_t>(r * x_stride + i)])) *
                              static_cast<double>(to_float(w[static_cast<size_t>(o * k + i)]));
          sum += term;
          squares += term * term;
        }
        const size_t at = static_cast<size_t>(r * out_stride + o);
        double ends = std::fabs(sum);
        if (extras) {
          const double b = bias[static_cast<size_t>(o)], y = residual[at];
          sum += b + y;
          ends += std::fabs(b) + std::fabs(y);
        }
        (*value)[at] = sum;
        (*tolerance)[at] = kSlack * 8.0 / std::sqrt(12.0) * 0x1p-24 * std::sqrt(k * squares) + 4 * 0x1p-24 * ends + 1e-30;
      }
    }
  }
};

class Linear : public PathTest {};
OTR_TEST_ALL_PATHS(Linear);

struct Shape {
  int rows, k, n;
};
constexpr Shape kShapes[] = {{1, 1, 1},     {1, 32, 32},   {2, 31, 33},   {3, 33, 16},   {5, 64, 48},   {7, 224, 17},
                             {12, 100, 96}, {13, 896, 40}, {16, 2, 130},  {17, 65, 31},  {31, 96, 64},  {32, 34, 15},
                             {33, 128, 65}, {64, 257, 32}, {1, 3584, 70}, {193, 40, 33}, {300, 70, 50}, {9, 70, 410}};

TEST_P(Linear, IsNearTheFloat64Product) {
  for (const Shape& s : kShapes) {
    const Problem problem(s.rows, s.k, s.n);
    for (const bool extras : {false, true}) {
      std::vector<double> value, tolerance;
      problem.reference(extras, &value, &tolerance);
      EXPECT_TRUE(within(problem.run(*kernels, 0, s.rows, extras), value, tolerance))
          << s.rows << " x " << s.k << " x " << s.n << (extras ? " with" : " without") << " bias and residual";
    }
  }
}

TEST_P(Linear, TheToleranceSeesOneMissingInput) {
  const Problem problem(2, 3584, 33);
  std::vector<double> value, tolerance;
  problem.reference(true, &value, &tolerance);
  Problem broken(2, 3584, 33);
  broken.packed.data()[linear_packed_index(32, 3583, 3584)] = Element{};
  EXPECT_FALSE(within(broken.run(*kernels, 0, 2, true), value, tolerance));
}

TEST_P(Linear, SmallIntegersAreExact) {
  for (const Shape& s : kShapes) {
    std::mt19937 bits(9);
    auto integers = [&](size_t n) {
      std::vector<Element> e(n);
      for (Element& v : e) v = to_element(static_cast<float>(static_cast<int>(bits() % 9) - 4));
      return e;
    };
    Problem problem(s.rows, s.k, s.n, integers(static_cast<size_t>(s.n) * s.k), integers(static_cast<size_t>(s.rows) * s.k));
    for (float& v : problem.bias) v = static_cast<float>(bits() % 100);
    for (float& v : problem.residual) v = static_cast<float>(bits() % 100);
    std::vector<double> value, tolerance;
    problem.reference(true, &value, &tolerance);
    EXPECT_TRUE(within(problem.run(*kernels, 0, s.rows, true), value, std::vector<double>(value.size(), 0x1p-100)))
        << s.rows << " x " << s.k << " x " << s.n;
  }
}

TEST_P(Linear, ARowIsTheSameAloneAndInEveryBatchOnEveryThreadCount) {
  // The last one: enough blocks of outputs for pairs of them on every thread count.
  for (const Shape& s : {Shape{256, 231, 77}, Shape{256, 1056, 64}, Shape{256, 65, 330}}) {
    const Problem problem(s.rows, s.k, s.n);
    std::vector<float> alone;
    for (int r = 0; r < s.rows; ++r) {
      const std::vector<float> row = problem.run(*kernels, r, 1, true);
      alone.insert(alone.end(), row.begin(), row.end());
    }
    int threads = 0;
    for (const int count :
         {2, 3, 4, 5, 7, 11, 12, 13, 15, 16, 17, 24, 25, 31, 32, 33, 47, 48, 49, 64, 100, 191, 192, 193, 255, 256}) {
      const int first = 131 * count % (s.rows - count + 1);  // in other places of the batch each time
      const std::vector<float> batch = problem.run(*kernels, first, count, true, 1 + threads++ % 3);
      EXPECT_TRUE(same_bits(batch, std::vector<float>(alone.begin() + first * problem.out_stride,
                                                      alone.begin() + (first + count) * problem.out_stride)))
          << count << " rows from " << first;
    }
  }
}

TEST_P(Linear, ARowIsTheSameAmongThousandRows) {
  const Problem problem(1024, 160, 40);
  const std::vector<float> batch = problem.run(*kernels, 0, 1024, true, 2);
  for (const int r : {0, 1, 11, 191, 192, 500, 767, 768, 1022, 1023}) {
    const auto row = batch.begin() + r * problem.out_stride;
    EXPECT_TRUE(same_bits(problem.run(*kernels, r, 1, true), std::vector<float>(row, row + problem.out_stride))) << r;
  }
}

// More inputs and outputs than a panel or a task takes on any path, and rows that do not fill their last block.
TEST_P(Linear, ARowIsTheSameAmongPanels) {
  const Problem problem(71, 1100, 560);
  const std::vector<float> batch = problem.run(*kernels, 0, 71, true, 2);
  for (const int r : {0, 15, 31, 32, 63, 64, 70}) {
    const auto row = batch.begin() + r * problem.out_stride;
    EXPECT_TRUE(same_bits(problem.run(*kernels, r, 1, true), std::vector<float>(row, row + problem.out_stride))) << r;
  }
}

TEST_P(Linear, NoRowsAreNoWork) {
  const Problem problem(1, 64, 32);
  ThreadPool pool(2);
  kernels->linear({0, problem.weight(true), nullptr, problem.x_stride, nullptr, nullptr, problem.out_stride}, pool);
}

TEST_P(Linear, TheResidualMayBeTheOutput) {
  const Problem problem(37, 100, 45);
  const std::vector<float> apart = problem.run(*kernels, 0, 37, true);
  std::vector<float> in_place = problem.residual;
  ThreadPool pool(2);
  const GuardedBuffer<Element> x(problem.x, Guard::kAtEnd);
  float* out = in_place.data();
  kernels->linear({37, problem.weight(true), x.data(), problem.x_stride, out, out, problem.out_stride}, pool);
  for (int64_t r = 0; r < 37; ++r) {
    for (int64_t i = 0; i < problem.out_stride; ++i) {
      const size_t at = static_cast<size_t>(r * problem.out_stride + i);
      ASSERT_EQ(bits_of(in_place[at]), bits_of(i < 45 ? apart[at] : problem.residual[at])) << r << " " << i;
    }
  }
}

TEST_P(Linear, NothingOutsideTheOperandsIsTouched) {
  for (const Guard guard : {Guard::kAtStart, Guard::kAtEnd}) {
    for (const Shape& s : kShapes) {
      const Problem problem(s.rows, s.k, s.n, 1, guard);
      const int64_t x_stride = linear_padded(s.k);  // tight, unlike elsewhere
      std::vector<Element> tight;
      for (int64_t r = 0; r < s.rows; ++r) {
        tight.insert(tight.end(), problem.x.begin() + r * problem.x_stride,
                     problem.x.begin() + r * problem.x_stride + x_stride);
      }
      const size_t outputs = static_cast<size_t>(s.rows) * s.n;
      const GuardedBuffer<Element> x(tight, guard);
      const GuardedBuffer<float> bias(problem.bias, guard), residual(std::vector<float>(outputs, 1.0f), guard);
      GuardedBuffer<float> out(outputs, guard);
      ThreadPool pool(1);
      const LinearWeight weight = {s.k, s.n, problem.packed.data(), bias.data()};
      kernels->linear({s.rows, weight, x.data(), x_stride, residual.data(), out.data(), s.n}, pool);
    }
  }
}

TEST_P(Linear, ANaNStaysInItsRow) {
  Problem problem(40, 100, 45);
  const std::vector<float> clean = problem.run(*kernels, 0, 40, true);
  problem.x[static_cast<size_t>(18 * problem.x_stride + 57)] = nan_element();
  const std::vector<float> dirty = problem.run(*kernels, 0, 40, true);
  for (int64_t r = 0; r < 40; ++r) {
    for (int64_t i = 0; i < 45; ++i) {
      const size_t at = static_cast<size_t>(r * problem.out_stride + i);
      if (r == 18) {
        ASSERT_TRUE(is_nan(dirty[at])) << i;
      } else {
        ASSERT_EQ(bits_of(dirty[at]), bits_of(clean[at])) << r << " " << i;
      }
    }
  }
}

// Replaced piece by piece, at any borders, a weight is what it is packed in one go; rows that are not replaced stay.
TEST(LinearPack, RowsInPiecesAreTheWholeWeight) {
  for (const auto& [n, k] : {std::pair(1, 1), std::pair(31, 40), std::pair(64, 32), std::pair(97, 65), std::pair(130, 64)}) {
    const std::vector<Element> before = random_elements(static_cast<size_t>(n) * k, 1.0f, 1),
                               after = random_elements(static_cast<size_t>(n) * k, 1.0f, 2);
    const auto packed = [n = n, k = k](const std::vector<Element>& w) {
      std::vector<Element> p(static_cast<size_t>(linear_packed_elements(n, k)));
      pack_linear(w.data(), n, k, p.data());
      return p;
    };
    std::mt19937 random(3);
    for (int round = 0; round < 20; ++round) {
      std::vector<Element> mixed = before, pieces = packed(before);
      for (int32_t row = 0; row < n;) {
        const int32_t count = std::min<int32_t>(n - row, 1 + static_cast<int32_t>(random() % 70));
        if (random() % 4 != 0) {
          linear_pack_rows(after.data() + int64_t{row} * k, row, count, n, k, pieces.data());
          std::copy_n(after.begin() + int64_t{row} * k, int64_t{count} * k, mixed.begin() + int64_t{row} * k);
        }
        row += count;
      }
      const std::vector<Element> expected = packed(mixed);
      EXPECT_EQ(std::memcmp(pieces.data(), expected.data(), expected.size() * sizeof(Element)), 0) << n << " x " << k;
    }
  }
}

TEST(LinearPack, TheWayBackGivesTheRows) {
  for (const auto& [n, k] : {std::pair(1, 1), std::pair(31, 40), std::pair(64, 32), std::pair(97, 65), std::pair(130, 896)}) {
    const std::vector<Element> w = random_elements(static_cast<size_t>(n) * k, 1.0f, 1);
    std::vector<Element> packed(static_cast<size_t>(linear_packed_elements(n, k)));
    pack_linear(w.data(), n, k, packed.data());
    for (int32_t row = 0; row < n; row += kLinearTileN) {
      const int32_t count = std::min(n - row, kLinearTileN);
      std::vector<Element> rows(static_cast<size_t>(count) * k);
      linear_unpack_rows(packed.data(), row, count, k, rows.data());
      EXPECT_EQ(std::memcmp(rows.data(), w.data() + int64_t{row} * k, rows.size() * sizeof(Element)), 0) << n << " x " << k;
    }
  }
}

TEST(LinearPaths, Avx2IsTheScalarDefinition) {
  const KernelTable* avx2 = find_path("cpu-avx2");
  if (avx2 == nullptr) GTEST_SKIP() << "needs cpu-avx2";
  const Problem problem(9, 700, 50);
  EXPECT_TRUE(same_bits(problem.run(*avx2, 0, 9, true), problem.run(*find_path("cpu-scalar"), 0, 9, true)));
}

}  // namespace
}  // namespace otr::linear_test
