#include "graph/row_batch_builder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

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
  EXPECT_EQ(builder.add(token, 5, pages_b, 6), 3);     // wants none
  const RowBatch b = builder.batch();
  EXPECT_EQ(b.num_rows, 8);
  EXPECT_EQ(std::vector<int32_t>(b.token_ids, b.token_ids + 8), (std::vector<int32_t>{5, 6, 7, 8, 9, 10, 42, 42}));
  EXPECT_EQ(std::vector<int32_t>(b.positions, b.positions + 8), (std::vector<int32_t>{60, 61, 62, 63, 64, 65, 127, 5}));
  ASSERT_EQ(b.num_logit_rows, 3);
  EXPECT_EQ(std::vector<int32_t>(b.logit_rows, b.logit_rows + 3), (std::vector<int32_t>{4, 5, 6}));
  ASSERT_EQ(b.num_segments, 3);
  EXPECT_EQ(std::vector<PageId>(b.page_tables, b.page_tables + 5), (std::vector<PageId>{3, 1, 7, 9, 7}));  // only pages in reach
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
  RowBatchBuilder builder({.max_rows = 400, .max_segments = 16, .max_logit_rows = 400, .max_pages_per_sequence = 10, .max_copies = 8}, 4);
  const std::vector<int32_t> token = {42}, draft = {1, 2, 3}, other = {8, 9};
  const std::vector<PageId> pages = {3, 1, 4}, own = {7, 5};
  EXPECT_EQ(builder.add(token, 126, pages, 126, draft), 0);       // positions 126 … 129
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

}  // namespace
}  // namespace otr
