#include "kernels/linear_w4/linear_w4.h"

#include <cmath>
#include <set>
#include <span>

#include "kernels/linear_w4/linear_w4_sm90_config.h"
#include "kernels/linear_w4/linear_w4_wide_sm90_config.h"
#include "tests/kernels/w4_test_util.h"
#if defined(OUTRIDER_TEST_EMULATED)
#include "kernels/linear/linear_sm90.h"
#endif

namespace otr::linear_w4_test {
namespace {

using namespace testing_util;

// One product. The weight is quantised by the scalar path and guarded; rows of x are wider than needed and NaN past the
// padding.
struct Problem {
  int rows, k, n;
  int64_t x_stride, out_stride;
  std::vector<Element> x;
  std::vector<float> bias, residual;
  GuardedBuffer<uint8_t> packed;

  Problem(int num_rows, int in_features, int out_features, const std::vector<Element>& inputs, Guard guard = Guard::kAtEnd)
      : rows(num_rows),
        k(in_features),
        n(out_features),
        x_stride(linear_padded(in_features) + 32),
        out_stride(out_features + 3),
        x(static_cast<size_t>(num_rows * x_stride), nan_element()),
        bias(random_normal(static_cast<size_t>(n), 1.0f, 3)),
        residual(random_normal(static_cast<size_t>(rows * out_stride), 1.0f, 4)),
        packed(quantize(*find_path("cpu-scalar"), random_elements(static_cast<size_t>(n) * k, 0.3f, 1), {n, k}), guard) {
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t i = 0; i < linear_padded(k); ++i) {
        x[static_cast<size_t>(r * x_stride + i)] = i < k ? inputs[static_cast<size_t>(r * k + i)] : Element{};
      }
    }
  }
  Problem(int num_rows, int in_features, int out_features, Guard guard = Guard::kAtEnd)
      : Problem(num_rows, in_features, out_features, random_elements(static_cast<size_t>(num_rows) * in_features, 1.0f, 2),
                guard) {}

  LinearW4Weight weight(bool with_bias) const { return {k, n, packed.data(), with_bias ? bias.data() : nullptr}; }

  // Rows [first, first + count) in one call; out is poisoned with 7e33.
  std::vector<float> run(const KernelTable& kernels, int first, int count, bool extras, int threads = 1) const {
    ThreadPool pool(threads);
    std::vector<float> out(static_cast<size_t>(count * out_stride), 7e33f);
    const GuardedBuffer<Element> rows_of_x(
        std::vector<Element>(x.begin() + first * x_stride, x.begin() + (first + count) * x_stride), Guard::kAtEnd);
    kernels.linear_w4({count, weight(extras), rows_of_x.data(), x_stride,
                       extras ? residual.data() + first * out_stride : nullptr, out.data(), out_stride},
                      pool);
    return out;
  }

  // Of row r and the group that begins at input `first`: the power of two of which a CPU takes x as a multiple.
  double unit(int64_t r, int64_t first) const {
    float greatest = 0.0f;
    for (int64_t i = first; i < k && i < first + kW4GroupK; ++i) {
      greatest = std::max(greatest, std::fabs(to_float(x[static_cast<size_t>(r * x_stride + i)])));
    }
    return std::ldexp(1.0, (greatest < 0x1p-94f ? -94 : std::ilogb(greatest)) - 6);
  }
  double multiple(int64_t r, int64_t i, double unit_of_group) const {
    const double multiple = static_cast<double>(to_float(x[static_cast<size_t>(r * x_stride + i)])) / unit_of_group;
    return std::clamp(std::nearbyint(multiple), -128.0, 127.0);
  }

