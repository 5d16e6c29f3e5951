// The one attention algorithm of the vector paths: a task is up to 16 query rows (tokens of a TileBundle x heads of one group)
// in the 16 lanes of a vector, against one KV head. Softmax runs down a lane, so no sum ever crosses lanes, and a row's bits
// depend neither on its lane nor on its neighbours.
//
//   for each split of kAttentionSplit keys, ascending                    (see attention.h)
//     S^T [keys][16]      = K [keys][head_dim] q^T                       product: left operand straight from the page
//     m, P = exp32(S - m), l                                            masked keys: P = 0 exactly
//     O^T [head_dim][16]  = V^T [head_dim][keys] P^T                     product: left operand straight from the page
//     merge (m, l, O) into the running sums
//   out = O / l
//
// First come the splits that all rows of the bundle share; then, tile by tile, those of its own pages, with the other tiles'
// lanes masked.
//
// Reduction order, common to the paths: s = dot * scale, dot in the product's order over head_dim; l = (l0 + l1) + (l2 + l3)
// where l_c sums the keys j with j % 4 = c, ascending; O is the product's order over keys from the split's first key on, and a
// -0 is made +0. How far a tile's longest row makes it run past a shorter row's end cannot show: those keys add exact zeros,
// which change nothing but the sign of a zero, and a lane takes no part in the merge of a split it has no key in.
//
// An Isa offers: Vec (a float type of kernels/simd), begin() and end() around a task, and product(AttentionProduct).
// Scratch: 52 KB of stack.
#pragma once

#include <cstdint>

#include "kernels/attention/attention_lanes.h"
#include "kernels/base/thread_pool.h"

