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
  page_tables_.reserve(n(limits.max_segments) * n(limits.max_pages_per_sequence));
}

void RowBatchBuilder::clear() {
  token_ids_.clear();
  positions_.clear();
  logit_rows_.clear();
  segments_.clear();
  tiles_.clear();
  page_tables_.clear();
}

int32_t RowBatchBuilder::add(std::span<const int32_t> tokens, int32_t begin, std::span<const PageId> pages, int32_t logits_from) {
  const int32_t first_row = static_cast<int32_t>(token_ids_.size()), num_rows = static_cast<int32_t>(tokens.size());
  const int32_t first_logit = static_cast<int32_t>(logit_rows_.size());
  const int32_t segment = static_cast<int32_t>(segments_.size());
  segments_.push_back({first_row, num_rows, static_cast<int32_t>(page_tables_.size())});
  const size_t used_pages = static_cast<size_t>((begin + num_rows + kPageTokens - 1) / kPageTokens);
  page_tables_.insert(page_tables_.end(), pages.begin(), pages.begin() + static_cast<std::ptrdiff_t>(used_pages));
  for (int32_t i = 0; i < num_rows; ++i) {
    token_ids_.push_back(tokens[static_cast<size_t>(i)]);
    positions_.push_back(begin + i);
    if (begin + i >= logits_from) logit_rows_.push_back(first_row + i);
  }
  for (int32_t i = 0; i < num_rows; i += tile_rows_) {
    tiles_.push_back({segment, first_row + i, std::min(tile_rows_, num_rows - i)});
  }
  return first_logit;
}

RowBatch RowBatchBuilder::batch() const {
  return {.num_rows = static_cast<int32_t>(token_ids_.size()),
          .num_segments = static_cast<int32_t>(segments_.size()),
          .num_tiles = static_cast<int32_t>(tiles_.size()),
          .num_logit_rows = static_cast<int32_t>(logit_rows_.size()),
          .token_ids = token_ids_.data(),
          .positions = positions_.data(),
          .segments = segments_.data(),
          .tiles = tiles_.data(),
          .page_tables = page_tables_.data(),
          .logit_rows = logit_rows_.data()};
}

}  // namespace otr
