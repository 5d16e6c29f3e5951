// What attention_tile.h does with one split: its (m, l, o), and their merging into those of the splits before.
//
// Reduction order, common to the paths: s = dot * scale, dot in the product's order over head_dim; l, sixteen chains of the
// keys j with the same j % 16, then by halves (0 + 8, …; + 4; + 2; + 1); O is the product's order over keys from the split's
// first one on, and a -0 is made +0. How far a task's longest row makes it run past a shorter row's end cannot show: those keys
// add exact zeros, which change nothing but the sign of a zero, and a lane takes no part in the merge of a split it has no key
// in.
//
// An Isa offers: Vec (a float type of kernels/simd); Operand, of q and P in a product; widen(Element) and
// store_weights(Operand*, Vec); and kProducts, at [n] the product of n lanes.
#pragma once

#include <cstdint>

#include "kernels/attention/attention_lanes.h"
#include "kernels/attention/attention_product.h"
#include "kernels/base/elementary.h"

namespace otr {

template <typename Operand>
struct alignas(64) AttentionScratch {
  Operand q[kAttentionLanes][kAttentionStride];
  float s[kAttentionLanes][kAttentionStride];
  Operand p[kAttentionLanes][kAttentionStride];
};

// Lanes [first, end) of a task see keys [begin_key, end_key) of `table`, as far as their positions go.
struct AttentionRange {
  int first, end;
  const PageId* table;
  int begin_key, end_key;
};

// (m, l, o) of the splits merged so far.
struct alignas(64) AttentionSums {
  float m[kAttentionLanes], l[kAttentionLanes];
  float o[kAttentionLanes][kAttentionStride];
};

// (m, l, o) of one split. A lane with visible = 0 has no key in it.
struct alignas(64) AttentionPartial {
  float m[kAttentionLanes], l[kAttentionLanes];
  int visible[kAttentionLanes];
  bool first;                    // the split is its lanes' first one
  float (*o)[kAttentionStride];  // [kAttentionLanes]
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

// What the split at `begin` says of the range's lanes. scratch.q: the queries; partial.o may be scratch.s.
template <typename Isa>
OTR_INLINE void attention_partial(const AttentionParams& p, const AttentionLanes& t, const AttentionRange& range, int begin,
                                  AttentionScratch<typename Isa::Operand>& scratch, AttentionPartial& partial) {
  using Product = AttentionProduct<typename Isa::Operand>;
  const int head_dim = p.layout.head_dim, first = range.first, lanes = range.end - range.first;
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
  partial.first = begin == 0;
  for (int lane = 0; lane < kAttentionLanes; ++lane) {
    partial.m[lane] = -__builtin_inff(), partial.l[lane] = 0, partial.visible[lane] = 0;
  }
  for (int lane = first; lane < range.end; ++lane) {
    const int sees = p.rows->positions[AttentionLanes::row(t, lane)] + 1 - begin;
    partial.visible[lane] = sees < 0 ? 0 : sees < split.keys ? sees : split.keys;
    attention_softmax<Isa>(scratch.s[lane], partial.visible[lane], padded, p.scale, scratch.p[lane], &partial.m[lane],
                           &partial.l[lane]);
  }
  attention_product<Isa>(Product{split.v, next.k, int64_t{kPageTokens} * kKvLanes, head_dim / kKvLanes, (split.keys + 1) / 2,
                                 kPageTokens / 2, scratch.p[first], partial.o[first], lanes});
}

template <typename Isa>
OTR_INLINE void attention_merge(const AttentionPartial& partial, int head_dim, AttentionSums& sums) {
  using V = typename Isa::Vec;
  alignas(64) float m_next[kAttentionLanes], keep[kAttentionLanes], add[kAttentionLanes];
  const V m = max_(V::load(partial.m), V::load(sums.m));
  store(keep, exp32_not_positive(V::load(sums.m) - m));
  store(add, exp32_not_positive(V::load(partial.m) - m));
  store(m_next, m);
  for (int lane = 0; lane < kAttentionLanes; ++lane) {
    if (partial.visible[lane] == 0) continue;
    const bool is_first = partial.first;  // which is taken as it is, not merged with nothing
    sums.m[lane] = m_next[lane];
    sums.l[lane] = is_first ? partial.l[lane] : sums.l[lane] * keep[lane] + partial.l[lane] * add[lane];
    const V old = V::broadcast(keep[lane]), added = V::broadcast(add[lane]);
    for (int d = 0; d < head_dim; d += kKvLanes) {
      const V o = V::load(partial.o[lane] + d) + V::zero();
      store(sums.o[lane] + d, is_first ? o : V::load(sums.o[lane] + d) * old + o * added);
    }
  }
}

}  // namespace otr
