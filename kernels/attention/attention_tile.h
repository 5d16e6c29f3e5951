// The one attention algorithm of the vector paths: a task is up to 16 query rows (tokens of a RowTile x heads of one group) in
// the 16 lanes of a vector, against one KV head. Softmax runs down a lane, so no sum ever crosses lanes, and a row's bits
// depend neither on its lane nor on its neighbours.
//
//   for each split of kAttentionSplit keys, ascending                    (see attention.h)
//     S^T [keys][16]      = K [keys][head_dim] q^T                       product: left operand straight from the page
//     m, P = exp32(S - m), l                                            masked keys: P = 0 exactly
//     O^T [head_dim][16]  = V^T [head_dim][keys] P^T                     product: left operand straight from the page
//     merge (m, l, O) into the running sums
//   out = O / l
//
// Reduction order, common to the paths: s = dot * scale, dot in the product's order over head_dim; l = (l0 + l1) + (l2 + l3)
// where l_c sums the keys j with j % 4 = c, ascending; O is the product's order over keys from the split's first key on, and a -0
// is made +0. How far a tile's longest row makes it run past a shorter row's end cannot show: those keys add exact zeros, which
// change nothing but the sign of a zero, and a lane takes no part in the merge of a split it has no key in.
//
// An Isa offers: Vec (a float type of kernels/simd), begin() and end() around a task, and product(AttentionProduct).
// Scratch: 52 KB of stack.
#pragma once

#include <cstdint>

#include "kernels/attention/attention.h"
#include "kernels/base/elementary.h"
#include "kernels/base/thread_pool.h"

namespace otr {

inline constexpr int kAttentionSplitPages = kAttentionSplit / kPageTokens;
inline constexpr int kAttentionKeyStep = 32;    // keys are processed in steps of this many: one AMX step, half a page
inline constexpr int kAttentionValueRows = 64;  // rows of V^T in one product

// c[r][lane] = sum over i < depth of a[r][i] * b[i][lane], for r < rows; rows and depth are even.
struct AttentionProduct {
  const Element* const* pieces;  // row r of piece n holds a[r][n * piece_depth …] at pieces[n] + offset + r * stride
  int64_t offset, stride;        // elements
  int rows;                      // <= 64
  int depth, piece_depth;
  const Element* b;              // [depth rounded up to 32, / 2][16 lanes][2], zero from depth on
  float* c;                      // [rows rounded up to 16][16 lanes]
};

struct alignas(64) AttentionScratch {
  Element q[kAttentionMaxHeadDim / 2][kAttentionLanes][2];
  float s[kAttentionSplit][kAttentionLanes];
  Element p[kAttentionSplit / 2][kAttentionLanes][2];
  float o_split[kAttentionValueRows][kAttentionLanes];
  float o[kAttentionMaxHeadDim][kAttentionLanes];
};

// Which rows and heads a task's lanes are.
struct AttentionLanes {
  int64_t first_row;
  int first_lane;  // of the tile's rows x group, row-major
  int count;
  int kv_head, group;

