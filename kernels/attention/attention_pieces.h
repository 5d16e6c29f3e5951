// How a launch of attention is dealt to the CPU's threads.
//
// A unit (attention_lanes.h) is a bundle's lanes against one KV head: a list of splits (cpu-amx: segments), merged in ascending
// order. Mostly a task is a unit. But a batch that has shrunk to a few long samples may have fewer units than threads, or one
// that goes on when all others have ended. So the long ones are cut into pieces of consecutive splits, each a task: it computes
// its splits apart, waits until the pieces before it have merged theirs, and merges its own. Which thread computes what, and
// when, cannot show: the splits' own (m, l, o) and the order of merging are those of attention.h.
//
// No wait can last: tasks are claimed in ascending order, so whoever waits does so for a thread that is at work and waits,
// if at all, for an earlier one. Merging is a hundredth of a split's work, or less. Measured, 7 heads on one KV head of 128, 2
// threads of cpu-avx512: decode at 32k 1.33 times as fast as by whole units (0.82 of reads for 0.62), at 8k 1.22 times.
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
  int first_task;  // of its pieces: a KV head's, or chunk's, after the other's
};

// Splits [first_split, first_split + num_splits) of a unit's, as far as there are any.
struct AttentionPiece {
  int index;
  bool last;
  int first_split, num_splits;
};

// How large pieces may be, in splits, and which units may be cut.
struct AttentionPieceLimits {
  int least, most;
  bool single_tiles_only;
};

// Tasks 0 … num_piece_tasks - 1 are pieces, the others units, of which those that are cut have nothing left to do.
struct AttentionDeal {
  static constexpr int kMostCuts = 64;
  static constexpr int kMostUnitsPerThread = 2;  // in pieces

  int num_cuts = 0, num_piece_tasks = 0, piece_splits = 0;
  AttentionCut cuts[kMostCuts];
};

// What the pieces of a unit share, unit `index` of those that are cut: at the end of a thread's scratch.
template <typename Unit>
OTR_INLINE Unit* attention_unit_at(const ThreadPool& pool, int index) {
  static_assert(AttentionDeal::kMostUnitsPerThread * sizeof(Unit) <= ThreadPool::kScratchBytes / 2);
  const int threads = pool.num_threads();
  char* end = static_cast<char*>(pool.scratch(index % threads)) + ThreadPool::kScratchBytes;
  return reinterpret_cast<Unit*>(end) - 1 - index / threads;
}

// The splits of a bundle's list: those of the keys that its tiles share, and of each tile's own.
OTR_INLINE int attention_bundle_splits(const RowBatch& rows, const TileBundle& bundle) {
  int splits = bundle.shared_keys / kAttentionSplit;
  for (int i = 0; i < bundle.num_tiles; ++i) {
    const RowTile& tile = rows.tiles[bundle.first_tile + i];
    const int own = rows.positions[tile.first_row + tile.num_rows - 1] + 1 - bundle.shared_keys;
    splits += divide_up(greater_of(own, 0), kAttentionSplit);
  }
  return splits;
}

// `heads`: units of a bundle. Nothing is cut unless the longest unit would take a quarter longer than all of them evenly dealt.
OTR_INLINE void attention_deal(const RowBatch& rows, int heads, int threads, AttentionPieceLimits limits, AttentionDeal* deal) {
  if (threads == 1) return;
  int64_t total = 0;
  int longest = 0;
  for (int b = 0; b < rows.num_bundles; ++b) {
    const int splits = attention_bundle_splits(rows, rows.bundles[b]);
    total += splits;
    longest = greater_of(longest, splits);
  }
  total *= heads;
  if (longest <= limits.least || int64_t{longest} * threads * 4 <= total * 5) return;
  const int64_t fair = total / (4 * threads);
  deal->piece_splits = static_cast<int>(smaller_of<int64_t>(greater_of<int64_t>(fair, limits.least), limits.most));
  const int most = smaller_of(AttentionDeal::kMostCuts, AttentionDeal::kMostUnitsPerThread * threads / heads);
  for (int b = 0; b < rows.num_bundles && deal->num_cuts < most; ++b) {
    const TileBundle& bundle = rows.bundles[b];
    const int splits = attention_bundle_splits(rows, bundle);
    if (splits <= 2 * fair || splits <= deal->piece_splits) continue;
    if (limits.single_tiles_only && (bundle.num_tiles > 1 || bundle.shared_keys > 0)) continue;
    const int pieces = divide_up(splits, deal->piece_splits);
    deal->cuts[deal->num_cuts++] = {b, pieces, deal->num_piece_tasks};
    deal->num_piece_tasks += heads * pieces;
  }
}

// Runs the launch: prepare(unit) for every unit in pieces, then, on the pool's threads, piece(bundle, head, piece, cut, unit,
// thread) and whole(bundle, head, thread). One head after the other, so that neighbouring tiles of a sequence find its keys and
// values in cache.
template <typename Unit, typename Prepare, typename Piece, typename Whole>
OTR_INLINE void attention_run(const RowBatch& rows, int heads, AttentionPieceLimits limits, ThreadPool& pool,
                              const Prepare& prepare, const Piece& piece, const Whole& whole) {
  AttentionDeal deal;
  attention_deal(rows, heads, pool.num_threads(), limits, &deal);
  for (int i = 0; i < deal.num_cuts * heads; ++i) prepare(*attention_unit_at<Unit>(pool, i));
  pool.parallel_for(deal.num_piece_tasks + heads * rows.num_bundles, [&](int task, int thread) {
    if (task < deal.num_piece_tasks) {
      int i = 0;
      while (i + 1 < deal.num_cuts && deal.cuts[i + 1].first_task <= task) ++i;
      const AttentionCut& cut = deal.cuts[i];
      const int head = (task - cut.first_task) / cut.num_pieces, index = (task - cut.first_task) % cut.num_pieces;
      const AttentionPiece a_piece = {index, index == cut.num_pieces - 1, index * deal.piece_splits, deal.piece_splits};
      return piece(rows.bundles[cut.bundle], head, a_piece, *attention_unit_at<Unit>(pool, i * heads + head), thread);
    }
    const int unit = task - deal.num_piece_tasks, bundle = unit % rows.num_bundles;
    for (int i = 0; i < deal.num_cuts; ++i) {
      if (deal.cuts[i].bundle == bundle) return;
    }
    whole(rows.bundles[bundle], unit / rows.num_bundles, thread);
  });
}

// Returns when all pieces before `piece` have merged; what they wrote is then seen.
OTR_INLINE void attention_await_turn(const int& turn, const AttentionPiece& piece) {
  constexpr int kSpins = 1000;  // then others may need the core
  for (int spins = 0; __atomic_load_n(&turn, __ATOMIC_ACQUIRE) != piece.index; ++spins) {
    if (spins < kSpins) __builtin_ia32_pause();
    else sched_yield();
  }
}
OTR_INLINE void attention_pass_turn(int& turn, const AttentionPiece& piece) {
  __atomic_store_n(&turn, piece.index + 1, __ATOMIC_RELEASE);
}

}  // namespace otr
