// The lanes of attention_tile.h: what a task keeps for its 16 query rows, how they are filled, and what happens down a lane.
#pragma once

#include <cstdint>

#include "kernels/attention/attention.h"
#include "kernels/base/elementary.h"

namespace otr {

inline constexpr int kAttentionKeyStep = 32;    // keys are processed in steps of this many: one AMX step, half a page
inline constexpr int kAttentionValueRows = 64;  // rows of V^T in one product

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
  int first_lane;  // of the bundle's rows x group, row-major
  int count;
  int kv_head, group;

  int64_t row(int lane) const { return first_row + (first_lane + lane) / group; }
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

}  // namespace otr
