// What attention_amx.cpp does down the 16 lanes of a group: masks, maxima and exp.
//
// P = bf16(2^y), y = s * scale * log2 e - m * scale * log2 e in one fma, all in float32 but for the one rounding to bf16. What
// is taken off is a rounded number, of which y inherits half an ulp: 2^-13 just below 4096. Lanes in which it is 4096 or more
// take y = (s - m) * scale * log2 e instead, which is 0 at s = m whatever their size, and does not grow past what P can be.
// With r = y - floor(y) and the polynomial 1 + r + r Q(r) of 2^r (Q of degree 3 with the least maximum of the relative error,
// 3.3e-6: a six-hundredth of that rounding; exact at 0, and at 1, where the next power of two begins),
//   z = r Q(r) + y = floor(y) + (2^r - 1)
// is P's exponent and mantissa as one number, since bf16 counts in 128 steps from one power of two to the next: added to 2^16 +
// 127, whose last place is 1 / 128, it is rounded (ties to even) and its lower 16 bits are P. Sums of less than 2^16 are raised
// to it: P = +0. Below 2^-126 P is a denormal, which a tile product takes for 0. 10 vector operations a key, two ports: the
// exp32 of elementary.h, a sum and the rounding to bf16 take 28.
#pragma once

#include <cstdint>

#include "kernels/attention/attention_lanes.h"
#include "kernels/base/elementary.h"
#include "kernels/simd/vec_avx512.h"

namespace otr {

inline constexpr float kLog2E = 1.44269504088896341f;

OTR_INLINE __mmask16 attention_amx_lanes_with_keys(const int32_t* visible) {
  const __m512i v = _mm512_load_si512(visible);
  return _mm512_test_epi32_mask(v, v);
}

// Keys of the split at `begin` that each lane sees: none if its row is not in [first_row, end_row).
OTR_INLINE void attention_amx_visible(const int32_t* rows, const int32_t* ends, int64_t first_row, int64_t end_row, int begin,
                                      int32_t* visible, int* min_visible, int* max_visible) {
  const __m512i row = _mm512_load_si512(rows);
  const __mmask16 in = _mm512_cmpge_epi32_mask(row, _mm512_set1_epi32(static_cast<int>(first_row))) &
                       _mm512_cmplt_epi32_mask(row, _mm512_set1_epi32(static_cast<int>(end_row)));
  __m512i v = _mm512_maskz_sub_epi32(in, _mm512_load_si512(ends), _mm512_set1_epi32(begin));
  v = _mm512_min_epi32(_mm512_max_epi32(v, _mm512_setzero_si512()), _mm512_set1_epi32(kAttentionSplit));
  _mm512_store_si512(visible, v);
  *min_visible = _mm512_reduce_min_epi32(v);
  *max_visible = _mm512_reduce_max_epi32(v);
}

// Keys [first, end) that a lane does not see become -inf. No lane sees fewer than min_visible.
OTR_INLINE void attention_amx_mask(float (*s)[kAttentionLanes], int first, int end, int min_visible, const int32_t* visible) {
  const __m512i limit = _mm512_load_si512(visible);
  for (int j = first > min_visible ? first : min_visible; j < end; ++j) {
    const __mmask16 hidden = _mm512_cmple_epi32_mask(limit, _mm512_set1_epi32(j));
    _mm512_mask_store_ps(s[j], hidden, _mm512_set1_ps(-__builtin_inff()));
  }
}

// A NaN score leaves m alone. REQUIRES: keys a multiple of 4.
OTR_INLINE __m512 attention_amx_max(const float (*s)[kAttentionLanes], int keys, __m512 m) {
  __m512 other[4] = {m, m, m, m};
  for (int j = 0; j < keys; j += 4) {
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) other[i] = _mm512_max_ps(_mm512_load_ps(s[j + i]), other[i]);
  }
  return _mm512_max_ps(_mm512_max_ps(other[0], other[1]), _mm512_max_ps(other[2], other[3]));
}

// The lanes whose scores are too great for one fma: m is subtracted from them first. (An infinite m leaves NaN either way, or a
// lane without keys.)
OTR_INLINE __mmask16 attention_amx_great_lanes(__m512 m, __m512 minus_m) {
  constexpr int kInfinite = 0x18;
  const __mmask16 great = _mm512_cmp_ps_mask(_mm512_abs_ps(minus_m), _mm512_set1_ps(4096.0f), _CMP_GE_OQ);
  return static_cast<__mmask16>(great & ~_mm512_fpclass_ps_mask(m, kInfinite));
}

