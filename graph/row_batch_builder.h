// RowBatchBuilder: assembles a tick's row descriptors in buffers sized once.
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
};

class RowBatchBuilder {
 public:
  // `tile_rows`: rows of one RowTile (attention_tile_rows of the model).
  RowBatchBuilder(const RowLimits& limits, int32_t tile_rows);

  void clear();

  // Rows for positions [begin, begin + tokens.size()) of a sequence; `pages` covers them. Rows of positions >= logits_from want
  // logits. Returns the index of the first of these in the logits buffer.
  int32_t add(std::span<const int32_t> tokens, int32_t begin, std::span<const PageId> pages, int32_t logits_from);

  // Valid until the next clear() or add().
  RowBatch batch() const;

 private:
  const int32_t tile_rows_;
  std::vector<int32_t> token_ids_, positions_, logit_rows_;
  std::vector<RowSegment> segments_;
  std::vector<RowTile> tiles_;
  std::vector<PageId> page_tables_;
};

}  // namespace otr