  // Float64 values of the dequantised product, of x as the path takes it, and what float32 sums of k terms may be
  // off: rounding errors of a sum of k independent terms of root mean square q grow as k q eps / sqrt(12); 8 times that, and a
  // few ulp of what is added at the end.
  void reference(bool extras, std::vector<double>* value, std::vector<double>* tolerance) const {
    value->assign(static_cast<size_t>(rows * out_stride), static_cast<double>(7e33f));
    tolerance->assign(value->size(), 0x1p-100);
    std::vector<double> w(static_cast<size_t>(k)), inputs(static_cast<size_t>(rows) * k);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t i = 0; i < k; ++i) {
        const double u = unit(r, i / kW4GroupK * kW4GroupK);
        inputs[static_cast<size_t>(r * k + i)] =
            kOnSm90 ? static_cast<double>(to_float(x[static_cast<size_t>(r * x_stride + i)])) : u * multiple(r, i, u);
      }
    }
    for (int64_t o = 0; o < n; ++o) {
      for (int64_t i = 0; i < k; ++i) w[static_cast<size_t>(i)] = w4_weight(packed.data(), o, i, k);
      for (int64_t r = 0; r < rows; ++r) {
        double sum = 0.0, squares = 0.0;
        for (int64_t i = 0; i < k; ++i) {
          const double term = inputs[static_cast<size_t>(r * k + i)] * w[static_cast<size_t>(i)];
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
        (*tolerance)[at] = 8.0 / std::sqrt(12.0) * 0x1p-24 * std::sqrt(k * squares) + 4 * 0x1p-24 * ends + 1e-30;
      }
    }
  }
};

class LinearW4 : public PathTest {};
OTR_TEST_ALL_PATHS(LinearW4);

struct Shape {
  int rows, k, n;
};
// The last ones: more groups or tiles than a GPU's rings have slots; of more than 32 rows, several tiles for a block of the
// emulated device, with an even and an odd number of groups, and in splits.
constexpr Shape kShapes[] = {{1, 1, 1},       {1, 32, 32},    {2, 31, 33},    {3, 33, 16},    {4, 127, 48},   {5, 129, 31},
                             {6, 224, 17},    {7, 128, 96},   {8, 896, 40},   {12, 100, 5},   {13, 2, 130},   {16, 65, 64},
                             {17, 257, 9},    {31, 96, 70},   {32, 34, 15},   {33, 160, 65},  {64, 300, 32},  {1, 4864, 33},
                             {1, 3584, 1},    {193, 40, 33},  {300, 150, 50}, {2, 20000, 16}, {1, 130, 1700}, {12, 130, 1100},
                             {100, 140, 300}, {65, 1200, 70}, {40, 4200, 48}, {40, 130, 900}, {40, 380, 900}, {140, 1100, 300}};

