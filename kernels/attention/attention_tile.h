// The one attention algorithm of the vector paths: a task is up to 16 lanes (query rows of a TileBundle x heads of one group)
// against one KV head. Pages are packed in pairs (page.h), so that a vector holds 16 keys where scores are made and weighed,
// and 16 channels where values are added up.
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
// Reduction order, common to the paths: s = dot * scale, dot in the product's order over head_dim; l, sixteen chains of the
// keys j with the same j % 16, then by halves (0 + 8, …; + 4; + 2; + 1); O is the product's order over keys from the split's
// first one on, and a -0 is made +0. How far a task's longest row makes it run past a shorter row's end cannot show: those keys
// add exact zeros, which change nothing but the sign of a zero, and a lane takes no part in the merge of a split it has no key
// in.
//
// An Isa offers: Vec (a float type of kernels/simd); Operand, of q and P in a product; widen(Element) and
// store_weights(Operand*, Vec); and kProducts, at [n] the product of n lanes.
// Scratch: 52 (Operand: bf16) or 70 KB (float) of stack.
#pragma once

#include <cstdint>

#include "kernels/attention/attention_lanes.h"
#include "kernels/attention/attention_product.h"
#include "kernels/base/elementary.h"
#include "kernels/base/thread_pool.h"

namespace otr {

template <typename Operand>
struct alignas(64) AttentionScratch {
  Operand q[kAttentionLanes][kAttentionStride];
  float s[kAttentionLanes][kAttentionStride];  // scores; then a split's O
  Operand p[kAttentionLanes][kAttentionStride];
  float o[kAttentionLanes][kAttentionStride];
  float m[kAttentionLanes], l[kAttentionLanes];
};

// Lanes [first, end) of a task see keys [begin_key, end_key) of `table`, as far as their positions go.
struct AttentionRange {
  int first, end;
  const PageId* table;
  int begin_key, end_key;
};

// Softmax of one lane's `visible` scores; P is zero from there to `padded`, a multiple of 16.
template <typename Isa>
OTR_INLINE void attention_softmax(float* s, int visible, int padded, float scale, typename Isa::Operand* p, float* m_out,
                                  float* l_out) {
  using V = typename Isa::Vec;
  const V minus_inf = V::broadcast(-__builtin_inff()), zero = V::zero();
  V m = minus_inf, l = zero;
  const int tail = visible / kKvLanes * kKvLanes;
  alignas(64) float lane_numbers[kKvLanes];
  for (int i = 0; i < kKvLanes; ++i) lane_numbers[i] = static_cast<float>(i);
  const V number = V::load(lane_numbers), left = V::broadcast(static_cast<float>(visible - tail));
  for (int j = 0; j < visible; j += kKvLanes) {
    const V scaled = V::load(s + j) * V::broadcast(scale);
    const V score = j < tail ? scaled : select_less(number, left, scaled, minus_inf);
    store(s + j, score);
    m = max_(score, m);  // a NaN score leaves m alone, and makes P, and so the output, NaN
  }
  *m_out = reduce_max(m);
  m = V::broadcast(*m_out);
  for (int j = 0; j < visible; j += kKvLanes) {
    const V exp = exp32_not_positive(V::load(s + j) - m);
    const V weight = j < tail ? exp : select_less(number, left, exp, zero);  // selected: -inf less -inf is NaN
    l = l + weight;
    Isa::store_weights(p + j, weight);
  }
  for (int j = (visible + kKvLanes - 1) / kKvLanes * kKvLanes; j < padded; j += kKvLanes) Isa::store_weights(p + j, zero);
  *l_out = reduce_add(l);
}

template <typename Isa>
OTR_INLINE void attention_range(const AttentionParams& p, const AttentionLanes& t, const AttentionRange& range,
                                AttentionScratch<typename Isa::Operand>& scratch) {
  using V = typename Isa::Vec;
  using Product = AttentionProduct<typename Isa::Operand>;
  const int head_dim = p.layout.head_dim, first = range.first, lanes = range.end - range.first;
  for (int begin = range.begin_key; begin < range.end_key; begin += kAttentionSplit) {
    const AttentionSplit split = attention_split(p, t.kv_head, range.table, begin, range.end_key);
    const int next_begin = begin + kAttentionSplit < range.end_key ? begin + kAttentionSplit : begin;
    AttentionSplit next = attention_split(p, t.kv_head, range.table, next_begin, range.end_key);
    const int padded = (split.keys + kKvLanes - 1) / kKvLanes * kKvLanes;
    for (int i = 0; i * kPageTokens < split.keys; ++i) {
      if (i * kPageTokens >= next.keys) next.k[i] = split.k[i];
      const int left = padded - i * kPageTokens, keys = left < kPageTokens ? left : kPageTokens;
      attention_product<Isa>(Product{split.k + i, split.v + i, int64_t{head_dim} * kKvLanes, keys / kKvLanes, head_dim / 2,
                                     head_dim / 2, scratch.q[first], scratch.s[first] + i * kPageTokens, lanes});
    }
    alignas(64) float m_split[kAttentionLanes], l_split[kAttentionLanes], keep[kAttentionLanes], add[kAttentionLanes];
    int visible[kAttentionLanes] = {};
    for (int lane = 0; lane < kAttentionLanes; ++lane) m_split[lane] = -__builtin_inff(), l_split[lane] = 0;
    for (int lane = first; lane < range.end; ++lane) {
      const int sees = p.rows->positions[AttentionLanes::row(t, lane)] + 1 - begin;
      visible[lane] = sees < 0 ? 0 : sees < split.keys ? sees : split.keys;
      attention_softmax<Isa>(scratch.s[lane], visible[lane], padded, p.scale, scratch.p[lane], &m_split[lane], &l_split[lane]);
    }
    const V m_next = max_(V::load(m_split), V::load(scratch.m));
    store(keep, exp32_not_positive(V::load(scratch.m) - m_next));
    store(add, exp32_not_positive(V::load(m_split) - m_next));
    store(m_split, m_next);

    attention_product<Isa>(Product{split.v, next.k, int64_t{kPageTokens} * kKvLanes, head_dim / kKvLanes, (split.keys + 1) / 2,
                                   kPageTokens / 2, scratch.p[first], scratch.s[first], lanes});
    for (int lane = first; lane < range.end; ++lane) {
      if (visible[lane] == 0) continue;
      const bool is_first = begin == 0;  // which is taken as it is, not merged with nothing
      scratch.m[lane] = m_split[lane];
      scratch.l[lane] = is_first ? l_split[lane] : scratch.l[lane] * keep[lane] + l_split[lane] * add[lane];
      const V old = V::broadcast(keep[lane]), added = V::broadcast(add[lane]);
      for (int d = 0; d < head_dim; d += kKvLanes) {
        const V o = V::load(scratch.s[lane] + d) + V::zero();
        store(scratch.o[lane] + d, is_first ? o : V::load(scratch.o[lane] + d) * old + o * added);
      }
    }
  }
}

// The lanes of a bundle: what its tiles share first, then each tile's own keys.
template <typename Isa>
OTR_INLINE void attention_task(const AttentionParams& p, const AttentionLanes& t, const TileBundle& bundle) {
  using V = typename Isa::Vec;
  const RowBatch& rows = *p.rows;
  const int head_dim = p.layout.head_dim;
  AttentionScratch<typename Isa::Operand> scratch;
  for (int lane = 0; lane < t.count; ++lane) {
    const Element* q = p.q + AttentionLanes::offset(t, lane, int64_t{p.num_heads} * head_dim, head_dim);
    for (int i = 0; i < head_dim; ++i) scratch.q[lane][i] = Isa::widen(q[i]);
  }
  for (int lane = 0; lane < kAttentionLanes; ++lane) scratch.m[lane] = -__builtin_inff();
  const RowTile* tiles = rows.tiles + bundle.first_tile;
  const auto table = [&](const RowTile& tile) { return rows.page_tables + rows.segments[tile.segment].first_page; };
  const auto lane_of = [&](int64_t row) {  // the first one of a row
    const int64_t lane = (row - t.first_row) * t.group - t.first_lane;
    return static_cast<int>(lane < 0 ? 0 : lane < t.count ? lane : t.count);
  };
  for (int i = -1; i < bundle.num_tiles; ++i) {
    AttentionRange range = {0, t.count, table(tiles[0]), 0, bundle.shared_keys};
    if (i >= 0) {
      const int64_t first_row = tiles[i].first_row, end_row = first_row + tiles[i].num_rows;
      range = {lane_of(first_row), lane_of(end_row), table(tiles[i]), bundle.shared_keys, rows.positions[end_row - 1] + 1};
    }
    attention_range<Isa>(p, t, range, scratch);
  }
  for (int lane = 0; lane < t.count; ++lane) {
    Element* out = p.out + AttentionLanes::offset(t, lane, p.out_stride, head_dim);
    const V l = V::broadcast(scratch.l[lane]);
    for (int d = 0; d < head_dim; d += kKvLanes) store(out + d, V::load(scratch.o[lane] + d) / l);
  }
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
    attention_task<Isa>(p, {first.first_row, chunk * kAttentionLanes, count, kv_head, group}, bundle);
  });
}

}  // namespace otr
