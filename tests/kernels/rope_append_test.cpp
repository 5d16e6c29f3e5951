#include "kernels/rope_append/rope_append.h"

#include <cmath>
#include <limits>

#include "kernels/base/elementary64.h"
#include "tests/kernels/vector_test_util.h"

namespace otr::rope_append_test {
namespace {

using namespace testing_util;

constexpr int kHeads = 3, kKvHeads = 2, kLayers = 2, kLayer = 1, kPages = 9;
constexpr int kHeadDims[] = {32, 64, 128};

// Two sequences: 5 rows from position 61 (crossing into the second page), and 3 rows from position 0.
struct Problem {
  int head_dim;
  KvLayout layout;
  std::vector<int32_t> positions = {61, 62, 63, 64, 65, 0, 1, 2};
  std::vector<RowSegment> segments = {{0, 5, 0}, {5, 3, 2}};
  std::vector<RowTile> tiles = {{0, 0, 5}, {1, 5, 3}};
  std::vector<PageId> page_tables = {7, 2, 4};
  std::vector<KvCopy> copies;
  std::vector<float> qkv, q_norm, k_norm, cos, sin;
  bool normed = false;

  std::vector<Element> q, pages;
  std::vector<uint8_t> fault;

  Problem(const KernelTable& kernels, int dim) : head_dim(dim), layout{kLayers, kKvHeads, dim, kernels.kv_packing} {
    qkv = random_normal(num_rows() * row_width(), 2.0f, 1);
    q_norm = random_normal(static_cast<size_t>(dim), 1.0f, 2);
    k_norm = random_normal(static_cast<size_t>(dim), 1.0f, 3);
    cos.resize(num_rows() * static_cast<size_t>(dim / 2));
    sin.resize(cos.size());
    std::vector<float> inv_freq;
    for (int i = 0; i < dim / 2; ++i) inv_freq.push_back(static_cast<float>(pow64(10000.0, -2.0 * i / dim)));
    ThreadPool pool(1);
    rope_table({static_cast<int32_t>(num_rows()), dim / 2, positions.data(), inv_freq.data(), 1.0f, cos.data(), sin.data()},
               pool);
  }

  size_t num_rows() const { return positions.size(); }
  size_t row_width() const { return static_cast<size_t>((kHeads + 2 * kKvHeads) * head_dim); }
  // Element i of head h of row r: the query heads, then the k heads, then the v heads.
  float& at(size_t r, int h, int i) { return qkv[r * row_width() + static_cast<size_t>(h * head_dim + i)]; }
  PageId page_of(size_t r) const { return r < 5 ? page_tables[static_cast<size_t>(positions[r] / 64)] : page_tables[2]; }
  size_t k_index(size_t r, int h, int i) const {
    return static_cast<size_t>(page_of(r) * layout.page_elements() + layout.k_offset(kLayer, h) +
                               layout.k_index(positions[r] % 64, i));
  }
  size_t v_index(size_t r, int h, int i) const {
    return static_cast<size_t>(page_of(r) * layout.page_elements() + layout.v_offset(kLayer, h) +
                               layout.v_index(positions[r] % 64, i));
  }

  void run(const KernelTable& kernels, int threads = 1) {
    q = untouched(num_rows() * static_cast<size_t>(kHeads * head_dim));
    pages = untouched(static_cast<size_t>(kPages * layout.page_elements()));
    fault.assign(num_rows(), 0);
    RowBatch rows{};
    rows.num_rows = static_cast<int32_t>(num_rows());
    rows.num_segments = static_cast<int32_t>(segments.size());
    rows.num_tiles = static_cast<int32_t>(tiles.size());
    rows.positions = positions.data();
    rows.segments = segments.data();
    rows.tiles = tiles.data();
    rows.page_tables = page_tables.data();
    rows.num_copies = static_cast<int32_t>(copies.size());
    rows.copies = copies.data();
    RopeAppendParams p{};
    p.rows = &rows;
    p.layer = kLayer;
    p.num_heads = kHeads;
    p.layout = layout;
    p.qkv = qkv.data();
    p.q_norm = normed ? q_norm.data() : nullptr;
    p.k_norm = normed ? k_norm.data() : nullptr;
    p.norm_eps = 1e-6f;
    p.cos = cos.data();
    p.sin = sin.data();
    p.q = q.data();
    p.pages = pages.data();
    p.fault = fault.data();
    ThreadPool pool(threads);
    kernels.rope_append(p, pool);
  }