namespace otr {

// c[r][lane] = sum over i < depth of a[r][i] * b[i][lane], for r < rows; rows and depth are even.
struct AttentionProduct {
  const Element* const* pieces;  // row r of piece n holds a[r][n * piece_depth …] at pieces[n] + offset + r * stride
  int64_t offset, stride;        // elements
  int rows;                      // <= 64
  int depth, piece_depth;
  const Element* b;     // [depth rounded up to 32, / 2][16 lanes][2], zero from depth on
  float* c;             // [rows rounded up to 16][16 lanes]
  const Element* next;  // what is read after this product; a hint, and never null
};

// The running sums of a task's lanes.
template <typename V>
struct AttentionSums {
  V m = V::zero(), l = V::zero();  // o: scratch.o
};

// Adds keys [begin, num_keys) of `table` to the sums of rows [first_row, end_row); the other lanes take no part.
template <typename Isa, typename V = typename Isa::Vec>
OTR_INLINE void attention_splits(const AttentionParams& p, const AttentionLanes& t, int64_t first_row, int64_t end_row,
                                 const PageId* table, int begin, int num_keys, AttentionScratch& scratch,
                                 AttentionSums<V>* sums) {
  const int head_dim = p.layout.head_dim;
  const V zero = V::zero();
  for (; begin < num_keys; begin += kAttentionSplit) {
    const int left = (num_keys - begin + kAttentionKeyStep - 1) / kAttentionKeyStep * kAttentionKeyStep;
    const int keys = left < kAttentionSplit ? left : kAttentionSplit;
    const Element* k_pages[kAttentionSplitPages];
    const Element* v_pages[kAttentionSplitPages];
    for (int i = 0; i * kPageTokens < keys; ++i) {
      const Element* page = p.pages + table[begin / kPageTokens + i] * p.layout.page_elements();
      k_pages[i] = page + p.layout.k_offset(p.layer, t.kv_head);
      v_pages[i] = page + p.layout.v_offset(p.layer, t.kv_head);
    }
    const int next_key = begin + keys < num_keys ? begin + keys : begin;
    const Element* next_k =
        p.pages + table[next_key / kPageTokens] * p.layout.page_elements() + p.layout.k_offset(p.layer, t.kv_head);
    alignas(64) float limits[kAttentionLanes] = {};  // small integers: exact as float32
    for (int lane = 0; lane < t.count; ++lane) {
      const int64_t row = t.row(lane);
      const int visible = row >= first_row && row < end_row ? p.rows->positions[row] + 1 - begin : 0;
      limits[lane] = static_cast<float>(visible < 0 ? 0 : visible < kAttentionSplit ? visible : kAttentionSplit);
    }
    const V limit = V::load(limits);

    for (int i = 0; i * kPageTokens < keys; ++i) {
      const int rows = keys - i * kPageTokens < kPageTokens ? keys - i * kPageTokens : kPageTokens;
      const Element* next = (i + 1) * kPageTokens < keys ? k_pages[i + 1] : v_pages[0];
      Isa::product({k_pages + i, 0, head_dim, rows, head_dim, head_dim, scratch.q[0][0], scratch.s[i * kPageTokens], next});
    }
    V m_split, l_split;
    attention_softmax(scratch, keys, limit, p.scale, &m_split, &l_split);

    // The first split is taken as it is, not merged with nothing.
    const V m_next = begin == 0 ? m_split : max_(m_split, sums->m);
    const V keep = exp32(sums->m - m_next), add = exp32(m_split - m_next);
    for (int d0 = 0; d0 < head_dim; d0 += kAttentionValueRows) {
      const int rows = head_dim - d0 < kAttentionValueRows ? head_dim - d0 : kAttentionValueRows;
      const Element* next = d0 + rows < head_dim ? v_pages[0] + (d0 + rows) * kPageTokens : next_k;
      Isa::product({v_pages, int64_t{d0} * kPageTokens, kPageTokens, rows, keys, kPageTokens, scratch.p[0][0],
                    scratch.o_split[0], next});
      for (int d = 0; d < rows; ++d) {
        const V o = V::load(scratch.o_split[d]) + zero, before = V::load(scratch.o[d0 + d]);
        store(scratch.o[d0 + d], select_less(zero, limit, begin == 0 ? o : before * keep + o * add, before));
      }
    }
    sums->l = select_less(zero, limit, begin == 0 ? l_split : sums->l * keep + l_split * add, sums->l);
    sums->m = select_less(zero, limit, m_next, sums->m);
  }
}

// The lanes of a bundle: what its tiles share first, then each tile's own keys.
template <typename Isa>
OTR_INLINE void attention_task(const AttentionParams& p, const AttentionLanes& t, const TileBundle& bundle) {
  using V = typename Isa::Vec;
  const RowBatch& rows = *p.rows;
  AttentionScratch scratch;
  attention_pack_q(p, t, scratch);
  for (int d = 0; d < p.layout.head_dim; ++d) store(scratch.o[d], V::zero());
  AttentionSums<V> sums;
  const RowTile* tiles = rows.tiles + bundle.first_tile;
  const auto table = [&](const RowTile& tile) { return rows.page_tables + rows.segments[tile.segment].first_page; };
  attention_splits<Isa>(p, t, 0, rows.num_rows, table(tiles[0]), 0, bundle.shared_keys, scratch, &sums);
  for (int i = 0; i < bundle.num_tiles; ++i) {
    const int end_row = tiles[i].first_row + tiles[i].num_rows;
    attention_splits<Isa>(p, t, tiles[i].first_row, end_row, table(tiles[i]), bundle.shared_keys,
                          rows.positions[end_row - 1] + 1, scratch, &sums);
  }
  attention_write(p, t, scratch, sums.l);
}

template <typename Isa>
OTR_INLINE void attention_tiles(const AttentionParams& p, ThreadPool& pool) {
  const RowBatch& rows = *p.rows;
  const int group = p.num_heads / p.layout.num_kv_heads;
  const int chunks = (group + kAttentionLanes - 1) / kAttentionLanes;  // more than one: a tile is one token of a large group
  // One KV head after the other, so that neighbouring tiles of a sequence find its keys and values in cache.
  pool.parallel_for(p.layout.num_kv_heads * chunks * rows.num_bundles, [&](int task, int) {
    const TileBundle& bundle = rows.bundles[task % rows.num_bundles];
    const int chunk = task / rows.num_bundles % chunks, kv_head = task / rows.num_bundles / chunks;
    const RowTile &first = rows.tiles[bundle.first_tile], &last = rows.tiles[bundle.first_tile + bundle.num_tiles - 1];
    const int left = (last.first_row + last.num_rows - first.first_row) * group - chunk * kAttentionLanes;
    const int count = left < kAttentionLanes ? left : kAttentionLanes;
    Isa::begin();
    attention_task<Isa>(p, {first.first_row, chunk * kAttentionLanes, count, kv_head, group}, bundle);
    Isa::end();
  });
}

}  // namespace otr