// The number whose lower 16 bits are P. minus_m: -m * scale, or 0 where m is off s already.
OTR_INLINE __m512 attention_amx_exp_bits(__m512 s, __m512 scale, __m512 minus_m) {
  constexpr int kFloorQuietly = 0x09;
  const __m512 y = _mm512_fmadd_ps(s, scale, minus_m);
  const __m512 r = _mm512_reduce_ps(y, kFloorQuietly);
  __m512 q = _mm512_set1_ps(1.3558879e-2f);
  q = _mm512_fmadd_ps(q, r, _mm512_set1_ps(5.2025791e-2f));
  q = _mm512_fmadd_ps(q, r, _mm512_set1_ps(2.4138404e-1f));
  q = _mm512_fmadd_ps(q, r, _mm512_set1_ps(-3.0696872e-1f));
  const __m512 sum = _mm512_add_ps(_mm512_fmadd_ps(q, r, y), _mm512_set1_ps(65536.0f + 127.0f));
  return _mm512_max_ps(_mm512_set1_ps(65536.0f), sum);  // the sum where it is NaN
}

// Scores become P, in place: pair j / 2 at row j / 2. Returns the lanes that met a NaN, whose P is arbitrary. Calls beside()
// every 16 keys.
template <typename Beside>
OTR_INLINE uint32_t attention_amx_exp(float (*s)[kAttentionLanes], int keys, __m512 m, float scale_of_dot,
                                      const Beside& beside) {
  const __m512 scale = _mm512_set1_ps(scale_of_dot);
  __m512 minus_m = _mm512_mul_ps(m, _mm512_set1_ps(-scale_of_dot));
  if (const __mmask16 great = attention_amx_great_lanes(m, minus_m); great != 0) {
    for (int j = 0; j < keys; ++j) _mm512_mask_store_ps(s[j], great, _mm512_sub_ps(_mm512_load_ps(s[j]), m));
    minus_m = _mm512_mask_mov_ps(minus_m, great, _mm512_setzero_ps());
  }
  __m512i seen = _mm512_setzero_si512();  // bits of all sums: of one binade, unless there is a NaN
  for (int j = 0; j < keys; j += 4) {
    if (j % 16 == 0) beside();
    __m512i x[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) x[i] = _mm512_castps_si512(attention_amx_exp_bits(_mm512_load_ps(s[j + i]), scale, minus_m));
    constexpr int kOr = 0xfe;
    seen = _mm512_ternarylogic_epi32(seen, x[0], x[1], kOr);
    seen = _mm512_ternarylogic_epi32(seen, x[2], x[3], kOr);
    constexpr __mmask32 kOdd = 0xaaaaaaaau;
    _mm512_store_si512(s[j / 2], _mm512_mask_blend_epi16(kOdd, x[0], _mm512_slli_epi32(x[1], 16)));
    _mm512_store_si512(s[j / 2 + 1], _mm512_mask_blend_epi16(kOdd, x[2], _mm512_slli_epi32(x[3], 16)));
  }
  return _mm512_test_epi32_mask(seen, _mm512_set1_epi32(0x38000000));
}

// What exp is taken against: the maximum of the splits so far, or an earlier one that it exceeds by at most 2^8 in exp: then no
// sum needs scaling, and P loses nothing, being a floating-point number.
OTR_INLINE __m512 attention_amx_reference(__m512 before, __m512 split, float scale_of_dot) {
  const __m512 growth = _mm512_mul_ps(_mm512_sub_ps(split, before), _mm512_set1_ps(scale_of_dot));
  return _mm512_mask_mov_ps(before, _mm512_cmp_ps_mask(growth, _mm512_set1_ps(8.0f), _CMP_GT_OQ), split);
}

// Multiplies `num_rows` rows of sums by exp(before - m), if that is not 1 in all lanes.
OTR_INLINE void attention_amx_rescale(float (*o)[kAttentionLanes], int num_rows, __m512 before, __m512 m, float scale) {
  if (_mm512_cmp_ps_mask(before, m, _CMP_EQ_OQ) == 0xffff) return;
  const VecAvx512 keep = exp32_not_positive(VecAvx512{_mm512_mul_ps(_mm512_sub_ps(before, m), _mm512_set1_ps(scale))});
  for (int d = 0; d < num_rows; ++d) _mm512_store_ps(o[d], _mm512_mul_ps(_mm512_load_ps(o[d]), keep.v));
}

}  // namespace otr
