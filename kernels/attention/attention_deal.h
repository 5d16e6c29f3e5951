// Which units of a launch of attention are cut into pieces (attention_pieces.h), and how: a pure function of the batch, the
// threads and what the path allows.
#pragma once

#include <cstdint>

#include "kernels/attention/attention_lanes.h"
#include "kernels/base/integers.h"

namespace otr {

// A bundle whose units are cut.
struct AttentionCut {
  int bundle, num_pieces;
  int first_task;  // of its pieces: one unit's after the other's
};

// How large pieces may be, in splits. `of_keys`: pieces are of absolute positions, and splits of several tiles there are
// together in one.
struct AttentionPieceLimits {
  int least, most;
  bool of_keys;
};

// Tasks 0 … num_piece_tasks - 1 are pieces, the others units, of which those that are cut have nothing left to do.
struct AttentionDeal {
  static constexpr int kMostCuts = 64;
  static constexpr int kMostUnitsPerThread = 2;  // in pieces
  static constexpr int kMostPieces = 32;         // of a unit: then its threads would wait for each other

  int num_cuts = 0, num_piece_tasks = 0, piece_splits = 0;
  AttentionCut cuts[kMostCuts];
};

// Keys that the last row of a tile, of all tiles of a bundle, sees.
OTR_INLINE int attention_tile_keys(const RowBatch& rows, const RowTile& tile) {
  return rows.positions[tile.first_row + tile.num_rows - 1] + 1;
}
OTR_INLINE int attention_bundle_keys(const RowBatch& rows, const TileBundle& bundle) {
  int keys = bundle.shared_keys;
  for (int i = 0; i < bundle.num_tiles; ++i) {
    keys = greater_of(keys, attention_tile_keys(rows, rows.tiles[bundle.first_tile + i]));
  }
  return keys;
}

// The splits of a bundle's list: those of the keys that its tiles share, and of each tile's own.
OTR_INLINE int attention_bundle_splits(const RowBatch& rows, const TileBundle& bundle) {
  int splits = bundle.shared_keys / kAttentionSplit;
  for (int i = 0; i < bundle.num_tiles; ++i) {
    const int own = attention_tile_keys(rows, rows.tiles[bundle.first_tile + i]) - bundle.shared_keys;
    splits += divide_up(greater_of(own, 0), kAttentionSplit);
  }
  return splits;
}

// `units`: of a bundle. Nothing is cut unless whole units would take a quarter longer than all splits evenly dealt: as many
// of the longest as come to one thread, or a fair share and then the longest.
OTR_INLINE void attention_deal(const RowBatch& rows, int units, int threads, AttentionPieceLimits limits, AttentionDeal* deal) {
  const int most = smaller_of(AttentionDeal::kMostCuts, AttentionDeal::kMostUnitsPerThread * threads / units);
  if (threads == 1 || most == 0) return;
  int64_t total = 0, longest = 0;
  for (int b = 0; b < rows.num_bundles; ++b) {
    const int splits = attention_bundle_splits(rows, rows.bundles[b]);
    total += splits;
    longest = greater_of<int64_t>(longest, splits);
  }
  const int64_t of_bundles = total;
  total *= units;
  const int64_t rounds = divide_up(int64_t{units} * rows.num_bundles, threads);
  const int64_t whole = smaller_of(rounds * longest, total / threads + longest);
  if (longest <= limits.least || whole * threads * 4 <= total * 5) return;
  const int64_t aim = greater_of<int64_t>(total / (4 * threads), divide_up(longest, AttentionDeal::kMostPieces));
  deal->piece_splits = static_cast<int>(smaller_of<int64_t>(greater_of<int64_t>(aim, limits.least), limits.most));
  // What is worth cutting; fewer than `most` bundles can be longer.
  const int64_t long_splits = greater_of(total / (2 * threads), of_bundles / most);
  for (int b = 0; b < rows.num_bundles && deal->num_cuts < most; ++b) {
    const TileBundle& bundle = rows.bundles[b];
    const int splits = attention_bundle_splits(rows, bundle);
    if (splits <= long_splits) continue;
    const int pieces = divide_up(limits.of_keys ? divide_up(attention_bundle_keys(rows, bundle), kAttentionSplit) : splits,
                                 deal->piece_splits);
    if (pieces == 1) continue;
    deal->cuts[deal->num_cuts++] = {b, pieces, deal->num_piece_tasks};
    deal->num_piece_tasks += units * pieces;
  }
}

}  // namespace otr