  // Head h of row r in float64.
  std::vector<double> rotated(size_t r, int h, const std::vector<float>& norm) {
    std::vector<double> x;
    for (int i = 0; i < head_dim; ++i) x.push_back(at(r, h, i));
    if (normed) {
      double sum = 0.0;
      for (const double v : x) sum += v * v;
      for (int i = 0; i < head_dim; ++i)
        x[static_cast<size_t>(i)] *= norm[static_cast<size_t>(i)] / std::sqrt(sum / head_dim + static_cast<double>(1e-6f));
    }
    const size_t half = static_cast<size_t>(head_dim / 2);
    std::vector<double> out(2 * half);
    for (size_t i = 0; i < half; ++i) {
      const double c = cos[r * half + i], s = sin[r * half + i];
      out[i] = x[i] * c - x[i + half] * s;
      out[i + half] = x[i + half] * c + x[i] * s;
    }
    return out;
  }
};

class RopeAppend : public PathTest {};
OTR_TEST_ALL_PATHS(RopeAppend);

class RopeAppendVector : public PathTest {};
OTR_TEST_VECTOR_PATHS(RopeAppendVector);

TEST_P(RopeAppend, WritesRotatedQueriesAndKeysAndValuesWhereThePackingSaysAndNothingElse) {
  for (const int dim : kHeadDims) {
    for (const bool normed : {false, true}) {
      Problem problem(*kernels, dim);
      problem.normed = normed;
      problem.run(*kernels);

      std::vector<double> q;
      std::vector<Element> page_image = untouched(problem.pages.size());
      std::vector<double> expected(problem.pages.size(), static_cast<double>(to_float(page_image[0])));
      for (size_t r = 0; r < problem.num_rows(); ++r) {
        for (int h = 0; h < kHeads; ++h) {
          const std::vector<double> head = problem.rotated(r, h, problem.q_norm);
          q.insert(q.end(), head.begin(), head.end());
        }
        for (int h = 0; h < kKvHeads; ++h) {
          const std::vector<double> k = problem.rotated(r, kHeads + h, problem.k_norm);
          for (int i = 0; i < dim; ++i) {
            expected[problem.k_index(r, h, i)] = k[static_cast<size_t>(i)];
            expected[problem.v_index(r, h, i)] = to_float(to_element(problem.at(r, kHeads + kKvHeads + h, i)));
          }
        }
      }
      // Half a bf16 ulp; where a rotation cancels, float32 roundings of its terms, which are below 40 here.
      EXPECT_TRUE(all_near(problem.q, q, kBf16Rounding, 1e-5)) << dim << normed;
      EXPECT_TRUE(all_near(problem.pages, expected, kBf16Rounding, 1e-5)) << dim << normed;
      for (size_t i = 0; i < expected.size(); ++i) {  // slots of other rows, heads, layers and pages keep their bits
        if (expected[i] == static_cast<double>(to_float(page_image[0]))) {
          ASSERT_EQ(bits_of(problem.pages[i]), bits_of(page_image[i])) << i;
        }
      }
      EXPECT_EQ(problem.fault, std::vector<uint8_t>(problem.num_rows(), 0));
    }
  }
}

TEST_P(RopeAppendVector, WithoutNormsHasTheBitsOfTheDefinition) {
  for (const int dim : kHeadDims) {
    Problem problem(*kernels, dim), definition(*kernels, dim);
    problem.run(*kernels);
    definition.run(*find_path("cpu-scalar"));
    EXPECT_TRUE(same_bits(problem.q, definition.q)) << dim;
    EXPECT_TRUE(same_bits(problem.pages, definition.pages)) << dim;
  }
}

// A row with copies has the same bits in the same slot of the other pages, and nothing else there changes.
TEST_P(RopeAppend, CopiesStandInTheSameSlotOfOtherPages) {
  for (const int dim : kHeadDims) {
    Problem plain(*kernels, dim), copied(*kernels, dim);
    plain.run(*kernels);
    copied.copies = {{2, 7, 1}, {2, 7, 3}, {3, 2, 5}, {6, 4, 1}};
    for (const int threads : {1, 3}) {
      copied.run(*kernels, threads);
      std::vector<Element> expected = plain.pages;
      for (const KvCopy& c : copied.copies) {
        const size_t r = static_cast<size_t>(c.row);
        const size_t shift = static_cast<size_t>((c.to - c.from) * copied.layout.page_elements());
        for (int h = 0; h < kKvHeads; ++h) {
          for (int i = 0; i < dim; ++i) {
            expected[plain.k_index(r, h, i) + shift] = plain.pages[plain.k_index(r, h, i)];
            expected[plain.v_index(r, h, i) + shift] = plain.pages[plain.v_index(r, h, i)];
          }
        }
      }
      EXPECT_TRUE(same_bits(copied.pages, expected)) << dim << " threads " << threads;
    }
  }
}

TEST_P(RopeAppend, ValuesAreRoundedToNearestEven) {
  const uint32_t patterns[] = {0x3f808000u, 0x3f818000u, 0xbf808000u, 0xbf818000u, 0x3f808001u, 0x3f807fffu,
                               0x00008000u, 0x00018000u, 0x00000001u, 0x807fffffu, 0x80000000u, 0x7f7f7fffu,
                               0x3fffffffu, 0x40008000u, 0x00800000u, 0x33d70a3du};
  Problem problem(*kernels, 32);
  for (int i = 0; i < 32; ++i) problem.at(1, kHeads + kKvHeads, i) = float_from_bits(patterns[i % 16]);
  problem.run(*kernels);
  for (int i = 0; i < 32; ++i) {
    EXPECT_EQ(bits_of(problem.pages[problem.v_index(1, 0, i)]), bits_of(to_element(float_from_bits(patterns[i % 16])))) << i;
  }
}

TEST_P(RopeAppend, DependsOnNeitherTilesNorThreads) {
  Problem one(*kernels, 64);
  one.normed = true;
  one.run(*kernels);
  for (int threads = 1; threads <= 4; ++threads) {
    Problem split(*kernels, 64);
    split.normed = true;
    split.tiles = {{0, 0, 1}, {0, 1, 3}, {0, 4, 1}, {1, 5, 1}, {1, 6, 1}, {1, 7, 1}};
    split.run(*kernels, threads);
    EXPECT_TRUE(same_bits(split.q, one.q)) << threads;
    EXPECT_TRUE(same_bits(split.pages, one.pages)) << threads;
  }
}

TEST_P(RopeAppend, ANonFiniteKeyOrValueIsStoredAsZeroAndFaultsItsRowOnly) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  for (const float bad :
       {kInf, -kInf, std::numeric_limits<float>::quiet_NaN(), 3.3962e38f, -3.4e38f}) {  // the last two overflow bf16
    Problem clean(*kernels, 32), dirty(*kernels, 32);
    clean.run(*kernels);
    dirty.at(2, kHeads + kKvHeads + 1, 17) = bad;  // v of row 2
    dirty.at(5, kHeads, 3) = bad;                  // k of row 5, at position 0: the rotation is the identity
    dirty.run(*kernels);
    EXPECT_EQ(dirty.fault, (std::vector<uint8_t>{0, 0, 1, 0, 0, 1, 0, 0})) << bad;
    EXPECT_EQ(bits_of(dirty.pages[dirty.v_index(2, 1, 17)]), 0u) << bad;
    EXPECT_EQ(bits_of(dirty.pages[dirty.k_index(5, 0, 3)]), 0u) << bad;
    for (const Element e : dirty.pages) ASSERT_TRUE(std::isfinite(to_float(e))) << bad;
    for (size_t r = 0; r < clean.num_rows(); ++r) {
      if (r == 2 || r == 5) continue;
      for (int h = 0; h < kKvHeads; ++h) {
        for (int i = 0; i < 32; ++i) {
          ASSERT_EQ(bits_of(dirty.pages[dirty.k_index(r, h, i)]), bits_of(clean.pages[clean.k_index(r, h, i)]));
          ASSERT_EQ(bits_of(dirty.pages[dirty.v_index(r, h, i)]), bits_of(clean.pages[clean.v_index(r, h, i)]));
        }
      }
    }
    EXPECT_TRUE(same_bits(dirty.q, clean.q)) << bad;
  }
}

TEST_P(RopeAppend, TheLargestBf16IsNoFault) {
  Problem problem(*kernels, 32);
  problem.at(2, kHeads + kKvHeads, 4) = 3.3895e38f;
  problem.at(3, 1, 4) = std::numeric_limits<float>::quiet_NaN();  // a query reaches no other row
  problem.run(*kernels);
  EXPECT_EQ(problem.fault, std::vector<uint8_t>(problem.num_rows(), 0));
  EXPECT_EQ(to_float(problem.pages[problem.v_index(2, 0, 4)]), to_float(to_element(3.3895e38f)));
}

TEST(RopeAppendPaths, Avx2AndAvx512Agree) {
  const KernelTable *a = find_path("cpu-avx2"), *b = find_path("cpu-avx512");
  if (a == nullptr || b == nullptr) GTEST_SKIP() << "needs both vector paths";
  for (const int dim : kHeadDims) {
    Problem x(*a, dim), y(*b, dim);
    x.normed = y.normed = true;
    x.run(*a);
    y.run(*b);
    EXPECT_TRUE(same_bits(x.q, y.q)) << dim;
    EXPECT_TRUE(same_bits(x.pages, y.pages)) << dim;
  }
}

class RopeTable : public PathTest {};
OTR_TEST_ALL_PATHS(RopeTable);

TEST_P(RopeTable, IsTheCosineOfTheFloat32Angle) {
  constexpr int kHalf = 16;
  const std::vector<int32_t> positions = {0, 1, 63, 4097, 131071};
  std::vector<float> inv_freq;
  for (int i = 0; i < kHalf; ++i) inv_freq.push_back(static_cast<float>(pow64(1e6, -i / 16.0)));
  for (const float scale : {1.0f, 1.25f}) {
    std::vector<float> cos(positions.size() * kHalf), sin(cos.size());
    ThreadPool pool(2);
    kernels->rope_table(
        {static_cast<int32_t>(positions.size()), kHalf, positions.data(), inv_freq.data(), scale, cos.data(), sin.data()},
        pool);
    for (size_t r = 0; r < positions.size(); ++r) {
      for (size_t i = 0; i < kHalf; ++i) {
        const float angle = inv_freq[i] * static_cast<float>(positions[r]);
        EXPECT_NEAR(cos[r * kHalf + i], scale * std::cos(static_cast<double>(angle)), 1.3e-7) << positions[r] << " " << i;
        EXPECT_NEAR(sin[r * kHalf + i], scale * std::sin(static_cast<double>(angle)), 1.3e-7) << positions[r] << " " << i;
      }
    }
  }
}

}  // namespace
}  // namespace otr::rope_append_test
