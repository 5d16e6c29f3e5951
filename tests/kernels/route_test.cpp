#include "kernels/route/route.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tests/kernels/vector_test_util.h"

namespace otr::route_test {
namespace {

using namespace testing_util;

struct Routed {
  std::vector<int32_t> experts;
  std::vector<float> weights;
};

Routed run(std::vector<float> logits, int32_t num_experts, int32_t taken, bool normalised, int threads = 1) {
  const int32_t rows = static_cast<int32_t>(logits.size()) / num_experts;
  Routed r{std::vector<int32_t>(static_cast<size_t>(rows * taken), -1), std::vector<float>(static_cast<size_t>(rows * taken))};
  ThreadPool pool(threads);
  route({rows, num_experts, taken, normalised, logits.data(), r.experts.data(), r.weights.data()}, pool);
  return r;
}

// By sorting, and the softmax in float64.
void expect_definition(const std::vector<float>& logits, int32_t num_experts, int32_t taken, bool normalised) {
  const Routed found = run(logits, num_experts, taken, normalised, 2);
  for (size_t row = 0; row < logits.size() / static_cast<size_t>(num_experts); ++row) {
    const float* l = logits.data() + row * static_cast<size_t>(num_experts);
    std::vector<int32_t> order(static_cast<size_t>(num_experts));
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return l[a] > l[b]; });
    std::vector<int32_t> best(order.begin(), order.begin() + taken);
    std::sort(best.begin(), best.end());
    double sum = 0;
    for (const int32_t e : normalised ? best : order)
      sum += std::exp(static_cast<double>(l[e]) - static_cast<double>(l[order[0]]));
    for (size_t i = 0; i < best.size(); ++i) {
      const size_t at = row * best.size() + i;
      ASSERT_EQ(found.experts[at], best[i]) << "row " << row;
      const double weight = std::exp(static_cast<double>(l[best[i]]) - static_cast<double>(l[order[0]])) / sum;
      ASSERT_NEAR(static_cast<double>(found.weights[at]), weight, 1e-5 * weight) << "row " << row;
    }
  }
}

TEST(Route, TakesTheGreatestAndWeighsThemAsTheSoftmax) {
  for (const auto& [experts, taken] : {std::pair{1, 1}, {2, 1}, {5, 3}, {8, 8}, {128, 8}, {1000, 33}}) {
    for (const bool normalised : {false, true})
      expect_definition(random_normal(static_cast<size_t>(50 * experts), 3.0f, 5), experts, taken, normalised);
  }
}

TEST(Route, OfEqualLogitsTheLowerExpertComesFirst) {
  std::vector<float> logits = random_normal(64 * 16, 1.0f, 6);
  for (float& l : logits) l = std::round(l);  // many ties
  expect_definition(logits, 16, 5, true);
  EXPECT_EQ(run({1, 2, 2, 0, 2, 1}, 6, 4, true).experts, (std::vector<int32_t>{0, 1, 2, 4}));
  EXPECT_EQ(run({0.0f, -0.0f, 0.0f}, 3, 2, true).experts, (std::vector<int32_t>{0, 1}));
}

TEST(Route, ARowDependsOnNoOther) {
  const std::vector<float> logits = random_normal(100 * 12, 2.0f, 7);
  const Routed all = run(logits, 12, 3, false, 3);
  for (size_t row = 0; row < 100; ++row) {
    const auto begin = logits.begin() + static_cast<std::ptrdiff_t>(row * 12);
    const Routed alone = run(std::vector<float>(begin, begin + 12), 12, 3, false);
    for (size_t i = 0; i < 3; ++i) {
      ASSERT_EQ(alone.experts[i], all.experts[row * 3 + i]);
      ASSERT_EQ(bits_of(alone.weights[i]), bits_of(all.weights[row * 3 + i]));
    }
  }
}

// Experts that exist, weights that are NaN, and only in that row.
TEST(Route, ANaNSpoilsItsRowOnly) {
  for (const bool normalised : {false, true}) {
    for (size_t at = 4; at < 8; ++at) {
      std::vector<float> logits = {1, 2, 3, 4, 1, 2, 3, 4, 4, 3, 2, 1};
      const Routed clean = run(logits, 4, 2, normalised);
      logits[at] = std::nanf("");
      const Routed found = run(logits, 4, 2, normalised);
      for (size_t i = 0; i < 6; ++i) {
        ASSERT_TRUE(found.experts[i] >= 0 && found.experts[i] < 4);
        if (i == 2 || i == 3) ASSERT_TRUE(is_nan(found.weights[i]));
        else ASSERT_EQ(bits_of(found.weights[i]), bits_of(clean.weights[i]));
      }
      ASSERT_LT(found.experts[2], found.experts[3]);
    }
  }
}

}  // namespace
}  // namespace otr::route_test