TEST_P(LinearW4, IsNearTheFloat64ProductOfTheDequantisedWeight) {
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

TEST_P(LinearW4, TheToleranceSeesOneStepOfOneWeight) {
  Problem problem(2, 3584, 33);
  std::vector<double> value, tolerance;
  problem.reference(true, &value, &tolerance);
  EXPECT_TRUE(within(problem.run(*kernels, 0, 2, true), value, tolerance));
  const int q = w4_nibble(problem.packed.data(), 32, 3583, 3584);
  set_w4_nibble(problem.packed.data(), 32, 3583, 3584, q < 15 ? q + 1 : 14);
  EXPECT_FALSE(within(problem.run(*kernels, 0, 2, true), value, tolerance));
}

// The split that takes group g on sm_90a: of linear_w4_sm90.h's narrow form, or of its wide one.
int split_of(int g, const Shape& s, int num_splits) {
  if (s.rows <= kW4NarrowRows) return g % num_splits;
  int split = 0;
  while (w4_wide_split_begin(split + 1, num_splits, w4_sm90_groups(s.k)) <= g) ++split;
  return split;
}

#if defined(OUTRIDER_TEST_EMULATED)
TEST(LinearW4Emulated, TheLastShapesHaveSeveralTilesForABlock) {
  const DeviceLimits device = device_limits_sm90().value();
  std::set<int> splits, parities;
  for (const Shape& s : std::span(kShapes).last(3)) {
    const LinearW4WideSm90Config c = choose_linear_w4_wide_sm90({s.rows, s.n, s.k, false}, device);
    EXPECT_GT(s.rows, kW4NarrowRows);
    EXPECT_GT(c.tiles(), c.num_clusters) << s.rows << " x " << s.k << " x " << s.n << ": " << to_string(c);
    splits.insert(c.splits);
    if (c.splits == 1) parities.insert(w4_sm90_groups(s.k) % 2);
  }
  EXPECT_EQ(splits, (std::set<int>{1, 2}));
  EXPECT_EQ(parities, (std::set<int>{0, 1}));
}
#endif

// With small integers in x a group's partial sum is exact, so that every path must give the bits of the header's formula: one
// fma a group, ascending; on sm_90a in splits, which are added.
TEST_P(LinearW4, IntegersGiveTheBitsOfTheFormula) {
  for (const Shape& s : kShapes) {
    std::mt19937 bits(9);
    std::vector<Element> integers(static_cast<size_t>(s.rows) * s.k);
    for (Element& v : integers) v = to_element(static_cast<float>(static_cast<int>(bits() % 9) - 4));
    const Problem problem(s.rows, s.k, s.n, integers);
    const std::vector<float> out = problem.run(*kernels, 0, s.rows, true, 2);
    for (int64_t r = 0; r < s.rows; ++r) {
      for (int64_t o = 0; o < problem.out_stride; ++o) {
        const size_t at = static_cast<size_t>(r * problem.out_stride + o);
        float expected = 7e33f;
        if (o < s.n) {
          const int num_splits = !kOnSm90 ? 1 : s.rows <= kW4NarrowRows ? w4_sm90_splits(s.n, s.k) : w4_wide_splits(s.n, s.k);
          std::vector<float> sums(static_cast<size_t>(num_splits));
          for (int64_t first = 0; first < s.k; first += kW4GroupK) {
            int partial = 0;
            for (int64_t i = first; i < s.k && i < first + kW4GroupK; ++i) {
              const int difference = w4_nibble(problem.packed.data(), o, i, s.k) - w4_zero(problem.packed.data(), o, i, s.k);
              partial += static_cast<int>(to_float(integers[static_cast<size_t>(r * s.k + i)])) * difference;
            }
            const float scale = float_from_bits(w4_word(problem.packed.data(), o, first, s.k));
            float& sum = sums[kOnSm90 ? static_cast<size_t>(split_of(static_cast<int>(first / kW4GroupK), s, num_splits)) : 0];
            sum = std::fma(scale, static_cast<float>(partial), sum);
          }
          expected = sums[0];
          for (size_t split = 1; split < sums.size(); ++split) expected += sums[split];
          expected = problem.residual[at] + (expected + problem.bias[static_cast<size_t>(o)]);
        }
        ASSERT_EQ(bits_of(out[at]), bits_of(expected)) << s.rows << " x " << s.k << " x " << s.n << ": " << r << " " << o;
      }
    }
  }
}

#if defined(OUTRIDER_TEST_EMULATED)  // fewer outputs there
constexpr Shape kBatches[] = {{256, 300, 17}};
#else
constexpr Shape kBatches[] = {{256, 231, 77}, {256, 608, 32}};
#endif

TEST_P(LinearW4, ARowIsTheSameAloneAndInEveryBatchOnEveryThreadCount) {
  for (const Shape& s : kBatches) {
    const Problem problem(s.rows, s.k, s.n);
    const auto by = [&](int count) {  // at a time; the last ones may have been computed before
      std::vector<float> rows(problem.residual.size());
      for (int r = 0; r < s.rows; r += count) {
        const int first = std::min(r, s.rows - count);
        std::ranges::copy(problem.run(*kernels, first, count, true), rows.begin() + first * problem.out_stride);
      }
      return rows;
    };
    const std::vector<float> alone = by(1), few = kOnSm90 ? by(kW4NarrowRows + 1) : alone;
    int threads = 0;
    for (const int count :
         {2, 3, 4, 5, 6, 7, 8, 11, 12, 13, 15, 16, 17, 18, 25, 31, 32, 33, 47, 48, 49, 64, 100, 191, 192, 193, 255, 256}) {
      const int first = 131 * count % (s.rows - count + 1);  // in other places of the batch each time
      const std::vector<float> batch = problem.run(*kernels, first, count, true, 1 + threads++ % 3);
      const std::vector<float>& expected = count <= kW4NarrowRows ? alone : few;  // sm_90a's two forms
      EXPECT_TRUE(same_bits(batch, std::vector<float>(expected.begin() + first * problem.out_stride,
                                                      expected.begin() + (first + count) * problem.out_stride)))
          << count << " rows from " << first;
    }
  }
}

TEST_P(LinearW4, NoRowsAreNoWork) {
  const Problem problem(1, 140, 45);
  ThreadPool pool(2);
  kernels->linear_w4({0, problem.weight(true), nullptr, problem.x_stride, nullptr, nullptr, problem.out_stride}, pool);
}

TEST_P(LinearW4, TheResidualMayBeTheOutput) {
  const Problem problem(37, 140, 45);
  const std::vector<float> apart = problem.run(*kernels, 0, 37, true);
  std::vector<float> in_place = problem.residual;
  ThreadPool pool(2);
  const GuardedBuffer<Element> x(problem.x, Guard::kAtEnd);
  float* out = in_place.data();
  kernels->linear_w4({37, problem.weight(true), x.data(), problem.x_stride, out, out, problem.out_stride}, pool);
  for (int64_t r = 0; r < 37; ++r) {
    for (int64_t i = 0; i < problem.out_stride; ++i) {
      const size_t at = static_cast<size_t>(r * problem.out_stride + i);
      ASSERT_EQ(bits_of(in_place[at]), bits_of(i < 45 ? apart[at] : problem.residual[at])) << r << " " << i;
    }
  }
}

TEST_P(LinearW4, NothingOutsideTheOperandsIsTouched) {
  for (const Guard guard : {Guard::kAtStart, Guard::kAtEnd}) {
    for (const Shape& s : kShapes) {
      const Problem problem(s.rows, s.k, s.n, guard);
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
      const LinearW4Weight weight = {s.k, s.n, problem.packed.data(), bias.data()};
      kernels->linear_w4({s.rows, weight, x.data(), x_stride, residual.data(), out.data(), s.n}, pool);
    }
  }
}

TEST_P(LinearW4, ANaNStaysInItsRowAndASpoiltGroupInItsOutput) {
  constexpr int kIn = 200, kSpoiltOutput = 33;
  struct Case {
    int rows, outputs, row, input;
  };
  for (const Case& c : {Case{40, 45, 18, 157}, {9, 70, 4, 190}, {85, 70, 70, 190}}) {
    Problem problem(c.rows, kIn, c.outputs);
    const std::vector<float> clean = problem.run(*kernels, 0, c.rows, true);
    problem.x[static_cast<size_t>(c.row * problem.x_stride + c.input)] = nan_element();
    std::memcpy(problem.packed.data() + w4_cpu_word_offset(kSpoiltOutput, 1, kIn), &kW4NotFinite, sizeof kW4NotFinite);
    const std::vector<float> dirty = problem.run(*kernels, 0, c.rows, true);
    for (int64_t r = 0; r < c.rows; ++r) {
      for (int64_t i = 0; i < c.outputs; ++i) {
        const size_t at = static_cast<size_t>(r * problem.out_stride + i);
        if (r == c.row || i == kSpoiltOutput) {
          ASSERT_TRUE(is_nan(dirty[at])) << c.rows << " rows: " << r << " " << i;
        } else {
          ASSERT_EQ(bits_of(dirty[at]), bits_of(clean[at])) << c.rows << " rows: " << r << " " << i;
        }
      }
    }
  }
}

#if !defined(OUTRIDER_TEST_SM90)

// Magnitudes from the smallest to the largest: in odd rows one for all groups, in others in turns with ordinary ones; what is
// tiny beside a group's greatest, too. Row 0: denormals and zeros.
std::vector<Element> of_all_magnitudes(int rows, int k) {
  std::mt19937 bits(17);
  std::vector<Element> x(static_cast<size_t>(rows) * k);
  for (int r = 0; r < rows; ++r) {
    for (int i = 0; i < k; ++i) {
      const int middle = r % 2 == 1 || i / kW4GroupK % 2 == 0 ? 12 * r % 220 - 120 : 0, spread = 1 + r % 4 * 9;
      const int exponent = std::clamp(middle + static_cast<int>(bits() % static_cast<uint32_t>(spread)), -126, 100);
      const float mantissa = 1.0f + static_cast<float>(bits() % 128) / 128.0f;
      x[static_cast<size_t>(r * k + i)] = to_element(std::ldexp(bits() % 2 != 0 ? mantissa : -mantissa, exponent));
    }
  }
  for (int i = 0; i < k; ++i) x[static_cast<size_t>(i)] = Element{static_cast<uint16_t>(bits() % 128 | bits() % 2 << 15)};
  return x;
}

// On a CPU x is a multiple of its group's unit, and the sum of a group one of integers: any x gives the formula's bits.
class LinearW4OnCpu : public PathTest {
 protected:
  void expect_formula(const Problem& p, int threads) const {
    const std::vector<float> out = p.run(*kernels, 0, p.rows, false, threads);
    std::vector<int64_t> multiples(static_cast<size_t>(p.rows * p.k)), differences(static_cast<size_t>(p.k));
    std::vector<float> units(multiples.size());
    for (int64_t r = 0; r < p.rows; ++r) {
      for (int64_t i = 0; i < p.k; ++i) {
        const size_t at = static_cast<size_t>(r * p.k + i);
        units[at] = i % kW4GroupK != 0 ? units[at - 1] : static_cast<float>(p.unit(r, i));
        multiples[at] = static_cast<int64_t>(p.multiple(r, i, static_cast<double>(units[at])));
      }
    }
    for (int64_t o = 0; o < p.n; ++o) {
      for (int64_t i = 0; i < p.k; ++i) {
        differences[static_cast<size_t>(i)] = w4_nibble(p.packed.data(), o, i, p.k) - w4_zero(p.packed.data(), o, i, p.k);
      }
      for (int64_t r = 0; r < p.rows; ++r) {
        float sum = 0.0f;
        for (int64_t first = 0; first < p.k; first += kW4GroupK) {
          int64_t partial = 0;
          for (int64_t i = first; i < p.k && i < first + kW4GroupK; ++i) {
            partial += multiples[static_cast<size_t>(r * p.k + i)] * differences[static_cast<size_t>(i)];
          }
          const float scale = float_from_bits(w4_word(p.packed.data(), o, first, p.k));
          sum = std::fma(scale * units[static_cast<size_t>(r * p.k + first)], static_cast<float>(partial), sum);
        }
        ASSERT_EQ(bits_of(out[static_cast<size_t>(r * p.out_stride + o)]), bits_of(sum))
            << p.rows << " x " << p.k << " x " << p.n << " on " << threads << " threads: " << r << " " << o;
      }
    }
  }
};
OTR_TEST_ALL_PATHS(LinearW4OnCpu);

TEST_P(LinearW4OnCpu, EveryXGivesTheBitsOfTheFormula) {
  int threads = 0;
  for (const Shape& s : {Shape{19, 128, 50}, {7, 100, 33}, {80, 90, 33}, {19, 700, 50}, {7, 352, 33}, {80, 700, 33}}) {
    expect_formula(Problem(s.rows, s.k, s.n, of_all_magnitudes(s.rows, s.k)), 1 + threads++ % 3);
  }
}

TEST_P(LinearW4OnCpu, HoweverBlocksAreSplitIntoTasksAndInputsIntoPanels) {
  struct Case {
    Shape shape;
    int threads;
  };
  for (const Case& c : {Case{{3, 200, 1056}, 1},  // an odd number of blocks, many a task
                        {{17, 200, 1056}, 3},     // the same with more than 16 rows
                        {{3, 130, 130}, 8},       // more threads than pairs of blocks
                        {{2, 4864, 900}, 1},      // long tasks, the last ones cut
                        {{5, 1800, 2070}, 2},     // the last task has one block
                        {{20, 1800, 2090}, 1},    //
                        {{5, 18944, 330}, 2},     // a pair of blocks is a task
                        {{33, 15870, 33}, 2},     // x just fits the scratch of a thread,
                        {{33, 15960, 40}, 2},     // and does not: two panels, a row block of one row
                        {{66, 18944, 70}, 3},     // the last task's rows are few
                        {{85, 12000, 33}, 1},     // 21 of them
                        {{66, 130, 1020}, 1},     // as many blocks in a column as there can be
                        {{70, 130, 1100}, 1},     // more
                        {{2, 680000, 1}, 2}}) {   // no row fits the scratch
    expect_formula(Problem(c.shape.rows, c.shape.k, c.shape.n), c.threads);
  }
}

// +-127.5 units: x saturates at one end alone. Differences are 15 and -15.
TEST_P(LinearW4OnCpu, TheGreatestProductsAreExact) {
  std::mt19937 bits(5);
  std::vector<Element> x(17 * 128);
  for (Element& e : x) e = to_element(bits() % 8 == 0 ? 1.9921875f : -1.9921875f);
  Problem problem(17, 128, 33, x);
  for (int64_t o = 0; o < 33; ++o) {
    uint32_t word = w4_word(problem.packed.data(), o, 0, 128);
    word = (word & ~kW4ZeroPointMask) | (o % 2 == 0 ? 0u : 15u);
    std::memcpy(problem.packed.data() + w4_cpu_word_offset(o, 0, 128), &word, sizeof word);
    for (int64_t i = 0; i < 128; ++i) set_w4_nibble(problem.packed.data(), o, i, 128, o % 2 == 0 ? 15 : 0);
  }
  expect_formula(problem, 1);
}

TEST_P(LinearW4OnCpu, AnInfinityMakesItsRowNaN) {
  Problem problem(9, 200, 70);
  problem.x[static_cast<size_t>(4 * problem.x_stride + 190)] = to_element(-std::numeric_limits<float>::infinity());
  const std::vector<float> out = problem.run(*kernels, 0, 9, false);
  for (int64_t r = 0; r < 9; ++r) {
    for (int64_t i = 0; i < 70; ++i) {
      EXPECT_EQ(is_nan(out[static_cast<size_t>(r * problem.out_stride + i)]), r == 4) << r << " " << i;
    }
  }
}

#endif

// Scale words and nibbles tile the weight: no byte is shared, none is left over.
TEST(LinearW4Layout, CoversEveryNibbleOnce) {
  static_assert(w4_cpu_packed_bytes(32, 128) == 2176);  // 4.25 bits a weight
  static_assert(w4_cpu_packed_bytes(33, 129) == 2 * (2176 + 640));
  static_assert(w4_cpu_nibble_index(0, 0, 128) == 256 && w4_cpu_nibble_index(0, 2, 128) == 257);
  static_assert(w4_cpu_nibble_index(0, 1, 128) == 260 && w4_cpu_nibble_index(16, 8, 128) == 2 * (128 + 192));
  for (const W4Shape& s : kW4Shapes) {
    std::vector<int> uses(static_cast<size_t>(w4_cpu_packed_bytes(s.n, s.k)) * 2);
    for (int64_t n = 0; n < linear_padded(s.n); ++n) {
      for (int64_t k = 0; k < linear_padded(s.k); ++k) ++uses.at(static_cast<size_t>(w4_cpu_nibble_index(n, k, s.k)));
      for (int64_t g = 0; g < w4_cpu_groups(s.k); ++g) {
        for (int64_t i = 0; i < 8; ++i) ++uses.at(static_cast<size_t>(w4_cpu_word_offset(n, g, s.k) * 2 + i));
      }
    }
    EXPECT_EQ(uses, std::vector<int>(uses.size(), 1)) << s.n << " x " << s.k;
  }
}

}  // namespace
}  // namespace otr::linear_w4_test
