// Units that threads share in pieces.
#include "kernels/attention/attention_deal.h"

#include <numeric>
#include <random>

#include "tests/kernels/attention_problem.h"

namespace otr::attention_pieces_test {
namespace {

using namespace testing_util;
using Problem = AttentionProblem;
using Heads = AttentionHeads;
using Span = AttentionSpan;

// A batch of decoding rows, one of each sequence, that ends at `keys`.
struct Decoding {
  std::vector<int32_t> positions;
  std::vector<RowTile> tiles;
  std::vector<TileBundle> bundles;
  RowBatch batch = {};

  explicit Decoding(const std::vector<int>& keys) {
    for (size_t i = 0; i < keys.size(); ++i) {
      const int32_t row = static_cast<int32_t>(i);
      positions.push_back(keys[i] - 1);
      tiles.push_back({row, row, 1});
      bundles.push_back({row, 1, 0});
    }
    batch.num_rows = batch.num_segments = batch.num_tiles = batch.num_bundles = static_cast<int32_t>(keys.size());
    batch.positions = positions.data();
    batch.tiles = tiles.data();
    batch.bundles = bundles.data();
  }
};

constexpr AttentionPieceLimits kLimits = {1, 16, false};

AttentionDeal deal_of(const std::vector<int>& keys, int heads, int threads, AttentionPieceLimits limits = kLimits) {
  AttentionDeal deal;
  attention_deal(Decoding(keys).batch, heads, threads, limits, &deal);
  return deal;
}

TEST(AttentionDeal, CutsWhatWouldKeepOneThreadBusyAlone) {
  EXPECT_EQ(deal_of({8192}, 1, 2).num_cuts, 1);
  EXPECT_EQ(deal_of({8192}, 2, 2).num_cuts, 0) << "a KV head for each thread";
  EXPECT_EQ(deal_of({8192}, 2, 3).num_cuts, 1);
  EXPECT_EQ(deal_of({8192}, 1, 1).num_cuts, 0) << "one thread";
  EXPECT_EQ(deal_of({256}, 1, 8).num_cuts, 0) << "one split";
  EXPECT_EQ(deal_of({1024, 1024, 1024, 1024}, 1, 2).num_cuts, 0) << "even as they are";
  EXPECT_EQ(deal_of({4096, 4096, 4096}, 1, 2).num_cuts, 3) << "two for one thread, one for the other";
  EXPECT_EQ(deal_of(std::vector<int>(9, 8192), 8, 64).num_cuts, 9) << "72 units, of which 8 would come after the others";
  EXPECT_EQ(deal_of(std::vector<int>(256, 600), 2, 2).num_cuts, 0) << "many";
  const AttentionDeal deal = deal_of({300, 32768, 200, 100}, 1, 2);
  ASSERT_EQ(deal.num_cuts, 1);
  EXPECT_EQ(deal.cuts[0].bundle, 1);
  EXPECT_EQ(deal.piece_splits, 16);
  EXPECT_EQ(deal.num_piece_tasks, 8);
}

TEST(AttentionDeal, LeavesWholeWhatIsTooShortOrBundled) {
  EXPECT_EQ(deal_of({512}, 1, 2, {4, 16, false}).num_cuts, 0);
  EXPECT_EQ(deal_of({1280}, 1, 2, {4, 16, false}).num_cuts, 1);
  Decoding two({8192, 8192});
  two.bundles = {{0, 2, 4096}};
  two.batch.num_bundles = 1;
  two.batch.bundles = two.bundles.data();
  AttentionDeal deal, of_keys;
  attention_deal(two.batch, 1, 2, kLimits, &deal);
  attention_deal(two.batch, 1, 2, {8, 8, true}, &of_keys);
  ASSERT_EQ(deal.num_cuts, 1);
  EXPECT_EQ(deal.cuts[0].num_pieces * deal.piece_splits, 48) << "16 shared splits, 16 of each";
  ASSERT_EQ(of_keys.num_cuts, 1);
  EXPECT_EQ(of_keys.cuts[0].num_pieces, 4) << "8192 positions";
}

TEST(AttentionDeal, CutsTheLongestWhereverTheyAre) {
  std::vector<int> keys(70, 9 * 256);
  keys.push_back(512 * 256);
  const AttentionDeal deal = deal_of(keys, 1, 64);
  ASSERT_EQ(deal.num_cuts, 1);
  EXPECT_EQ(deal.cuts[0].bundle, 70);
  EXPECT_EQ(deal.cuts[0].num_pieces, 32);
}

// Pieces cover a cut unit; there are no more units in pieces than have room; and what is left whole is short.
TEST(AttentionDeal, HoldsItsLimitsOnRandomBatches) {
  std::mt19937 random(7);
  int cut = 0;
  for (int round = 0; round < 3000; ++round) {
    std::vector<int> keys(1 + random() % 100);
    for (int& k : keys) k = 1 + static_cast<int>(random() % (random() % 4 == 0 ? 60000 : 900));
    const int heads = 1 + static_cast<int>(random() % 8), threads = 1 + static_cast<int>(random() % 70);
    const AttentionDeal deal = deal_of(keys, heads, threads);
    ASSERT_LE(deal.num_cuts, AttentionDeal::kMostCuts);
    ASSERT_LE(deal.num_cuts * heads, AttentionDeal::kMostUnitsPerThread * threads);
    int next_task = 0, bundle = -1;
    for (int i = 0; i < deal.num_cuts; ++i) {
      const AttentionCut& c = deal.cuts[i];
      ASSERT_GT(c.bundle, bundle);
      bundle = c.bundle;
      ASSERT_EQ(c.first_task, next_task);
      next_task += heads * c.num_pieces;
      const int splits = divide_up(keys[static_cast<size_t>(bundle)], kAttentionSplit);
      ASSERT_GE(c.num_pieces * deal.piece_splits, splits);
      ASSERT_LT((c.num_pieces - 1) * deal.piece_splits, splits);
      ASSERT_GT(c.num_pieces, 1);
    }
    ASSERT_EQ(deal.num_piece_tasks, next_task);
    if (deal.num_cuts == 0) continue;
    ++cut;
    int64_t total = 0;
    for (const int k : keys) total += divide_up(k, kAttentionSplit);
    const int most = std::min(AttentionDeal::kMostCuts, AttentionDeal::kMostUnitsPerThread * threads / heads);
    for (int b = 0, next = 0; b < static_cast<int>(keys.size()); ++b) {
      if (next < deal.num_cuts && deal.cuts[next].bundle == b) {
        ++next;
        continue;
      }
      const int splits = divide_up(keys[static_cast<size_t>(b)], kAttentionSplit);
      ASSERT_TRUE(splits <= std::max(total * heads / (2 * threads), total / most) || splits <= deal.piece_splits)
          << splits << " of " << total << ", " << heads << " heads, " << threads << " threads";
    }
  }
  EXPECT_GT(cut, 500);
  EXPECT_LT(cut, 2500);
}

class AttentionPieces : public PathTest {};
OTR_TEST_VECTOR_PATHS(AttentionPieces);

// One thread takes whole units; more share them.
TEST_P(AttentionPieces, ThreadsShareLongUnitsWithoutATrace) {
  struct Case {
    Heads heads;
    std::vector<int> lengths;
    std::vector<Span> spans;
  };
  std::vector<Case> cases = {{{7, 1, 32}, {9000}, {{0, 8999, 1}}}, {{2, 1, 64}, {700}, {{0, 690, 10}}}};
  if (kernels->kv_packing == KvPacking::kRows) cases.push_back({{3, 1, 18}, {4500}, {{0, 4495, 3}}});
  if (!kSanitized) {
    cases.push_back({{2, 1, 80}, {4500}, {{0, 4499, 1}}});
    cases.push_back({{130, 1, 16}, {4500}, {{0, 4498, 2}}});
    cases.push_back({{14, 2, 64}, {5200, 40}, {{0, 5196, 4}, {1, 39, 1}}});
    cases.push_back({{20, 1, 32}, {4097, 8200, 3}, {{0, 4096, 1}, {1, 8195, 3}, {2, 0, 2}}});
    cases.push_back({{3, 1, 32}, {12500}, {{0, 8190, 5}, {0, 12490, 8}}});
  }
  for (const Case& c : cases) {
    const Problem problem(*kernels, c.heads, c.lengths);
    const std::vector<Element> whole = problem.run(*kernels, c.spans, 1);
    for (const int threads : {2, 3, 5, 8}) {
      for (int again = 0; again < (kSanitized ? 1 : 4); ++again) {
        ASSERT_TRUE(same_bits(problem.run(*kernels, c.spans, threads), whole))
            << threads << " threads, " << c.heads.num_heads << " heads, " << c.lengths[0] << " keys";
      }
    }
  }
}

}  // namespace
}  // namespace otr::attention_pieces_test
