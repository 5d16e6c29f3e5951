#include "graph/row_batch_builder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "kernels/attention/attention.h"
#include "kernels/page/page.h"

namespace otr {
namespace {

constexpr RowLimits kLimits{.max_rows = 400, .max_segments = 16, .max_logit_rows = 400, .max_pages_per_sequence = 10};

TEST(RowBatchBuilder, DescribesWhatWasAdded) {
  RowBatchBuilder builder(kLimits, 4);
  const std::vector<int32_t> prompt = {5, 6, 7, 8, 9, 10}, token = {42};
  const std::vector<PageId> pages_a = {3, 1, 4}, pages_b = {7, 9};
  EXPECT_EQ(builder.add(prompt, 60, pages_a, 64), 0);  // positions 60 … 65 on pages 3 and 1; the last two want logits
  EXPECT_EQ(builder.add(token, 127, pages_b, 127), 2);
  EXPECT_EQ(builder.add(token, 5, pages_b, 6), 3);  // wants none
  const RowBatch b = builder.batch();
  EXPECT_EQ(b.num_rows, 8);
  EXPECT_EQ(std::vector<int32_t>(b.token_ids, b.token_ids + 8), (std::vector<int32_t>{5, 6, 7, 8, 9, 10, 42, 42}));
  EXPECT_EQ(std::vector<int32_t>(b.positions, b.positions + 8), (std::vector<int32_t>{60, 61, 62, 63, 64, 65, 127, 5}));
  ASSERT_EQ(b.num_logit_rows, 3);
  EXPECT_EQ(std::vector<int32_t>(b.logit_rows, b.logit_rows + 3), (std::vector<int32_t>{4, 5, 6}));
  ASSERT_EQ(b.num_segments, 3);
  EXPECT_EQ(std::vector<PageId>(b.page_tables, b.page_tables + 5),
            (std::vector<PageId>{3, 1, 7, 9, 7}));  // only pages in reach
  EXPECT_EQ(b.segments[1].first_page, 2);
  EXPECT_EQ(b.segments[2].first_page, 4);
  ASSERT_EQ(b.num_tiles, 4);
  EXPECT_EQ(b.tiles[0].num_rows, 4);
  EXPECT_EQ(b.tiles[1].num_rows, 2);
  builder.clear();
  EXPECT_EQ(builder.batch().num_rows, 0);
  EXPECT_EQ(builder.batch().num_tiles, 0);
  EXPECT_EQ(builder.add(token, 0, pages_b, 0), 0);
}

TEST(RowBatchBuilder, ADraftContinuesItsRunAndItsPathsHavePagesOfTheirOwn) {
  RowBatchBuilder builder(
      {.max_rows = 400, .max_segments = 16, .max_logit_rows = 400, .max_pages_per_sequence = 10, .max_copies = 8}, 4);
  const std::vector<int32_t> token = {42}, draft = {1, 2, 3}, other = {8, 9};
  const std::vector<PageId> pages = {3, 1, 4}, own = {7, 5};
  EXPECT_EQ(builder.add(token, 126, pages, 126, draft), 0);      // positions 126 … 129
  builder.add_path(other, 128, std::span(pages).first(1), own);  // leaves it after position 127
  builder.add_copy(0, 7);
  builder.add_copy(1, 7);
  builder.add_copy(3, 5);
  const RowBatch b = builder.batch();
  EXPECT_EQ(std::vector<int32_t>(b.token_ids, b.token_ids + b.num_rows), (std::vector<int32_t>{42, 1, 2, 3, 8, 9}));
  EXPECT_EQ(std::vector<int32_t>(b.positions, b.positions + b.num_rows), (std::vector<int32_t>{126, 127, 128, 129, 128, 129}));
  EXPECT_EQ(std::vector<int32_t>(b.logit_rows, b.logit_rows + b.num_logit_rows), (std::vector<int32_t>{0, 1, 2, 3, 4, 5}));
  ASSERT_EQ(b.num_segments, 2);
  EXPECT_EQ(std::vector<PageId>(b.page_tables + b.segments[1].first_page, b.page_tables + b.segments[1].first_page + 3),
            (std::vector<PageId>{3, 7, 5}));
  ASSERT_EQ(b.num_copies, 3);
  EXPECT_EQ(b.copies[0].row, 0);
  EXPECT_EQ(b.copies[0].from, 1);
  EXPECT_EQ(b.copies[0].to, 7);
  EXPECT_EQ(b.copies[2].from, 4);  // position 129
  EXPECT_EQ(b.copies[2].to, 5);
}

// Random batches: segments and tiles cover every row exactly once, in order, and no tile crosses a segment.
TEST(RowBatchBuilder, SegmentsAndTilesCoverEveryRowOnce) {
  std::mt19937 random(1);
  const auto below = [&random](int32_t n) { return static_cast<int32_t>(random() % static_cast<uint32_t>(n)); };
  for (int round = 0; round < 300; ++round) {
    const int32_t tile_rows = 1 + below(16);
    RowBatchBuilder builder(kLimits, tile_rows);
    const std::vector<PageId> pages = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
    const std::vector<int32_t> tokens(25, 1);
    int32_t wanted_logits = 0;
    for (int32_t n = 1 + below(16); n > 0; --n) {
      const int32_t size = 1 + below(25), begin = below(600), from = begin + below(30);
      EXPECT_EQ(builder.add(std::span(tokens).first(static_cast<size_t>(size)), begin, pages, from), wanted_logits);
      wanted_logits += std::max(0, begin + size - from);
    }
    const RowBatch b = builder.batch();
    EXPECT_EQ(b.num_logit_rows, wanted_logits);
    EXPECT_TRUE(std::is_sorted(b.logit_rows, b.logit_rows + b.num_logit_rows));
    int32_t row = 0;
    for (int32_t s = 0; s < b.num_segments; ++s) {
      ASSERT_EQ(b.segments[s].first_row, row);
      row += b.segments[s].num_rows;
      for (int32_t r = b.segments[s].first_row + 1; r < row; ++r) ASSERT_EQ(b.positions[r], b.positions[r - 1] + 1);
      ASSERT_EQ(b.page_tables[b.segments[s].first_page], 0);
    }
    EXPECT_EQ(row, b.num_rows);
    row = 0;
    for (int32_t t = 0; t < b.num_tiles; ++t) {
      const RowTile& tile = b.tiles[t];
      const RowSegment& segment = b.segments[tile.segment];
      ASSERT_EQ(tile.first_row, row);
      ASSERT_TRUE(tile.num_rows >= 1 && tile.num_rows <= tile_rows);
      ASSERT_GE(tile.first_row, segment.first_row);
      row += tile.num_rows;
      ASSERT_LE(row, segment.first_row + segment.num_rows);
    }
    EXPECT_EQ(row, b.num_rows);
  }
}

// Tiles that share their first pages are bundled as far as they fit and as it saves reading.
TEST(RowBatchBuilder, TilesThatBeginAlikeAreBundled) {
  RowBatchBuilder builder({.max_rows = 64, .max_segments = 16, .max_logit_rows = 64, .max_pages_per_sequence = 40}, 4);
  const std::vector<int32_t> token = {1}, three = {1, 2, 3};
  const auto pages = [](int32_t shared, int32_t own) {  // `shared` pages that all have, then `own`, own + 1, …
    std::vector<PageId> table;
    for (int32_t i = 0; i < 40; ++i) table.push_back(i < shared ? i : own + i);
    return table;
  };
  builder.add(token, 1100, pages(16, 100), 1100);
  builder.add(token, 1030, pages(16, 200), 1030);  // 1024 keys in common
  builder.add(token, 1030, pages(14, 300), 1030);  // 896, three whole splits: with it, the task would be too long
  builder.add(three, 1100, pages(16, 400), 1100);  // 896 in common with the last
  builder.add(token, 1100, pages(3, 500), 1100);   // 192 keys in common: not one split
  builder.add(token, 2000, pages(5, 600), 2000);   // nor here
  builder.add(token, 2000, pages(8, 700), 2000);   // 256 keys in common with the last: too few
  builder.add(token, 2000, pages(30, 800), 2000);  // 512
  builder.add(token, 2000, pages(30, 900), 2000);  // 1920, of which whole splits are 1792
  const RowBatch b = builder.batch();
  std::vector<std::vector<int32_t>> bundles;
  for (int32_t i = 0; i < b.num_bundles; ++i)
    bundles.push_back({b.bundles[i].first_tile, b.bundles[i].num_tiles, b.bundles[i].shared_keys});
  EXPECT_EQ(bundles,
            (std::vector<std::vector<int32_t>>{{0, 2, 1024}, {2, 2, 768}, {4, 1, 0}, {5, 1, 0}, {6, 1, 0}, {7, 2, 1792}}));
}

// Random batches of random prefixes: bundles cover every tile once, fit, and what they share they do share.
TEST(RowBatchBuilder, BundlesHoldTheirWord) {
  std::mt19937 random(2);
  const auto below = [&random](int32_t n) { return static_cast<int32_t>(random() % static_cast<uint32_t>(n)); };
  int32_t shared_ever = 0;
  for (int round = 0; round < 300; ++round) {
    const int32_t tile_rows = 1 + below(16);
    RowBatchBuilder builder({.max_rows = 400, .max_segments = 32, .max_logit_rows = 400, .max_pages_per_sequence = 30},
                            tile_rows);
    for (int32_t n = 1 + below(16); n > 0; --n) {
      std::vector<PageId> table(30);
      const int32_t common = below(30);
      for (int32_t i = 0; i < 30; ++i) table[static_cast<size_t>(i)] = i < common ? i : 1000 * n + i;
      const std::vector<int32_t> tokens(static_cast<size_t>(1 + below(6)), 1);
      builder.add(tokens, below(1900), table, 0);
      if (below(2) == 0) builder.add_path(tokens, 1000, std::span(table).first(15), std::vector<PageId>{9000 + n, 9100 + n});
    }
    const RowBatch b = builder.batch();
    int32_t tile = 0;
    for (int32_t i = 0; i < b.num_bundles; ++i) {
      const TileBundle& bundle = b.bundles[i];
      ASSERT_EQ(bundle.first_tile, tile);
      ASSERT_GE(bundle.num_tiles, 1);
      tile += bundle.num_tiles;
      const RowTile &first = b.tiles[bundle.first_tile], &last = b.tiles[tile - 1];
      ASSERT_LE(last.first_row + last.num_rows - first.first_row, tile_rows);
      ASSERT_EQ(bundle.shared_keys % kAttentionSplit, 0);
      ASSERT_EQ(bundle.shared_keys == 0, bundle.num_tiles == 1);
      for (int32_t t = bundle.first_tile; t < tile; ++t) {
        ASSERT_GE((b.positions[b.tiles[t].first_row + b.tiles[t].num_rows - 1] / kPageTokens + 1) * kPageTokens,
                  bundle.shared_keys);
        const auto table = [&b](const RowTile& of) { return b.page_tables + b.segments[of.segment].first_page; };
        ASSERT_TRUE(std::equal(table(first), table(first) + bundle.shared_keys / kPageTokens, table(b.tiles[t])));
      }
      shared_ever += bundle.num_tiles > 1;
    }
    ASSERT_EQ(tile, b.num_tiles);
  }
  EXPECT_GT(shared_ever, 100);
}

}  // namespace
}  // namespace otr
