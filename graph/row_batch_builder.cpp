#include "graph/row_batch_builder.h"

#include <algorithm>

#include "kernels/attention/attention.h"
#include "kernels/page/page.h"

namespace otr {

RowBatchBuilder::RowBatchBuilder(const RowLimits& limits, int32_t tile_rows) : tile_rows_(tile_rows) {
  const auto n = [](int32_t size) { return static_cast<size_t>(size); };
  token_ids_.reserve(n(limits.max_rows));
  positions_.reserve(n(limits.max_rows));
  logit_rows_.reserve(n(limits.max_logit_rows));
  segments_.reserve(n(limits.max_segments));
  tiles_.reserve(n(limits.max_rows));
  bundles_.reserve(n(limits.max_rows));
  copies_.reserve(n(limits.max_copies));
  page_tables_.reserve(n(limits.max_segments) * n(limits.max_pages_per_sequence));
}

void RowBatchBuilder::clear() {
  token_ids_.clear();
  positions_.clear();
  logit_rows_.clear();
  segments_.clear();
  tiles_.clear();
  bundles_.clear();
  page_tables_.clear();
  copies_.clear();
}

// The rows [first_row, first_row + num_rows), in tiles. Their positions and pages are there.
void RowBatchBuilder::add_segment(int32_t first_row, int32_t num_rows, int32_t first_page) {
  const int32_t segment = static_cast<int32_t>(segments_.size());
  segments_.push_back({first_row, num_rows, first_page});
  for (int32_t i = 0; i < num_rows; i += tile_rows_) {
    tiles_.push_back({segment, first_row + i, std::min(tile_rows_, num_rows - i)});
    bundle_last_tile();
  }
}

// Bundles the last tile with those before it where it has room and the keys to read become fewer, but no task gets longer than
// the longest tile alone by more than a quarter: on a machine of many threads they would otherwise wait for it.
void RowBatchBuilder::bundle_last_tile() {
  const int32_t index = static_cast<int32_t>(tiles_.size()) - 1;
  const RowTile& tile = tiles_.back();
  if (!bundles_.empty()) {
    TileBundle& last = bundles_.back();
    const int32_t rows = tile.first_row + tile.num_rows - tiles_[static_cast<size_t>(last.first_tile)].first_row;
    const int32_t shared = rows <= tile_rows_ ? shared_keys(last, tile) : 0;
    int64_t all = shared, longest = 0;
    for (int32_t t = last.first_tile; t <= index; ++t) {
      const int32_t keys = num_keys(tiles_[static_cast<size_t>(t)]);
      all += std::max(0, keys - shared);
      longest = std::max<int64_t>(longest, keys);
    }
    if (shared > 0 && 4 * all <= 5 * longest) {
      ++last.num_tiles;
      last.shared_keys = shared;
      return;
    }
  }
  bundles_.push_back({index, 1, 0});
}

// Keys, in whole splits, that a bundle with one more tile would share.
int32_t RowBatchBuilder::shared_keys(const TileBundle& bundle, const RowTile& tile) const {
  const RowTile& first = tiles_[static_cast<size_t>(bundle.first_tile)];
  const auto pages = [&](const RowTile& t) {
    const auto begin = page_tables_.begin() + segments_[static_cast<size_t>(t.segment)].first_page;
    return std::span<const PageId>(begin, begin + (num_keys(t) + kPageTokens - 1) / kPageTokens);
  };
  std::span<const PageId> mine = pages(tile), theirs = pages(first);
  if (bundle.num_tiles > 1)
    theirs = theirs.first(
        static_cast<size_t>(std::min<int32_t>(bundle.shared_keys / kPageTokens, static_cast<int32_t>(theirs.size()))));
  const auto common = std::mismatch(mine.begin(), mine.end(), theirs.begin(), theirs.end()).first - mine.begin();
  return static_cast<int32_t>(common) * kPageTokens / kAttentionSplit * kAttentionSplit;
}

int32_t RowBatchBuilder::add(std::span<const int32_t> tokens, int32_t begin, std::span<const PageId> pages, int32_t logits_from,
                             std::span<const int32_t> draft) {
  const int32_t first_row = static_cast<int32_t>(token_ids_.size());
  const int32_t num_rows = static_cast<int32_t>(tokens.size() + draft.size());
  const int32_t first_logit = static_cast<int32_t>(logit_rows_.size());
  const int32_t first_page = static_cast<int32_t>(page_tables_.size());
  const size_t used_pages = static_cast<size_t>((begin + num_rows + kPageTokens - 1) / kPageTokens);
  page_tables_.insert(page_tables_.end(), pages.begin(), pages.begin() + static_cast<std::ptrdiff_t>(used_pages));
  token_ids_.insert(token_ids_.end(), tokens.begin(), tokens.end());
  token_ids_.insert(token_ids_.end(), draft.begin(), draft.end());
  for (int32_t i = 0; i < num_rows; ++i) {
    positions_.push_back(begin + i);
    if (begin + i >= logits_from) logit_rows_.push_back(first_row + i);
  }
  add_segment(first_row, num_rows, first_page);
  return first_logit;
}

void RowBatchBuilder::add_path(std::span<const int32_t> tokens, int32_t begin, std::span<const PageId> shared,
                               std::span<const PageId> own) {
  const int32_t first_row = static_cast<int32_t>(token_ids_.size()), num_rows = static_cast<int32_t>(tokens.size());
  const int32_t first_page = static_cast<int32_t>(page_tables_.size());
  page_tables_.insert(page_tables_.end(), shared.begin(), shared.end());
  page_tables_.insert(page_tables_.end(), own.begin(), own.end());
  token_ids_.insert(token_ids_.end(), tokens.begin(), tokens.end());
  for (int32_t i = 0; i < num_rows; ++i) {
    positions_.push_back(begin + i);
    logit_rows_.push_back(first_row + i);
  }
  add_segment(first_row, num_rows, first_page);
}

void RowBatchBuilder::add_copy(int32_t row, PageId to) {
  const auto after = std::upper_bound(segments_.begin(), segments_.end(), row,
                                      [](int32_t r, const RowSegment& segment) { return r < segment.first_row; });
  const int32_t page = positions_[static_cast<size_t>(row)] / kPageTokens;
  copies_.push_back({row, page_tables_[static_cast<size_t>(std::prev(after)->first_page + page)], to});
}

RowBatch RowBatchBuilder::batch() const {
  return {.num_rows = static_cast<int32_t>(token_ids_.size()),
          .num_segments = static_cast<int32_t>(segments_.size()),
          .num_tiles = static_cast<int32_t>(tiles_.size()),
          .num_bundles = static_cast<int32_t>(bundles_.size()),
          .num_logit_rows = static_cast<int32_t>(logit_rows_.size()),
          .num_copies = static_cast<int32_t>(copies_.size()),
          .token_ids = token_ids_.data(),
          .positions = positions_.data(),
          .segments = segments_.data(),
          .tiles = tiles_.data(),
          .bundles = bundles_.data(),
          .page_tables = page_tables_.data(),
          .logit_rows = logit_rows_.data(),
          .copies = copies_.data()};
}

}  // namespace otr
