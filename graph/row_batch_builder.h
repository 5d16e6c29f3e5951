// RowBatchBuilder: assembles a tick's row descriptors in buffers sized once.
//
// Tiles that follow each other and begin with the same pages (samples of a group, paths of a draft) are bundled, so that
// attention reads those once.
//
// Single-threaded. add() REQUIRES that the limits given at construction hold; the batcher keeps them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/base/row_batch.h"

namespace otr {

struct RowLimits {
  int32_t max_rows;
  int32_t max_segments;
  int32_t max_logit_rows;
  int32_t max_pages_per_sequence;
  int32_t max_copies = 0;
};

class RowBatchBuilder {
 public:
  // `tile_rows`: rows of one RowTile (attention_tile_rows of the model).
  RowBatchBuilder(const RowLimits& limits, int32_t tile_rows);

  void clear();

  // Rows for positions [begin, begin + tokens.size()) of a sequence; `pages` covers them. Rows of positions >= logits_from want
  // logits. Returns the index of the first of these in the logits buffer. `draft`: tokens that continue them on the same pages.
  int32_t add(std::span<const int32_t> tokens, int32_t begin, std::span<const PageId> pages, int32_t logits_from,
              std::span<const int32_t> draft = {});

  // Further rows of the sequence added last: a path of its draft that leaves the others at position `begin`. Its pages are
  // those of the sequence before page `shared.size()`, then its own. All rows want logits, and follow the last ones in the
  // logits buffer.
  void add_path(std::span<const int32_t> tokens, int32_t begin, std::span<const PageId> shared, std::span<const PageId> own);
  // The key and value of `row` stand on page `to` as well. REQUIRES: the row is there.
  void add_copy(int32_t row, PageId to);

  // Valid until the next clear() or add().
  RowBatch batch() const;

 private:
  void add_segment(int32_t first_row, int32_t num_rows, int32_t first_page);
  void bundle_last_tile();
  int32_t shared_keys(const TileBundle& bundle, const RowTile& tile) const;
  int32_t num_keys(const RowTile& tile) const {
    return positions_[static_cast<size_t>(tile.first_row + tile.num_rows) - 1] + 1;
  }

  const int32_t tile_rows_;
  std::vector<int32_t> token_ids_, positions_, logit_rows_;
  std::vector<RowSegment> segments_;
  std::vector<RowTile> tiles_;
  std::vector<TileBundle> bundles_;
  std::vector<PageId> page_tables_;
  std::vector<KvCopy> copies_;
};

}  // namespace otr
