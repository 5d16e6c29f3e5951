// The one attention algorithm of the vector paths: a task is up to 16 lanes (query rows of a TileBundle x heads of one group)
// against one KV head, or a piece of that (attention_pieces.h). Pages are packed in pairs (page.h), so that a vector holds 16
// keys where scores are made and weighed, and 16 channels where values are added up.
//
//   for each split of kAttentionSplit keys, ascending                    (see attention.h)
//     S [lanes][keys]     = q K^T                                        product
//     m, P = exp(S - m), l                                               masked keys: P = 0 exactly
//     O [lanes][head_dim] = P V                                          product
//     merge (m, l, O) into the running sums
//   out = O / l
//
// First come the splits that all rows of the bundle share; then, tile by tile, those of its own pages, for its lanes alone.
//
// Scratch: 52 (Operand: bf16) or 70 KB (float) of stack; of pieces, the threads' own.
#pragma once

#include <cstdint>

#include "kernels/attention/attention_pieces.h"
#include "kernels/attention/attention_split_sums.h"
#include "kernels/base/thread_pool.h"

namespace otr {

// What the pieces of a unit share.
struct alignas(64) SharedSums {
  int turn;  // the piece that is to merge next
  AttentionSums sums;
};

inline constexpr int kMostPieceSplits = 16;
inline constexpr int64_t kPieceBytes = 64 << 10;  // of keys and values, at least
static_assert(kMostPieceSplits * sizeof(AttentionSums) <= ThreadPool::kScratchBytes / 2);

// Splits [from, to) of a bundle's list, ascending: visit(range, first key).
template <typename Visit>
OTR_INLINE void attention_splits(const RowBatch& rows, const AttentionLanes& t, const TileBundle& bundle, int from, int to,
                                 const Visit& visit) {
  const RowTile* tiles = rows.tiles + bundle.first_tile;
  const auto table = [&](const RowTile& tile) { return rows.page_tables + rows.segments[tile.segment].first_page; };
  const auto lane_of = [&](int64_t row) {  // the first one of a row
    const int64_t lane = (row - t.first_row) * t.group - t.first_lane;
    return static_cast<int>(lane < 0 ? 0 : lane < t.count ? lane : t.count);
  };
  for (int i = -1, split = 0; i < bundle.num_tiles; ++i) {
    AttentionRange range = {0, t.count, table(tiles[0]), 0, bundle.shared_keys};
    if (i >= 0) {
      const int64_t first_row = tiles[i].first_row, end_row = first_row + tiles[i].num_rows;
      range = {lane_of(first_row), lane_of(end_row), table(tiles[i]), bundle.shared_keys, attention_tile_keys(rows, tiles[i])};
    }
    for (int begin = range.begin_key; begin < range.end_key; begin += kAttentionSplit, ++split) {
      if (split >= to) return;
      AttentionRange visited = range;  // what follows is another piece's: not fetched
      if (split + 1 == to) visited.end_key = smaller_of(range.end_key, begin + kAttentionSplit);
      if (split >= from) visit(visited, begin);
    }
  }
}

template <typename Isa>
OTR_INLINE void attention_load_queries(const AttentionParams& p, const AttentionLanes& t,
                                       AttentionScratch<typename Isa::Operand>& scratch) {
  const int head_dim = p.layout.head_dim;
  for (int lane = 0; lane < t.count; ++lane) {
    const Element* q = p.q + AttentionLanes::offset(t, lane, int64_t{p.num_heads} * head_dim, head_dim);
    for (int i = 0; i < head_dim; ++i) scratch.q[lane][i] = Isa::widen(q[i]);
  }
}

template <typename Isa>
OTR_INLINE void attention_write(const AttentionParams& p, const AttentionLanes& t, const AttentionSums& sums) {
  using V = typename Isa::Vec;
  const int head_dim = p.layout.head_dim;
  for (int lane = 0; lane < t.count; ++lane) {
    Element* out = p.out + AttentionLanes::offset(t, lane, p.out_stride, head_dim);
    const V l = V::broadcast(sums.l[lane]);
    for (int d = 0; d < head_dim; d += kKvLanes) store(out + d, V::load(sums.o[lane] + d) / l);
  }
}

template <typename Isa>
__attribute__((noinline)) static void attention_unit(const AttentionParams& p, const AttentionLanes& t,
                                                     const TileBundle& bundle) {
  AttentionScratch<typename Isa::Operand> scratch;
  AttentionSums sums;
  AttentionPartial partial;
  partial.o = scratch.s;
  attention_load_queries<Isa>(p, t, scratch);
  for (int lane = 0; lane < kAttentionLanes; ++lane) sums.m[lane] = -__builtin_inff();
  attention_splits(*p.rows, t, bundle, 0, INT32_MAX, [&](const AttentionRange& range, int begin) {
    attention_partial<Isa>(p, t, range, begin, scratch, partial);
    attention_merge<Isa>(partial, p.layout.head_dim, sums);
  });
  attention_write<Isa>(p, t, sums);
}

// A piece of a unit. o [kMostPieceSplits][kAttentionLanes]: this thread's own.
template <typename Isa>
__attribute__((noinline)) static void attention_piece(const AttentionParams& p, const AttentionLanes& t,
                                                      const TileBundle& bundle, const AttentionPiece& piece,
                                                      float (*o)[kAttentionStride], SharedSums& unit) {
  AttentionScratch<typename Isa::Operand> scratch;
  AttentionPartial partials[kMostPieceSplits];
  attention_load_queries<Isa>(p, t, scratch);
  int count = 0;
  attention_splits(*p.rows, t, bundle, piece.first_split, piece.first_split + piece.num_splits,
                   [&](const AttentionRange& range, int begin) {
                     AttentionPartial& partial = partials[count];
                     partial.o = o + count++ * kAttentionLanes;
                     attention_partial<Isa>(p, t, range, begin, scratch, partial);
                   });
  attention_await_turn(unit.turn, piece);
  for (int i = 0; i < count; ++i) attention_merge<Isa>(partials[i], p.layout.head_dim, unit.sums);
  if (piece.last) attention_write<Isa>(p, t, unit.sums);
  attention_pass_turn(unit.turn, piece);
}

template <typename Isa>
OTR_INLINE void attention_tiles(const AttentionParams& p, ThreadPool& pool) {
  const int64_t split_bytes = int64_t{4} * kAttentionSplit * p.layout.head_dim;
  attention_run<SharedSums>(
      *p.rows, attention_units(p, kAttentionLanes), {divide_up(kPieceBytes, split_bytes), kMostPieceSplits, false}, pool,
      [](SharedSums& unit) {
        unit.turn = 0;
        for (float& m : unit.sums.m) m = -__builtin_inff();
      },
      [&](const TileBundle& bundle, int unit, const AttentionPiece& piece, SharedSums& sums, int thread) {
        attention_piece<Isa>(p, attention_lanes(p, kAttentionLanes, bundle, unit), bundle, piece,
                             static_cast<float(*)[kAttentionStride]>(pool.scratch(thread)), sums);
      },
      [&](const TileBundle& bundle, int unit, int) {
        attention_unit<Isa>(p, attention_lanes(p, kAttentionLanes, bundle, unit), bundle);
      });
}

}  // namespace otr
