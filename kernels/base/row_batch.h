// Row descriptors: which token, sequence and position each row of a tick is. Data, never shape: one program serves every mix of
// prefill chunks, decode rows and drafts that fits its buffers.
//
// Thread safety: plain data; the owner keeps the arrays alive for the launch.
#pragma once

#include <cstdint>

namespace otr {

using PageId = int32_t;

// Rows [first_row, first_row + num_rows) are consecutive positions of one sequence, ascending, or of one path of its draft.
struct RowSegment {
  int32_t first_row;
  int32_t num_rows;
  int32_t first_page;  // index into RowBatch::page_tables of the sequence's, or path's, page 0
};

// A piece of one segment that an attention task takes: few enough rows that rows x group heads fit one task.
struct RowTile {
  int32_t segment;
  int32_t first_row;
  int32_t num_rows;
};

// Consecutive tiles that one attention task takes, since their rows still fit it: keys 0 … shared_keys - 1 are the same pages
// for all of them, and are read once.
struct TileBundle {
  int32_t first_tile;
  int32_t num_tiles;
  int32_t shared_keys;  // a multiple of kAttentionSplit; 0 for a tile alone
};

// The key and value that a row writes on page `from` (its own) stand in the same slot of page `to` as well: draft paths that
// share a node each have it on pages of their own.
struct KvCopy {
  int32_t row;
  PageId from, to;
};

// A captured launch does not know how many copies there will be: so many blocks take them in turn, each until it meets row -1.
// So a list of unknown length ends with as many of those.
inline constexpr int32_t kKvCopyBlocks = 64;
inline constexpr PageId kNoKvPage = -1;

struct RowBatch {
  int32_t num_rows;
  int32_t num_segments;
  int32_t num_tiles;
  int32_t num_bundles;
  int32_t num_logit_rows;
  int32_t num_copies;
  const int32_t* token_ids;    // [num_rows]
  const int32_t* positions;    // [num_rows], absolute
  const RowSegment* segments;  // [num_segments], covers every row once, in order
  const RowTile* tiles;        // [num_tiles], covers every row once
  const TileBundle* bundles;   // [num_bundles], covers every tile once
  const PageId* page_tables;   // concatenated; a segment's table covers positions 0 … its last row's
  const int32_t* logit_rows;   // [num_logit_rows], rows whose logits are wanted, ascending
  const KvCopy* copies;        // [num_copies], distinct destinations
  const int32_t* num_bundles_at =
      nullptr;  // of a captured launch, whose num_bundles are the most: on the device, how many there are
  const int32_t* num_rows_at = nullptr;  // likewise of num_rows
};

}  // namespace otr
