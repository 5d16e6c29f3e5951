// How a launch of attention is dealt to the CPU's threads.
//
// A unit (attention_lanes.h) is a bundle's lanes against one KV head: a list of splits (cpu-amx: segments), merged in ascending
// order. Mostly a task is a unit. But a batch that has shrunk to a few long samples may have fewer units than threads, or one
// that goes on when all others have ended. So the long ones are cut into pieces of consecutive splits, each a task: it computes
// its splits apart, waits until the pieces before it have merged theirs, and merges its own. Which thread computes what, and
// when, cannot show: the splits' own (m, l, o) and the order of merging are those of attention.h.
//
// No wait can last: tasks are claimed in ascending order, so whoever waits does so for a thread that is at work and waits,
// if at all, for an earlier one. Merging is a hundredth of a split's work where the sums are in the core's cache. Measured, 7
// heads on one KV head of 128, 2 threads of cpu-avx512: decode at 32k 1.41 times as fast as by whole units (0.80 of reads for
// 0.61), at 8k 1.35 times.
#pragma once

#include <sched.h>

#include <cstdint>

#include "kernels/attention/attention_lanes.h"
#include "kernels/base/integers.h"
#include "kernels/base/thread_pool.h"

namespace otr {

// A bundle whose units are cut.
struct AttentionCut {
  int bundle, num_pieces;
  int first_task;  // of its pieces: one unit's after the other's
};

// Splits [first_split, first_split + num_splits) of a unit's, as far as there are any.
struct AttentionPiece {
  int index;
  bool last;
  int first_split, num_splits;
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

// What the pieces of a unit share, by its index among those that are cut: at the end of a thread's scratch.
template <typename Shared>
OTR_INLINE Shared* attention_shared_at(const ThreadPool& pool, int index) {
  static_assert(AttentionDeal::kMostUnitsPerThread * sizeof(Shared) <= ThreadPool::kScratchBytes / 2);
  const int threads = pool.num_threads();
  char* end = static_cast<char*>(pool.scratch(index % threads)) + ThreadPool::kScratchBytes;
  return reinterpret_cast<Shared*>(end) - 1 - index / threads;
}

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

// Runs the launch: prepare(shared) for every unit in pieces, then, on the pool's threads, piece(bundle, unit, piece, shared,
// thread) and whole(bundle, unit, thread). One KV head after the other, so that neighbouring tiles of a sequence find its keys
// and values in cache.
template <typename Shared, typename Prepare, typename Piece, typename Whole>
OTR_INLINE void attention_run(const RowBatch& rows, int units, AttentionPieceLimits limits, ThreadPool& pool,
                              const Prepare& prepare, const Piece& piece, const Whole& whole) {
  AttentionDeal deal;
  attention_deal(rows, units, pool.num_threads(), limits, &deal);
  for (int i = 0; i < deal.num_cuts * units; ++i) prepare(*attention_shared_at<Shared>(pool, i));
  pool.parallel_for(deal.num_piece_tasks + units * rows.num_bundles, [&](int task, int thread) {
    if (task < deal.num_piece_tasks) {
      int i = 0;
      while (i + 1 < deal.num_cuts && deal.cuts[i + 1].first_task <= task) ++i;
      const AttentionCut& cut = deal.cuts[i];
      const int unit = (task - cut.first_task) / cut.num_pieces, index = (task - cut.first_task) % cut.num_pieces;
      const AttentionPiece a_piece = {index, index == cut.num_pieces - 1, index * deal.piece_splits, deal.piece_splits};
      return piece(rows.bundles[cut.bundle], unit, a_piece, *attention_shared_at<Shared>(pool, i * units + unit), thread);
    }
    const int left = task - deal.num_piece_tasks, bundle = left % rows.num_bundles;
    for (int i = 0; i < deal.num_cuts; ++i) {
      if (deal.cuts[i].bundle == bundle) return;
    }
    whole(rows.bundles[bundle], left / rows.num_bundles, thread);
  });
}

// Returns when all pieces before `piece` have merged; what they wrote is then seen.
OTR_INLINE void attention_await_turn(const int& turn, const AttentionPiece& piece) {
  constexpr int kSpins = 1000;  // then others may need the core
  for (int spins = 0;;) {
    const int ahead = piece.index - __atomic_load_n(&turn, __ATOMIC_ACQUIRE);
    if (ahead == 0) return;
    for (int i = 0; i < ahead; ++i, ++spins) __builtin_ia32_pause();  // who waits longer looks less often
    if (spins > kSpins) sched_yield();
  }
}
OTR_INLINE void attention_pass_turn(int& turn, const AttentionPiece& piece) {
  __atomic_store_n(&turn, piece.index + 1, __ATOMIC_RELEASE);
}

}  // namespace otr
