#include "kernels/attention/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/attention/attention_sm90_config.h"
#include "kernels/base/elementary.h"
#include "tests/kernels/attention_problem.h"
#include "tests/kernels/kernel_test_util.h"

namespace otr::attention_test {
namespace {

using namespace testing_util;

int64_t padded(int64_t columns) { return (columns + 31) / 32 * 32; }

using Problem = AttentionProblem;
using Heads = AttentionHeads;
using Span = AttentionSpan;

constexpr Heads kHeads[] = {{2, 1, 32},  {7, 1, 32},  {14, 2, 64}, {28, 4, 128}, {6, 6, 16},  {4, 2, 48}, {3, 1, 80},
                            {20, 1, 32}, {64, 1, 16}, {2, 2, 256}, {34, 2, 64},  {16, 1, 96}, {5, 1, 2},  {3, 1, 18}};

class Attention : public PathTest {
 protected:
  bool supported(const Heads& h) const {
    if (kOnSm90) return h.head_dim == 32 || h.head_dim == 64 || h.head_dim == 128;
    return kernels->kv_packing == KvPacking::kRows || h.head_dim % kKvLanes == 0;
  }
};
OTR_TEST_ALL_PATHS(Attention);

constexpr int kBorders[] = {0,   1,   2,   30,  31,  32,  33,  62,  63,  64,  65,  127,
                            128, 254, 255, 256, 257, 319, 320, 510, 511, 512, 513, 600};

// Those positions of sequence 0, each a segment of its own.
std::vector<Span> border_rows() {
  std::vector<Span> spans;
  for (const int position : kBorders) spans.push_back({0, position, 1});
  return spans;
}

TEST_P(Attention, IsNearTheFloat64Softmax) {
  for (const Heads& h : kHeads) {
    if (!supported(h)) continue;
    Problem problem(*kernels, h, {601});
    std::vector<double> value, tolerance;
    for (const int position : kBorders) problem.reference(0, position, &value, &tolerance);
    EXPECT_TRUE(within(problem.run(*kernels, border_rows()), value, tolerance))
        << h.num_heads << " heads, " << h.num_kv_heads << " KV heads of " << h.head_dim;
  }
}

// Scores of one sign: no maximum of a split, or of several, is taken for granted.
TEST_P(Attention, IsNearTheFloat64SoftmaxWhereAllScoresAreFarBelowOrAboveZero) {
  for (const Heads& h : {Heads{7, 1, 32}, Heads{2, 1, 64}}) {
    for (const float shift : {-60.0f, -20.0f, 20.0f, 60.0f}) {
      Problem problem(*kernels, h, {601});
      problem.for_each_slot([](int, int, int, int d, Element* k, Element*) {
        if (d == 0) *k = to_element(4.0f);
      });
      for (size_t i = 0; i < problem.q[0].size(); i += static_cast<size_t>(h.head_dim)) {
        problem.q[0][i] = to_element(shift / (4.0f * problem.scale));
      }
      std::vector<double> value, tolerance;
      for (const int position : kBorders) problem.reference(0, position, &value, &tolerance);
      EXPECT_TRUE(within(problem.run(*kernels, border_rows()), value, tolerance)) << h.head_dim << ", " << shift;
    }
  }
}

// With q = 0 every weight is exactly 1 and all sums are of small integers: one key too many, too few or twice shows in the
// bits.
TEST_P(Attention, EqualScoresAverageTheValuesExactly) {
  for (const Heads& h : kHeads) {
    if (!supported(h)) continue;
    Problem problem(*kernels, h, {601});
    std::fill(problem.q[0].begin(), problem.q[0].end(), Element{});
    problem.for_each_slot([](int, int head, int j, int d, Element*, Element* v) {
      *v = to_element(static_cast<float>((j * 37 + d * 11 + head * 5) % 128));
    });
    std::vector<Element> expected;
    for (const int position : kBorders) {
      for (int head = 0; head < h.num_heads; ++head) {
        for (int d = 0; d < h.head_dim; ++d) {
          int sum = 0;
          for (int j = 0; j <= position; ++j) sum += (j * 37 + d * 11 + head / (h.num_heads / h.num_kv_heads) * 5) % 128;
          expected.push_back(to_element(static_cast<float>(sum) / static_cast<float>(position + 1)));
        }
      }
    }
    ASSERT_TRUE(same_bits(problem.run(*kernels, border_rows()), expected)) << h.num_heads << " heads of " << h.head_dim;
  }
}

// Each query is 128 times one key of +-1: all other scores are at least 256 lower, and the output is that key's value.
TEST_P(Attention, AQueryThatPointsToAKeyGetsItsValue) {
  for (const Heads& h : kHeads) {
    if (!supported(h)) continue;
    if (h.head_dim < 32) continue;  // too few bits for distinct keys
    Problem problem(*kernels, h, {601});
    problem.scale = 1.0f;
    std::mt19937 bits(3);
    problem.for_each_slot([&](int, int, int, int, Element* k, Element*) { *k = to_element(bits() % 2 != 0 ? 1.0f : -1.0f); });
    const int group = h.num_heads / h.num_kv_heads;
    std::vector<Element> expected;
    for (const int position : kBorders) {
      for (int head = 0; head < h.num_heads; ++head) {
        const int target = static_cast<int>(bits() % static_cast<uint32_t>(position + 1));
        for (int d = 0; d < h.head_dim; ++d) {
          const float k = to_float(*problem.k_at(0, head / group, target, d));
          problem.q[0][static_cast<size_t>((position * h.num_heads + head) * h.head_dim + d)] = to_element(128.0f * k);
          expected.push_back(*problem.v_at(0, head / group, target, d));
        }
      }
    }
    ASSERT_TRUE(same_bits(problem.run(*kernels, border_rows()), expected)) << h.num_heads << " heads of " << h.head_dim;
  }
}

// Scores of 1e8 to 1e13, at which a unit in the last place is 8 to 2^20. Keys with the greatest one share it evenly, and the
// others are as good as not there.
TEST_P(Attention, TheGreatestScoresShareHoweverGreatTheyAre) {
  for (const Heads& h : {Heads{7, 1, 32}, Heads{14, 2, 64}}) {
    for (const float magnitude : {1e4f, 1e5f, 1e6f, -1e4f, -1e6f}) {
      Problem problem(*kernels, h, {600});
      std::mt19937 bits(11);
      for (Element& q : problem.q[0]) q = to_element(std::fabs(magnitude) * (1.0f + static_cast<float>(bits() % 29) / 100.0f));
      problem.for_each_slot([&](int, int, int j, int d, Element* k, Element* v) {
        const bool best = j < 8 || j >= 300;  // of the splits: the first and the last two
        *k = to_element(magnitude * (1.0f + static_cast<float>(d % 31) / 100.0f) * (best == (magnitude > 0.0f) ? 2.0f : 1.0f));
        *v = to_element(j < 8 ? static_cast<float>(2 + j) : 5.5f);
      });
      std::vector<Element> expected(problem.q[0].size() / 600, to_element(2.0f));  // of one key
      expected.resize(4 * expected.size(), to_element(5.5f));
      EXPECT_TRUE(same_bits(problem.run(*kernels, {{0, 0, 1}, {0, 7, 1}, {0, 290, 1}, {0, 599, 1}}), expected))
          << h.head_dim << ", " << magnitude;
    }
  }
}

// Every score is near 700, where the order of operations shows, but for those of one head.
TEST_P(Attention, ALaneDoesNotSeeTheGreatScoresOfAnother) {
  constexpr int kHead = 2, kFirst = 290, kRows = 10;
  constexpr Heads kOneGroup = {7, 1, 32};
  Problem problem(*kernels, kOneGroup, {kFirst + kRows});
  problem.for_each_slot([](int, int, int, int d, Element* k, Element*) {
    if (d == 0) *k = to_element(64.0f);
  });
  const auto set_queries = [&](float value, int first_head, int end_head) {
    for (int position = kFirst; position < kFirst + kRows; ++position) {
      for (int head = first_head; head < end_head; ++head) {
        const int at = (position * kOneGroup.num_heads + head) * kOneGroup.head_dim;
        problem.q[0][static_cast<size_t>(at)] = to_element(value);
      }
    }
  };
  set_queries(64.0f, 0, kOneGroup.num_heads);
  const std::vector<Element> clean = problem.run(*kernels, {{0, kFirst, kRows}});
  for (const float great : {1e3f, 1e9f, -1e9f, 3e38f, -3e38f, std::numeric_limits<float>::quiet_NaN()}) {
    set_queries(great, kHead, kHead + 1);
    const std::vector<Element> beside = problem.run(*kernels, {{0, kFirst, kRows}});
    for (size_t i = 0; i < clean.size(); ++i) {
      const size_t row = i / static_cast<size_t>(kOneGroup.num_heads * kOneGroup.head_dim);
      if (i / kOneGroup.head_dim % kOneGroup.num_heads == kHead) {
        ASSERT_TRUE(!(std::fabs(great) <= 1e9f) || is_finite_bits(to_float(beside[i]))) << great << ": row " << row;
      } else {
        ASSERT_EQ(bits_of(beside[i]), bits_of(clean[i])) << great << ": row " << row;
      }
    }
  }
}

// Two keys, the second's score x <= 0 and value 1, the first's 0 and 0: the output is p / (1 + p) with p = exp(x). It
// is the exact one's rounding but for a few, which are the next number.
TEST_P(Attention, TwoKeysShareAsTheExpOfTheirScoresSays) {
  constexpr Heads kOneGroup = {64, 1, 32};
  if (!supported(kOneGroup)) GTEST_SKIP();
  Problem problem(*kernels, kOneGroup, {2});
  problem.for_each_slot([](int, int, int j, int d, Element* k, Element* v) {
    *k = to_element(j == 1 && d == 0 ? 1.0f : 0.0f);
    *v = to_element(static_cast<float>(j));
  });
  std::mt19937 random(5);
  std::uniform_real_distribution<float> uniform(0.0f, 1.0f);
  int compared = 0, other = 0;
  for (int call = 0; call < 300; ++call) {
    problem.scale = 0.5f + uniform(random);
    for (int head = 0; head < kOneGroup.num_heads; ++head) {
      const float x = -std::pow(2.0f, 13.5f * uniform(random) - 8.0f);  // to -45: p stays a normal number
      problem.q[0][static_cast<size_t>((kOneGroup.num_heads + head) * kOneGroup.head_dim)] = to_element(x);
    }
    const std::vector<Element> out = problem.run(*kernels, {{0, 1, 1}});
    for (int head = 0; head < kOneGroup.num_heads; ++head) {
      const float x = to_float(problem.q[0][static_cast<size_t>((kOneGroup.num_heads + head) * kOneGroup.head_dim)]);
      const double exact = std::exp(static_cast<double>(x) * static_cast<double>(problem.scale));
      const double p = static_cast<double>(to_float(to_element(static_cast<float>(exact))));
      const float got = to_float(out[static_cast<size_t>(head * kOneGroup.head_dim)]);
      // What is added up for the divisor is the exp itself or what it was rounded to.
      const float by_exact = to_float(to_element(static_cast<float>(p / (1.0 + exact)))),
                  by_rounded = to_float(to_element(static_cast<float>(p / (1.0 + p))));
      ++compared;
      if (got == by_exact || got == by_rounded) continue;
      ++other;
      ASSERT_NEAR(static_cast<double>(got), p / (1.0 + p), 0.0118 * p / (1.0 + p))
          << "x = " << x << ", scale " << problem.scale;
    }
  }
  EXPECT_LE(other, compared / 2400) << "of " << compared;
}

// Bits of every position of sequence 0, each computed alone.
std::vector<Element> one_by_one(const KernelTable& kernels, const Problem& problem, int first, int count) {
  std::vector<Element> all;
  for (int i = 0; i < count; ++i) {
    const std::vector<Element> row = problem.run(kernels, {{0, first + i, 1}});
    all.insert(all.end(), row.begin(), row.end());
  }
  return all;
}

TEST_P(Attention, ATokenIsTheSameAloneAndInEveryChunk) {
  for (const Heads& h : {Heads{7, 1, 32}, Heads{2, 1, 80}, Heads{4, 2, 64}, Heads{16, 1, 16}, Heads{20, 1, 32}}) {
    if (!supported(h)) continue;
    if (kSanitized && h.head_dim == 64) break;
    const Problem problem(*kernels, h, {540});
    for (const auto& [first, count] : {std::pair{0, 70}, std::pair{246, 24}, std::pair{500, 24}}) {
      const std::vector<Element> alone = one_by_one(*kernels, problem, first, count);
      int threads = 0;
      for (const int chunk : {2, 3, 5, 8, 13, 16, 17, 31, 70}) {
        for (int shift = 0; shift < 2; ++shift) {  // other lanes for the same token
          std::vector<Span> spans;
          if (shift != 0) spans.push_back({0, first, 1});
          for (int at = shift; at < count; at += chunk) spans.push_back({0, first + at, std::min(chunk, count - at)});
          ASSERT_TRUE(same_bits(problem.run(*kernels, spans, 1 + threads++ % 3), alone))
              << h.head_dim << " from " << first << " in chunks of " << chunk;
        }
      }
    }
  }
}

TEST_P(Attention, SequencesOfABatchDoNotSeeEachOther) {
  const std::vector<int> lengths = {1, 64, 65, 256, 257, 300, 513};
  const Problem problem(*kernels, {14, 2, 64}, lengths);
  std::vector<Span> spans;
  std::vector<Element> apart;
  for (int s = 0; s < static_cast<int>(lengths.size()); ++s) {
    const int length = lengths[static_cast<size_t>(s)];
    const Span span = {s, std::max(0, length - 1 - 3 * s), std::min(length, 1 + 3 * s)};
    spans.push_back(span);
    const std::vector<Element> rows = problem.run(*kernels, {span});
    apart.insert(apart.end(), rows.begin(), rows.end());
  }
  for (int threads = 1; threads <= 3; ++threads)
    EXPECT_TRUE(same_bits(problem.run(*kernels, spans, threads), apart)) << threads;
}

// Sequences that begin with the same pages give the same bits when their rows share a task as alone: rows at, before and after
// the border, tails of every kind, tiles of several rows.
TEST_P(Attention, ABundleOfSequencesThatShareABeginning) {
  for (const Heads& h : {Heads{4, 2, 32}, Heads{7, 1, 64}, Heads{3, 3, 16}, Heads{20, 1, 32}, Heads{16, 1, 32}}) {
    if (!supported(h)) continue;
    for (const int shared : {256, 512}) {
      Problem problem(
          *kernels, h,
          {shared + 1, shared + 64, shared + 65, shared + 255, shared + 256, shared + 257, shared + 600, shared + 3});
      problem.share(shared);
      std::vector<Span> spans;
      for (int s = 0; s < 8; ++s) {
        const int length = problem.lengths[static_cast<size_t>(s)], count = 1 + s % 3;
        spans.push_back({s, std::max(shared, length - count), std::min(count, length - shared)});
      }
      const std::vector<Element> alone = problem.run(*kernels, spans);
      for (const int threads : {1, 2}) {
        EXPECT_TRUE(same_bits(problem.run(*kernels, spans, threads, Guard::kAtEnd, shared), alone))
            << h.num_heads << " heads, " << shared;
        EXPECT_TRUE(same_bits(problem.run(*kernels, spans, threads, Guard::kAtStart, shared), alone))
            << h.num_heads << " heads, " << shared;
      }
      // All in the shared part, where nothing is left for the tiles; and a sequence of which one row is.
      const std::vector<Span> inside = {{0, shared - 1, 1}, {1, 5, 1}, {2, shared - 1, 2}, {3, 200, 1}};
      EXPECT_TRUE(same_bits(problem.run(*kernels, inside, 1, Guard::kAtEnd, shared), problem.run(*kernels, inside)))
          << h.num_heads << " heads, " << shared;
    }
  }
}

TEST_P(Attention, WhatLiesPastTheEndCountsNothing) {
  for (const Heads& h : {Heads{7, 1, 32}, Heads{4, 2, 48}, Heads{3, 1, 80}}) {
    if (!supported(h)) continue;
    for (const int length : {1, 31, 33, 65, 200, 257, 300}) {
      Problem problem(*kernels, h, {length});
      const Span last = {0, std::max(0, length - 5), std::min(length, 5)};
      problem.fill_beyond(0.0f);
      const std::vector<Element> zeros = problem.run(*kernels, {last});
      for (const float garbage : {1.0f, 3e38f}) {
        problem.fill_beyond(garbage);
        EXPECT_TRUE(same_bits(problem.run(*kernels, {last}), zeros)) << h.head_dim << ", " << length << " keys, " << garbage;
      }
    }
  }
}

TEST_P(Attention, PagesMayLieAnywhere) {
  const Problem a(*kernels, {7, 1, 32}, {330}, 1);
  Problem b(*kernels, {7, 1, 32}, {330}, 1);
  std::reverse(b.tables[0].begin(), b.tables[0].end());
  b.for_each_slot([&](int s, int head, int j, int d, Element* k, Element* v) {
    *k = *const_cast<Problem&>(a).k_at(s, head, j, d);
    *v = *const_cast<Problem&>(a).v_at(s, head, j, d);
  });
  b.fill_beyond(1e30f);
  EXPECT_TRUE(same_bits(a.run(*kernels, {{0, 300, 30}}), b.run(*kernels, {{0, 300, 30}})));
}

// One page and nothing else, so that its first and its last KV head meet inaccessible memory; and a batch with its operands in
// guarded buffers on either side.
TEST_P(Attention, NothingOutsideTheOperandsIsTouched) {
  for (const Guard guard : {Guard::kAtStart, Guard::kAtEnd}) {
    for (const Heads& h : kHeads) {
      if (!supported(h)) continue;
      Problem problem(*kernels, h, {64});
      const KvLayout layout = {1, h.num_kv_heads, h.head_dim, kernels->kv_packing};
      const size_t size = static_cast<size_t>(layout.page_elements());
      const GuardedBuffer<Element> page(random_elements(size, 1.0f, 6), guard);
      const GuardedBuffer<Element> q(random_elements(static_cast<size_t>(h.num_heads) * h.head_dim, 1.0f, 7), guard);
      const int64_t stride = padded(h.num_heads * h.head_dim);
      GuardedBuffer<Element> out(untouched(static_cast<size_t>(stride)), guard);
      const int32_t position = 63;
      const PageId id = 0;
      const RowSegment segment = {0, 1, 0};
      const RowTile tile = {0, 0, 1};
      const TileBundle bundle = {0, 1, 0};
      RowBatch batch = {};
      batch.num_rows = batch.num_segments = batch.num_tiles = batch.num_bundles = 1;
      batch.positions = &position;
      batch.segments = &segment;
      batch.tiles = &tile;
      batch.bundles = &bundle;
      batch.page_tables = &id;
      ThreadPool pool(1);
      kernels->attention({&batch, 0, h.num_heads, layout, 0.1f, q.data(), page.data(), out.data(), stride}, pool);
      const Element poison = untouched(1)[0];
      for (int i = 0; i < stride; ++i) {
        ASSERT_EQ(bits_of(out.data()[i]) != bits_of(poison), i < h.num_heads * h.head_dim)
            << h.num_heads << " heads of " << h.head_dim << ", " << i;
        ASSERT_TRUE(is_finite_bits(to_float(out.data()[i]))) << i;
      }
      problem.run(*kernels, {{0, 40, 24}}, 1, guard);
    }
  }
}

TEST_P(Attention, ANaNKeyReachesTheRowsFromItsPositionOn) {
  for (const Heads& h : {Heads{7, 1, 32}, Heads{4, 2, 48}}) {
    if (!supported(h)) continue;
    Problem problem(*kernels, h, {300, 40});
    const std::vector<Span> spans = {{0, 270, 20}, {1, 20, 20}};
    const std::vector<Element> clean = problem.run(*kernels, spans);
    *problem.k_at(0, h.num_kv_heads - 1, 281, 7) = nan_element();
    const std::vector<Element> dirty = problem.run(*kernels, spans);
    const int token = h.num_heads * h.head_dim, group = h.num_heads / h.num_kv_heads;
    for (int r = 0; r < 40; ++r) {
      for (int i = 0; i < token; ++i) {
        const size_t at = static_cast<size_t>(r * token + i);
        if (r >= 11 && r < 20 && i / h.head_dim / group == h.num_kv_heads - 1) {
          ASSERT_TRUE(is_nan(to_float(dirty[at]))) << r << " " << i;
        } else {
          ASSERT_EQ(bits_of(dirty[at]), bits_of(clean[at])) << r << " " << i;
        }
      }
    }
  }
}

// One head of one row as attention.h says it of cpu-avx2, an operation at a time.
std::vector<Element> in_the_order_of_avx2(Problem& problem, int position, int head) {
  const int hd = problem.heads.head_dim, kv_head = head / (problem.heads.num_heads / problem.heads.num_kv_heads);
  const Element* q = problem.q[0].data() + (int64_t{position} * problem.heads.num_heads + head) * hd;
  std::vector<float> o(static_cast<size_t>(hd)), o_split(o);
  float m = 0, l = 0;
  for (int begin = 0; begin <= position; begin += kAttentionSplit) {
    const int keys = std::min(position + 1 - begin, kAttentionSplit);
    float s[kAttentionSplit], lanes[16] = {}, m_split = -std::numeric_limits<float>::infinity();
    for (int j = 0; j < keys; ++j) {
      float dot = 0;
      for (int d = 0; d < hd; ++d) dot = std::fma(to_float(q[d]), to_float(*problem.k_at(0, kv_head, begin + j, d)), dot);
      s[j] = dot * problem.scale;
      m_split = std::max(m_split, s[j]);
    }
    std::fill(o_split.begin(), o_split.end(), 0.0f);
    for (int j = 0; j < keys; ++j) {
      const float weight = exp32(s[j] - m_split), rounded = to_float(to_element(weight));
      lanes[j % 16] += weight;
      for (int d = 0; d < hd; ++d) {
        float& sum = o_split[static_cast<size_t>(d)];
        sum = std::fma(rounded, to_float(*problem.v_at(0, kv_head, begin + j, d)), sum);
      }
    }
    for (int half = 8; half > 0; half /= 2) {
      for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
    }
    const float m_next = begin == 0 ? m_split : std::max(m_split, m);
    const float keep = exp32(m - m_next), add = exp32(m_split - m_next);
    l = begin == 0 ? lanes[0] : l * keep + lanes[0] * add;
    for (size_t d = 0; d < o.size(); ++d) o[d] = begin == 0 ? o_split[d] : o[d] * keep + o_split[d] * add;
    m = m_next;
  }
  std::vector<Element> out;
  for (const float x : o) out.push_back(to_element(x / l));
  return out;
}

TEST(AttentionAvx2, HasTheBitsOfItsOrder) {
  const KernelTable* avx2 = find_path("cpu-avx2");
  if (avx2 == nullptr) GTEST_SKIP() << "needs cpu-avx2";
  for (const Heads& h : {Heads{7, 1, 32}, Heads{3, 3, 16}, Heads{4, 2, 64}}) {
    Problem problem(*avx2, h, {601});
    const std::vector<Element> rows = problem.run(*avx2, border_rows());
    std::vector<Element> expected;
    for (const int position : kBorders) {
      for (int head = 0; head < h.num_heads; ++head) {
        const std::vector<Element> row = in_the_order_of_avx2(problem, position, head);
        expected.insert(expected.end(), row.begin(), row.end());
      }
    }
    EXPECT_TRUE(same_bits(rows, expected)) << h.num_heads << " heads of " << h.head_dim;
  }
}

TEST_P(Attention, TheToleranceSeesOneMovedKey) {
  Problem problem(*kernels, {7, 1, 32}, {100});
  std::vector<double> value, tolerance;
  problem.reference(0, 99, &value, &tolerance);
  ASSERT_TRUE(within(problem.run(*kernels, {{0, 99, 1}}), value, tolerance));
  for (int d = 0; d < 32; ++d) std::swap(*problem.k_at(0, 0, 50, d), *problem.k_at(0, 0, 51, d));
  EXPECT_FALSE(within(problem.run(*kernels, {{0, 99, 1}}), value, tolerance));
}

}  // namespace
}  // namespace otr::attention_test
