// The vector form of rope_append: 16 pairs at a time. Without a per-head norm its bits are the definition's; the norm's sum
// runs in 16 float32 lanes (rmsnorm_vec.h). V is a float type of kernels/simd. REQUIRES: head_dim is a multiple of 32.
//
// What a page keeps apart (V in kRows; K, by pairs, and V in kPairs) is written element by element, since another thread may
// write the next slot. Rows of one tile are neighbours in those cache lines (a head's K or V is 64 * head_dim * 2 bytes = 16 KB
// at 128), which therefore stay in L1 while a prefill tile is written.
#pragma once

#include "kernels/base/thread_pool.h"
#include "kernels/rmsnorm/rmsnorm_vec.h"
#include "kernels/rope_append/rope_append.h"

namespace otr {

// The smallest magnitude that rounds to a bf16 infinity: half a unit above the largest finite value.
inline constexpr uint32_t kBf16OverflowBits = 0x7f7f8000u;

// Lanes that would not be finite as an Element become 0 and raise *fault.
template <typename V>
OTR_INLINE V finite_or_zero_vec(V x, uint8_t* fault) {
  const V limit = V::broadcast(float_from_bits(kBf16OverflowBits)), zero = V::zero();
  if ((mask_less(x, limit) & mask_less(-limit, x)) == 0xffffu) return x;
  *fault = 1;
  return select_less(-limit, x, select_less(x, limit, x, zero), zero);
}

// Norm (if any) and rotation of one head; fault is null for q, which reaches no other row.
template <typename V>
OTR_INLINE void rotate_head_vec(const float* x, const float* norm, float eps, const float* cos, const float* sin, int head_dim,
                                Element* out, uint8_t* fault) {
  const int half = head_dim / 2;
  const V inv = norm != nullptr ? inverse_rms<V>(x, head_dim, eps) : V::zero();
  for (int i = 0; i < half; i += 16) {
    V a = V::load(x + i), b = V::load(x + half + i);
    if (norm != nullptr) {
      a = a * inv * V::load(norm + i);
      b = b * inv * V::load(norm + half + i);
    }
    const V c = V::load(cos + i), s = V::load(sin + i);
    V first = a * c - b * s, second = b * c + a * s;
    if (fault != nullptr) {
      first = finite_or_zero_vec(first, fault);
      second = finite_or_zero_vec(second, fault);
    }
    store(out + i, first);
    store(out + half + i, second);
  }
}

// A rotated key into its slot; head_dim values that may not be finite into theirs.
OTR_INLINE void append_key(const KvLayout& layout, const Element* key, int slot, Element* page) {
  if (layout.packing == KvPacking::kRows) {
    __builtin_memcpy(page + layout.k_index(slot, 0), key, sizeof(Element) * static_cast<unsigned>(layout.head_dim));
    return;
  }
  Element* to = page + layout.k_index(slot, 0);
  for (int i = 0; i < layout.head_dim; i += 2, to += 2 * kKvLanes) __builtin_memcpy(to, key + i, 2 * sizeof(Element));
}
template <typename V>
OTR_INLINE void append_value(const KvLayout& layout, const float* value, int slot, Element* page, uint8_t* fault) {
  const int64_t stride = layout.v_index(0, 1);
  for (int i = 0; i < layout.head_dim; i += kKvLanes) {
    Element lanes[kKvLanes];
    store(lanes, finite_or_zero_vec(V::load(value + i), fault));
    Element* to = page + layout.v_index(slot, i);
    for (int j = 0; j < kKvLanes; ++j) to[j * stride] = lanes[j];
  }
}

template <typename V>
OTR_INLINE void rope_append_vec(const RopeAppendParams& p, ThreadPool& pool) {
  const RowBatch& rows = *p.rows;
  const int hd = p.layout.head_dim, half = hd / 2, kv_heads = p.layout.num_kv_heads;
  const int64_t qkv_stride = int64_t{p.num_heads + 2 * kv_heads} * hd;
  pool.parallel_for(rows.num_tiles, [&](int t, int) {
    const RowTile& tile = rows.tiles[t];
    const PageId* table = rows.page_tables + rows.segments[tile.segment].first_page;
    for (int64_t row = tile.first_row; row < tile.first_row + tile.num_rows; ++row) {
      const float* q = p.qkv + row * qkv_stride;
      const float* k = q + int64_t{p.num_heads} * hd;
      const float* v = k + int64_t{kv_heads} * hd;
      const float *cos = p.cos + row * half, *sin = p.sin + row * half;
      const int position = rows.positions[row], slot = position % kPageTokens;
      Element* page = p.pages + table[position / kPageTokens] * p.layout.page_elements();
      for (int64_t h = 0; h < p.num_heads; ++h) {
        Element* out = p.q + (row * p.num_heads + h) * hd;
        rotate_head_vec<V>(q + h * hd, p.q_norm, p.norm_eps, cos, sin, hd, out, nullptr);
      }
      for (int h = 0; h < kv_heads; ++h) {
        Element key[kRopeMaxHeadDim];
        rotate_head_vec<V>(k + int64_t{h} * hd, p.k_norm, p.norm_eps, cos, sin, hd, key, &p.fault[row]);
        append_key(p.layout, key, slot, page + p.layout.k_offset(p.layer, h));
        append_value<V>(p.layout, v + int64_t{h} * hd, slot, page + p.layout.v_offset(p.layer, h), &p.fault[row]);
      }
    }
  });
  rope_append_copies(p, pool);
}

}  // namespace otr
