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

#include "kernels/attention/attention_deal.h"
#include "kernels/base/thread_pool.h"

namespace otr {

// Splits [first_split, first_split + num_splits) of a unit's, as far as there are any.
struct AttentionPiece {
  int index;
  bool last;
  int first_split, num_splits;
};

// What the pieces of a unit share, by its index among those that are cut: at the end of a thread's scratch.
template <typename Shared>
OTR_INLINE Shared* attention_shared_at(const ThreadPool& pool, int index) {
  static_assert(AttentionDeal::kMostUnitsPerThread * sizeof(Shared) <= ThreadPool::kScratchBytes / 2);
  const int threads = pool.num_threads();
  char* end = static_cast<char*>(pool.scratch(index % threads)) + ThreadPool::kScratchBytes;
  return reinterpret_cast<Shared*>(end) - 1 - index / threads;
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
