// The ways in and out of attention_amx.cpp: rows of queries become columns of tiles, and columns of sums rows of outputs.
#pragma once

#include <cstdint>

#include "kernels/attention/attention_lanes.h"
#include "kernels/simd/vec_avx512.h"

namespace otr {

// Row of a group's sums where l is: the first tile after O.
OTR_INLINE int attention_amx_l_row(int head_dim) { return (head_dim + 15) / 16 * 16; }

// x[i] lane j <-> x[j] lane i.
OTR_INLINE void transpose_16(__m512i x[16]) {
  __m512i t[16];
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    const __m512i a = _mm512_unpacklo_epi32(x[i], x[i + 1]), b = _mm512_unpackhi_epi32(x[i], x[i + 1]);
    const __m512i c = _mm512_unpacklo_epi32(x[i + 2], x[i + 3]), d = _mm512_unpackhi_epi32(x[i + 2], x[i + 3]);
    t[i] = _mm512_unpacklo_epi64(a, c);
    t[i + 1] = _mm512_unpackhi_epi64(a, c);
    t[i + 2] = _mm512_unpacklo_epi64(b, d);
    t[i + 3] = _mm512_unpackhi_epi64(b, d);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const __m512i a = _mm512_shuffle_i32x4(t[i], t[i + 4], 0x88), b = _mm512_shuffle_i32x4(t[i + 8], t[i + 12], 0x88);
    const __m512i c = _mm512_shuffle_i32x4(t[i], t[i + 4], 0xdd), d = _mm512_shuffle_i32x4(t[i + 8], t[i + 12], 0xdd);
    x[i] = _mm512_shuffle_i32x4(a, b, 0x88);
    x[i + 8] = _mm512_shuffle_i32x4(a, b, 0xdd);
    x[i + 4] = _mm512_shuffle_i32x4(c, d, 0x88);
    x[i + 12] = _mm512_shuffle_i32x4(c, d, 0xdd);
  }
}

// Queries of up to 16 lanes: q [head_dim rounded up to 32, / 2][16 lanes][2], zero where there is none.
OTR_INLINE void attention_amx_pack_q(const AttentionParams& p, const AttentionLanes& t, Element (*q)[kAttentionLanes][2]) {
  const int head_dim = p.layout.head_dim;
  for (int d = 0; d < head_dim; d += 32) {
    __m512i x[16];
#pragma GCC unroll 16
    for (int lane = 0; lane < 16; ++lane) x[lane] = _mm512_setzero_si512();
    const __mmask32 columns = head_dim - d >= 32 ? 0xffffffffu : (1u << (head_dim - d)) - 1u;
    for (int lane = 0; lane < t.count; ++lane) {
      const Element* from = p.q + AttentionLanes::offset(t, lane, int64_t{p.num_heads} * head_dim, head_dim);
      x[lane] = _mm512_maskz_loadu_epi16(columns, from + d);
    }
    transpose_16(x);
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) _mm512_store_si512(q[d / 2 + i], x[i]);
  }
}

// out = O / l, lanes as rows.
OTR_INLINE void attention_amx_write(const AttentionParams& p, const AttentionLanes& t, const float (*o)[kAttentionLanes],
                                    uint32_t nan_lanes) {
  const int head_dim = p.layout.head_dim;
  const __m512 l = _mm512_mask_mov_ps(_mm512_load_ps(o[attention_amx_l_row(head_dim)]), static_cast<__mmask16>(nan_lanes),
                                      _mm512_set1_ps(__builtin_nanf("")));
  const __m512 reciprocal = _mm512_div_ps(_mm512_set1_ps(1.0f), l);
  for (int d = 0; d < head_dim; d += 16) {
    const int count = head_dim - d < 16 ? head_dim - d : 16;
    __m512i x[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) {
      // + 0: steps past a lane's end would make a -0 +0, so it always is. The quotient is corrected by its remainder: a
      // division's rounding, in a fifth of its time.
      const __m512 sum = _mm512_add_ps(_mm512_load_ps(o[d + i]), _mm512_setzero_ps()),
                   quotient = _mm512_mul_ps(sum, reciprocal);
      x[i] = _mm512_castps_si512(_mm512_fmadd_ps(_mm512_fnmadd_ps(quotient, l, sum), reciprocal, quotient));
    }
    transpose_16(x);
    for (int lane = 0; lane < t.count; ++lane) {
      Element* out = p.out + AttentionLanes::offset(t, lane, p.out_stride, head_dim) + d;
      store_first(out, count, VecAvx512{_mm512_castsi512_ps(x[lane])});
    }
  }
}

}  // namespace otr
