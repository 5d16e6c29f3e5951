#include "graph/row_batch_builder.h"

#include <algorithm>

#include "kernels/page/page.h"

namespace otr {

RowBatchBuilder::RowBatchBuilder(const RowLimits& limits, int32_t tile_rows) : tile_rows_(tile_rows) {
  const auto n = [](int32_t size) { return static_cast<size_t>(size); };
  token_ids_.reserve(n(limits.max_rows));
  positions_.reserve(n(limits.max_rows));
  logit_rows_.reserve(n(limits.max_logit_rows));
  segments_.reserve(n(limits.max_segments));
  tiles_.reserve(n(limits.max_rows));
  copies_.reserve(n(limits.max_copies));
  page_tables_.reserve(n(limits.max_segments) * n(limits.max_pages_per_sequence));
}

void RowBatchBuilder::clear() {
  token_ids_.clear();
  positions_.clear();
  logit_rows_.clear();
  segments_.clear();
  tiles_.clear();
  page_tables_.clear();
  copies_.clear();
}

// The rows [first_row, first_row + num_rows), in tiles.
void RowBatchBuilder::add_segment(int32_t first_row, int32_t num_rows, int32_t first_page) {
  const int32_t segment = static_cast<int32_t>(segments_.size());
  segments_.push_back({first_row, num_rows, first_page});
  for (int32_t i = 0; i < num_rows; i += tile_rows_) {
    tiles_.push_back({segment, first_row + i, std::min(tile_rows_, num_rows - i)});
  }
}

int32_t RowBatchBuilder::add(std::span<const int32_t> tokens, int32_t begin, std::span<const PageId> pages, int32_t logits_from,
                             std::span<const int32_t> draft) {
  const int32_t first_row = static_cast<int32_t>(token_ids_.size());
  const int32_t num_rows = static_cast<int32_t>(tokens.size() + draft.size());
  const int32_t first_logit = static_cast<int32_t>(logit_rows_.size());
  add_segment(first_row, num_rows, static_cast<int32_t>(page_tables_.size()));
  const size_t used_pages = static_cast<size_t>((begin + num_rows + kPageTokens - 1) / kPageTokens);
  page_tables_.insert(page_tables_.end(), pages.begin(), pages.begin() + static_cast<std::ptrdiff_t>(used_pages));
  token_ids_.insert(token_ids_.end(), tokens.begin(), tokens.end());
  token_ids_.insert(token_ids_.end(), draft.begin(), draft.end());
  for (int32_t i = 0; i < num_rows; ++i) {
    positions_.push_back(begin + i);
    if (begin + i >= logits_from) logit_rows_.push_back(first_row + i);
  }
  return first_logit;
}

void RowBatchBuilder::add_path(std::span<const int32_t> tokens, int32_t begin, std::span<const PageId> shared,
                               std::span<const PageId> own) {
  const int32_t first_row = static_cast<int32_t>(token_ids_.size()), num_rows = static_cast<int32_t>(tokens.size());
  add_segment(first_row, num_rows, static_cast<int32_t>(page_tables_.size()));
  page_tables_.insert(page_tables_.end(), shared.begin(), shared.end());
  page_tables_.insert(page_tables_.end(), own.begin(), own.end());
  token_ids_.insert(token_ids_.end(), tokens.begin(), tokens.end());
  for (int32_t i = 0; i < num_rows; ++i) {
    positions_.push_back(begin + i);
    logit_rows_.push_back(first_row + i);
  }
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
          .num_logit_rows = static_cast<int32_t>(logit_rows_.size()),
          .num_copies = static_cast<int32_t>(copies_.size()),
          .token_ids = token_ids_.data(),
          .positions = positions_.data(),
          .segments = segments_.data(),
          .tiles = tiles_.data(),
          .page_tables = page_tables_.data(),
          .logit_rows = logit_rows_.data(),
          .copies = copies_.data()};
}

}  // namespace otr
