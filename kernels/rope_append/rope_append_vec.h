// The vector form of rope_append: 16 pairs at a time. Without a per-head norm its bits are the definition's; the norm's sum
// runs in 16 float32 lanes (rmsnorm_vec.h). V is a float type of kernels/simd. REQUIRES: head_dim is a multiple of 32.
//
// V is stored transposed, so a row's head_dim values go to as many cache lines; rows of one tile are neighbours in those lines
// (a head's V block is 64 * head_dim * 2 bytes = 16 KB at 128), which therefore stay in L1 while a prefill tile is written.
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
        Element* k_slot = page + p.layout.k_offset(p.layer, h) + int64_t{slot} * hd;
        Element* v_slot = page + p.layout.v_offset(p.layer, h) + slot;
        rotate_head_vec<V>(k + int64_t{h} * hd, p.k_norm, p.norm_eps, cos, sin, hd, k_slot, &p.fault[row]);
        for (int i = 0; i < hd; i += 16) {
          Element lanes[16];
          store(lanes, finite_or_zero_vec(V::load(v + int64_t{h} * hd + i), &p.fault[row]));
          for (int j = 0; j < 16; ++j) v_slot[int64_t{i + j} * kPageTokens] = lanes[j];
        }
      }
    }
  });
  rope_append_copies(p, pool);
}

}  // namespace otr
