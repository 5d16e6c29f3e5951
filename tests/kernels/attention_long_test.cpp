// Contexts of several segments of cpu-amx, and of as many keys on the other paths.
#include <algorithm>
#include <cmath>

#include "tests/kernels/attention_problem.h"

namespace otr::attention_long_test {
namespace {

using namespace testing_util;
using Problem = AttentionProblem;
using Span = AttentionSpan;

class LongAttention : public PathTest {};
OTR_TEST_VECTOR_PATHS(LongAttention);

// Splits, segments and pieces end inside what a bundle shares and inside what its tiles own.
TEST_P(LongAttention, ABundleOfLongSequencesIsTheSameAsItsTilesAlone) {
  for (const int shared : {4352, 256, 4096}) {
    if (kSanitized && shared != 4352) break;
    Problem problem(*kernels, {3, 1, 32}, {shared + 1, shared + 3900, shared + 4097, 8193, shared + 5, 8450, shared + 300});
    problem.share(shared);
    std::vector<Span> spans;
    for (int s = 0; s < static_cast<int>(problem.lengths.size()); ++s) {
      const int length = problem.lengths[static_cast<size_t>(s)], count = std::min(1 + s % 3, length - shared);
      spans.push_back({s, length - count, count});
    }
    const std::vector<Element> alone = problem.run(*kernels, spans);
    for (const int threads : {1, 2, 4}) {
      EXPECT_TRUE(same_bits(problem.run(*kernels, spans, threads, Guard::kAtEnd, shared), alone))
          << shared << " shared keys, " << threads << " threads";
    }
  }
}

// Each of these rows is the same alone and in chunks that begin and end around the borders of segments.
TEST_P(LongAttention, RowsAroundASegmentsEndDoNotSeeEachOther) {
  const Problem problem(*kernels, {7, 1, 32}, {8300});
  std::vector<Element> alone;
  for (const int first : {4090, 8186}) {
    for (int i = 0; i < 12; ++i) {
      const std::vector<Element> row = problem.run(*kernels, {{0, first + i, 1}});
      alone.insert(alone.end(), row.begin(), row.end());
    }
  }
  for (const int threads : {1, 2, 8}) {
    EXPECT_TRUE(same_bits(problem.run(*kernels, {{0, 4090, 12}, {0, 8186, 12}}, threads), alone));
    EXPECT_TRUE(same_bits(problem.run(*kernels, {{0, 4090, 5}, {0, 4095, 7}, {0, 8186, 1}, {0, 8187, 11}}, threads), alone));
  }
}

TEST_P(LongAttention, LongContextsAreNearTheFloat64Softmax) {
  for (const float shift : {40.0f, -40.0f, 0.0f}) {
    if (kSanitized && shift < 0.0f) break;
    Problem problem(*kernels, {2, 1, 32}, {9100});
    if (shift != 0.0f) {  // scores of one sign; those of the second segment are the greatest, then those of the first
      problem.for_each_slot([](int, int, int j, int d, Element* k, Element*) {
        if (d == 0) *k = to_element(j < 4096 ? 4.0f : j < 8192 ? 4.5f : 3.5f);
      });
      for (size_t i = 0; i < problem.q[0].size(); i += 32) problem.q[0][i] = to_element(shift / (4.0f * problem.scale));
    }
    std::vector<double> value, tolerance;
    std::vector<Span> spans;
    for (const int position : {4094, 4095, 4096, 4097, 4351, 4352, 8191, 8192, 8193, 9099}) {
      spans.push_back({0, position, 1});
      problem.reference(0, position, &value, &tolerance);
    }
    EXPECT_TRUE(within(problem.run(*kernels, spans, 2), value, tolerance)) << shift;
  }
}

// A NaN key of the first segment reaches all rows behind it, of the second only those of it.
TEST_P(LongAttention, ANaNKeyReachesTheRowsFromItsPositionOn) {
  for (const int key : {100, 4500}) {
    Problem problem(*kernels, {7, 1, 32}, {8300});
    const std::vector<Span> spans = {{0, 90, 2}, {0, 4400, 2}, {0, 4600, 2}, {0, 8290, 2}};
    const std::vector<Element> clean = problem.run(*kernels, spans);
    *problem.k_at(0, 0, key, 7) = nan_element();
    for (const int threads : {1, 2, 8}) {  // 8 take pieces
      const std::vector<Element> dirty = problem.run(*kernels, spans, threads);
      size_t at = 0;
      for (const Span& span : spans) {
        for (int i = 0; i < span.count * 7 * 32; ++i, ++at) {
          if (span.first > key) ASSERT_TRUE(is_nan(to_float(dirty[at]))) << key << ", " << span.first;
          else ASSERT_EQ(bits_of(dirty[at]), bits_of(clean[at])) << key << ", " << span.first;
        }
      }
    }
  }
}

}  // namespace
}  // namespace otr::attention_long_test