  // Element offset of a lane's head in a [num_rows][…] array whose rows are `stride` apart.
  OTR_INLINE int64_t offset(const AttentionLanes& t, int lane, int64_t stride, int head_dim) {
    const int i = t.first_lane + lane;
    return (t.first_row + i / t.group) * stride + (int64_t{t.kv_head} * t.group + i % t.group) * head_dim;
  }
};

OTR_INLINE void attention_pack_q(const AttentionParams& p, const AttentionLanes& t, AttentionScratch& scratch) {
  const int pairs = p.layout.head_dim / 2, padded_pairs = (pairs + 15) / 16 * 16;
  __builtin_memset(scratch.q, 0, static_cast<unsigned>(padded_pairs) * sizeof scratch.q[0]);
  for (int lane = 0; lane < t.count; ++lane) {
    const Element* q = p.q + AttentionLanes::offset(t, lane, int64_t{p.num_heads} * p.layout.head_dim, p.layout.head_dim);
    for (int i = 0; i < pairs; ++i) __builtin_memcpy(scratch.q[i][lane], q + 2 * i, sizeof scratch.q[i][lane]);
  }
}

// Softmax of one split: scratch.s becomes scratch.p; returns m and l. `limit`: keys of the split that the lane may see.
template <typename V>
OTR_INLINE void attention_softmax(AttentionScratch& scratch, int keys, V limit, float scale, V* m_out, V* l_out) {
  const V minus_inf = V::broadcast(-__builtin_inff());
  V m = minus_inf;
  for (int j = 0; j < keys; ++j) {
    const V s = select_less(V::broadcast(static_cast<float>(j)), limit, V::load(scratch.s[j]) * V::broadcast(scale), minus_inf);
    store(scratch.s[j], s);
    m = max_(s, m);  // a NaN score leaves m alone, and makes P, and so the output, NaN
  }
  V l[4] = {V::zero(), V::zero(), V::zero(), V::zero()};
  for (int j = 0; j < keys; j += 4) {
    V p[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      // Selected, not left to exp32(-inf): in a lane without keys m is -inf too, and the difference NaN.
      p[i] = select_less(V::broadcast(static_cast<float>(j + i)), limit, exp32(V::load(scratch.s[j + i]) - m), V::zero());
      l[i] = l[i] + p[i];
    }
    store_pairs(scratch.p[j / 2][0], p[0], p[1]);
    store_pairs(scratch.p[j / 2 + 1][0], p[2], p[3]);
  }
  *m_out = m;
  *l_out = (l[0] + l[1]) + (l[2] + l[3]);
}

// Columns of the transposed sums become rows of the output.
template <typename V>
OTR_INLINE void attention_write(const AttentionParams& p, const AttentionLanes& t, AttentionScratch& scratch, V l) {
  const int head_dim = p.layout.head_dim;
  Element* normalised = scratch.p[0][0];  // [head_dim][16 lanes]; P is no longer needed
  for (int d = 0; d < head_dim; ++d) store(normalised + d * kAttentionLanes, V::load(scratch.o[d]) / l);
  for (int lane = 0; lane < t.count; ++lane) {
    Element* out = p.out + AttentionLanes::offset(t, lane, p.out_stride, head_dim);
    for (int d = 0; d < head_dim; ++d) out[d] = normalised[d * kAttentionLanes + lane];
  }
}

template <typename Isa>
OTR_INLINE void attention_task(const AttentionParams& p, const AttentionLanes& t, const PageId* table, int num_keys) {
  using V = typename Isa::Vec;
  const int head_dim = p.layout.head_dim;
  const V zero = V::zero();
  AttentionScratch scratch;
  attention_pack_q(p, t, scratch);
  V m = zero, l = zero;

  for (int begin = 0; begin < num_keys; begin += kAttentionSplit) {
    const int left = (num_keys - begin + kAttentionKeyStep - 1) / kAttentionKeyStep * kAttentionKeyStep;
    const int keys = left < kAttentionSplit ? left : kAttentionSplit;
    const Element* k_pages[kAttentionSplitPages];
    const Element* v_pages[kAttentionSplitPages];
    for (int i = 0; i * kPageTokens < keys; ++i) {
      const Element* page = p.pages + table[begin / kPageTokens + i] * p.layout.page_elements();
      k_pages[i] = page + p.layout.k_offset(p.layer, t.kv_head);
      v_pages[i] = page + p.layout.v_offset(p.layer, t.kv_head);
    }
    alignas(64) float limits[kAttentionLanes] = {};  // small integers: exact as float32
    for (int lane = 0; lane < t.count; ++lane) {
      const int visible = p.rows->positions[t.first_row + (t.first_lane + lane) / t.group] + 1 - begin;
      limits[lane] = static_cast<float>(visible < 0 ? 0 : visible < kAttentionSplit ? visible : kAttentionSplit);
    }
    const V limit = V::load(limits);

    for (int i = 0; i * kPageTokens < keys; ++i) {
      const int rows = keys - i * kPageTokens < kPageTokens ? keys - i * kPageTokens : kPageTokens;
      Isa::product({k_pages + i, 0, head_dim, rows, head_dim, head_dim, scratch.q[0][0], scratch.s[i * kPageTokens]});
    }
    V m_split, l_split;
    attention_softmax(scratch, keys, limit, p.scale, &m_split, &l_split);

    const V m_next = max_(m_split, m);
    const V keep = exp32(m - m_next), add = exp32(m_split - m_next);
    for (int d0 = 0; d0 < head_dim; d0 += kAttentionValueRows) {
      const int rows = head_dim - d0 < kAttentionValueRows ? head_dim - d0 : kAttentionValueRows;
      Isa::product({v_pages, int64_t{d0} * kPageTokens, kPageTokens, rows, keys, kPageTokens, scratch.p[0][0],
                    scratch.o_split[0]});
      for (int d = 0; d < rows; ++d) {
        V o = V::load(scratch.o_split[d]) + zero;
        if (begin != 0) {
          const V before = V::load(scratch.o[d0 + d]);
          o = select_less(zero, limit, before * keep + o * add, before);
        }
        store(scratch.o[d0 + d], o);
      }
    }
    m = begin == 0 ? m_split : select_less(zero, limit, m_next, m);
    l = begin == 0 ? l_split : select_less(zero, limit, l * keep + l_split * add, l);
  }
  attention_write(p, t, scratch, l);
}

template <typename Isa>
OTR_INLINE void attention_tiles(const AttentionParams& p, ThreadPool& pool) {
  const RowBatch& rows = *p.rows;
  const int group = p.num_heads / p.layout.num_kv_heads;
  const int chunks = (group + kAttentionLanes - 1) / kAttentionLanes;  // more than one: a tile is one token of a large group
  // One KV head after the other, so that neighbouring tiles of a sequence find its keys and values in cache.
  pool.parallel_for(p.layout.num_kv_heads * chunks * rows.num_tiles, [&](int task, int) {
    const RowTile& tile = rows.tiles[task % rows.num_tiles];
    const int chunk = task / rows.num_tiles % chunks, kv_head = task / rows.num_tiles / chunks;
    const int left = tile.num_rows * group - chunk * kAttentionLanes;
    const int count = left < kAttentionLanes ? left : kAttentionLanes;
    const AttentionLanes lanes = {tile.first_row, chunk * kAttentionLanes, count, kv_head, group};
    const PageId* table = rows.page_tables + rows.segments[tile.segment].first_page;
    Isa::begin();
    attention_task<Isa>(p, lanes, table, rows.positions[tile.first_row + tile.num_rows - 1] + 1);
    Isa::end();
  });
}

}  // namespace otr
