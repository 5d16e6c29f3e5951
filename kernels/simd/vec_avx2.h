// The operations of vec_avx512.h on AVX2: 16 lanes as two 256-bit registers, `lo` with lanes 0-7 and `hi` with lanes 8-15.
// Same names, same lanes, same roundings, same order of sums: what is written there holds here.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "kernels/base/element.h"
#include "kernels/base/macros.h"

namespace otr {

struct UintAvx2 {
  __m256i lo, hi;

  OTR_INLINE UintAvx2 load(const uint32_t* p) {
    return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)),
            _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 8))};
  }
  OTR_INLINE UintAvx2 broadcast(uint32_t x) {
    const __m256i b = _mm256_set1_epi32(static_cast<int>(x));
    return {b, b};
  }
};

struct VecAvx2 {
  using Uint = UintAvx2;
  __m256 lo, hi;

  OTR_INLINE VecAvx2 zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
  OTR_INLINE VecAvx2 broadcast(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
  // All ones in lanes below n, of the lanes first_lane … first_lane + 7.
  OTR_INLINE __m256i first(int n, int first_lane) {
    const __m256i lane = _mm256_add_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_set1_epi32(first_lane));
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), lane);
  }

  OTR_INLINE VecAvx2 load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
  OTR_INLINE VecAvx2 load(const Bf16* p) {
    const __m128i* h = reinterpret_cast<const __m128i*>(p);
    const __m256i a = _mm256_cvtepu16_epi32(_mm_loadu_si128(h)), b = _mm256_cvtepu16_epi32(_mm_loadu_si128(h + 1));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(a, 16)), _mm256_castsi256_ps(_mm256_slli_epi32(b, 16))};
  }
  OTR_INLINE VecAvx2 load_first(const float* p, int n) {
    return {_mm256_maskload_ps(p, first(n, 0)), _mm256_maskload_ps(p + 8, first(n, 8))};
  }
  OTR_INLINE VecAvx2 load_first(const float* p, int n, VecAvx2 rest) {
    const __m256i m0 = first(n, 0), m1 = first(n, 8);
    return {_mm256_blendv_ps(rest.lo, _mm256_maskload_ps(p, m0), _mm256_castsi256_ps(m0)),
            _mm256_blendv_ps(rest.hi, _mm256_maskload_ps(p + 8, m1), _mm256_castsi256_ps(m1))};
  }
  OTR_INLINE VecAvx2 load_first(const Bf16* p, int n) {  // AVX2 has no masked load of 16-bit lanes
    Bf16 lanes[16] = {};
    __builtin_memcpy(lanes, p, sizeof(Bf16) * static_cast<unsigned>(n < 16 ? n : 16));
    return load(lanes);
  }
};

// ---- Float arithmetic ---------------------------------------------------------------------------------------------------

OTR_INLINE VecAvx2 operator+(VecAvx2 a, VecAvx2 b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
OTR_INLINE VecAvx2 operator-(VecAvx2 a, VecAvx2 b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
OTR_INLINE VecAvx2 operator*(VecAvx2 a, VecAvx2 b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
OTR_INLINE VecAvx2 operator/(VecAvx2 a, VecAvx2 b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
OTR_INLINE VecAvx2 operator-(VecAvx2 a) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_xor_ps(a.lo, sign), _mm256_xor_ps(a.hi, sign)};
}
OTR_INLINE VecAvx2 fma_(VecAvx2 a, VecAvx2 b, VecAvx2 c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
OTR_INLINE VecAvx2 sqrt_(VecAvx2 a) { return {_mm256_sqrt_ps(a.lo), _mm256_sqrt_ps(a.hi)}; }
OTR_INLINE VecAvx2 broadcast(VecAvx2, float value) { return VecAvx2::broadcast(value); }
OTR_INLINE VecAvx2 max_(VecAvx2 a, VecAvx2 b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }

OTR_INLINE VecAvx2 select_less(VecAvx2 a, VecAvx2 b, VecAvx2 yes, VecAvx2 no) {
  return {_mm256_blendv_ps(no.lo, yes.lo, _mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ)),
          _mm256_blendv_ps(no.hi, yes.hi, _mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ))};
}
OTR_INLINE UintAvx2 select_less(VecAvx2 a, VecAvx2 b, UintAvx2 yes, UintAvx2 no) {
  return {_mm256_blendv_epi8(no.lo, yes.lo, _mm256_castps_si256(_mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ))),
          _mm256_blendv_epi8(no.hi, yes.hi, _mm256_castps_si256(_mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ)))};
}
OTR_INLINE uint32_t mask_of_lanes(__m256 lo, __m256 hi) {
  return static_cast<uint32_t>(_mm256_movemask_ps(lo)) | static_cast<uint32_t>(_mm256_movemask_ps(hi)) << 8;
}
OTR_INLINE uint32_t mask_less(VecAvx2 a, VecAvx2 b) {
  return mask_of_lanes(_mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ));
}
OTR_INLINE uint32_t mask_finite(VecAvx2 a) {
  const __m256 zero = _mm256_setzero_ps();  // x * 0 is NaN exactly for NaN and Inf
  const __m256 lo = _mm256_mul_ps(a.lo, zero), hi = _mm256_mul_ps(a.hi, zero);
  return mask_of_lanes(_mm256_cmp_ps(lo, lo, _CMP_ORD_Q), _mm256_cmp_ps(hi, hi, _CMP_ORD_Q));
}

OTR_INLINE VecAvx2 exp2_of_magic(VecAvx2 magic_sum) {
  const __m256i bias = _mm256_set1_epi32(127);
  const __m256i lo = _mm256_add_epi32(_mm256_castps_si256(magic_sum.lo), bias);
  const __m256i hi = _mm256_add_epi32(_mm256_castps_si256(magic_sum.hi), bias);
  return {_mm256_castsi256_ps(_mm256_slli_epi32(lo, 23)), _mm256_castsi256_ps(_mm256_slli_epi32(hi, 23))};
}
OTR_INLINE __m256 split_exponent_half(__m256 x, __m256* k) {
  const __m256i bits = _mm256_castps_si256(x);
  const __m256i e = _mm256_srai_epi32(_mm256_sub_epi32(bits, _mm256_set1_epi32(0x3f3504f3)), 23);
  *k = _mm256_cvtepi32_ps(e);
  const __m256i mantissa = _mm256_sub_epi32(bits, _mm256_slli_epi32(e, 23));
  return _mm256_sub_ps(_mm256_castsi256_ps(mantissa), _mm256_set1_ps(1.0f));
}
OTR_INLINE VecAvx2 split_exponent(VecAvx2 x, VecAvx2* k) {
  return {split_exponent_half(x.lo, &k->lo), split_exponent_half(x.hi, &k->hi)};
}

// ---- Sums and maxima of lanes ----------------------------------------------------------------------------------------------

OTR_INLINE float reduce_add(VecAvx2 a) {
  const __m256 s8 = _mm256_add_ps(a.lo, a.hi);
  const __m128 s4 = _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
  const __m128 s2 = _mm_add_ps(s4, _mm_movehl_ps(s4, s4));
  return _mm_cvtss_f32(_mm_add_ss(s2, _mm_movehdup_ps(s2)));
}
OTR_INLINE float reduce_max(VecAvx2 a) {
  const __m256 m8 = _mm256_max_ps(a.lo, a.hi);
  const __m128 m4 = _mm_max_ps(_mm256_castps256_ps128(m8), _mm256_extractf128_ps(m8, 1));
  const __m128 m2 = _mm_max_ps(m4, _mm_movehl_ps(m4, m4));
  return _mm_cvtss_f32(_mm_max_ss(m2, _mm_movehdup_ps(m2)));
}

// ---- Stores --------------------------------------------------------------------------------------------------------------

OTR_INLINE void store(float* p, VecAvx2 a) {
  _mm256_storeu_ps(p, a.lo);
  _mm256_storeu_ps(p + 8, a.hi);
}
OTR_INLINE void store_first(float* p, int n, VecAvx2 a) {
  _mm256_maskstore_ps(p, VecAvx2::first(n, 0), a.lo);
  _mm256_maskstore_ps(p + 8, VecAvx2::first(n, 8), a.hi);
}
OTR_INLINE void store(uint32_t* p, UintAvx2 a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), a.lo);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 8), a.hi);
}
template <typename T, typename V>
OTR_INLINE int store_selected(T* p, uint32_t mask, V a) {
  if (mask == 0) return 0;
  T lanes[16];
  store(lanes, a);
  int count = 0;
  for (; mask != 0; mask &= mask - 1) p[count++] = lanes[__builtin_ctz(mask)];
  return count;
}

// Rounds to bf16 as bf16_from_float does, each result in the low half of its 32-bit lane.
OTR_INLINE __m256i round_to_bf16_half(__m256 a) {
  const __m256i bits = _mm256_castps_si256(a);
  const __m256i high = _mm256_srli_epi32(bits, 16);
  const __m256i even = _mm256_add_epi32(_mm256_and_si256(high, _mm256_set1_epi32(1)), _mm256_set1_epi32(0x7fff));
  const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, even), 16);
  const __m256i quiet = _mm256_or_si256(high, _mm256_set1_epi32(0x40));
  return _mm256_blendv_epi8(rounded, quiet, _mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_UNORD_Q)));
}
OTR_INLINE __m256i round_to_bf16(VecAvx2 a) {
  const __m256i packed = _mm256_packus_epi32(round_to_bf16_half(a.lo), round_to_bf16_half(a.hi));
  return _mm256_permute4x64_epi64(packed, 0xd8);  // packing works within 128-bit halves: put them back in order
}
OTR_INLINE void store(Bf16* p, VecAvx2 a) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), round_to_bf16(a)); }
OTR_INLINE void store_first(Bf16* p, int n, VecAvx2 a) {
  Bf16 lanes[16];
  store(lanes, a);
  __builtin_memcpy(p, lanes, sizeof(Bf16) * static_cast<unsigned>(n < 16 ? n : 16));
}

// ---- Integer lanes ----------------------------------------------------------------------------------------------------

OTR_INLINE UintAvx2 operator+(UintAvx2 a, UintAvx2 b) { return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)}; }
OTR_INLINE UintAvx2 operator^(UintAvx2 a, UintAvx2 b) { return {_mm256_xor_si256(a.lo, b.lo), _mm256_xor_si256(a.hi, b.hi)}; }
OTR_INLINE UintAvx2 operator~(UintAvx2 a) { return a ^ UintAvx2::broadcast(~0u); }
OTR_INLINE UintAvx2 broadcast(UintAvx2, uint32_t value) { return UintAvx2::broadcast(value); }

OTR_INLINE __m256i multiply_wide_half(__m256i a, __m256i factor, __m256i* low) {
  const __m256i even = _mm256_mul_epu32(a, factor), odd = _mm256_mul_epu32(_mm256_srli_epi64(a, 32), factor);
  *low = _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xaa);
  return _mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xaa);
}
OTR_INLINE UintAvx2 multiply_wide(UintAvx2 a, uint32_t b, UintAvx2* low) {
  const __m256i factor = _mm256_set1_epi32(static_cast<int>(b));
  return {multiply_wide_half(a.lo, factor, &low->lo), multiply_wide_half(a.hi, factor, &low->hi)};
}

// Words for chains of products need no other form here: two of them would take all 16 registers.
OTR_INLINE UintAvx2 widen(UintAvx2 a) { return a; }
OTR_INLINE UintAvx2 narrow(UintAvx2 a) { return a; }

// AVX2 converts signed integers only: both 16-bit halves are exact, so the one rounding is that of their sum.
OTR_INLINE __m256 float_from_uint_half(__m256i a) {
  const __m256 high = _mm256_cvtepi32_ps(_mm256_srli_epi32(a, 16));
  const __m256 low = _mm256_cvtepi32_ps(_mm256_and_si256(a, _mm256_set1_epi32(0xffff)));
  return _mm256_fmadd_ps(high, _mm256_set1_ps(65536.0f), low);
}
OTR_INLINE VecAvx2 float_from_uint(UintAvx2 a) { return {float_from_uint_half(a.lo), float_from_uint_half(a.hi)}; }
OTR_INLINE __m256i at_least_half(__m256i a, uint32_t bound) {
  return _mm256_cmpeq_epi32(_mm256_max_epu32(a, _mm256_set1_epi32(static_cast<int>(bound))), a);
}
OTR_INLINE VecAvx2 select_at_least(UintAvx2 a, uint32_t bound, VecAvx2 yes, VecAvx2 no) {
  return {_mm256_blendv_ps(no.lo, yes.lo, _mm256_castsi256_ps(at_least_half(a.lo, bound))),
          _mm256_blendv_ps(no.hi, yes.hi, _mm256_castsi256_ps(at_least_half(a.hi, bound)))};
}
OTR_INLINE bool any_at_least(UintAvx2 a, uint32_t bound) {
  const __m256i any = _mm256_or_si256(at_least_half(a.lo, bound), at_least_half(a.hi, bound));
  return _mm256_testz_si256(any, any) == 0;
}

OTR_INLINE bool any_at_least(const UintAvx2 words[4], uint32_t bound) {
  return any_at_least(words[0], bound) || any_at_least(words[1], bound) || any_at_least(words[2], bound) ||
         any_at_least(words[3], bound);
}

OTR_INLINE void transpose_fours_half(__m256i* w0, __m256i* w1, __m256i* w2, __m256i* w3) {
  const __m256i a = _mm256_unpacklo_epi32(*w0, *w1), b = _mm256_unpackhi_epi32(*w0, *w1);
  const __m256i c = _mm256_unpacklo_epi32(*w2, *w3), d = _mm256_unpackhi_epi32(*w2, *w3);
  *w0 = _mm256_unpacklo_epi64(a, c);
  *w1 = _mm256_unpackhi_epi64(a, c);
  *w2 = _mm256_unpacklo_epi64(b, d);
  *w3 = _mm256_unpackhi_epi64(b, d);
}
OTR_INLINE void transpose_fours(UintAvx2 words[4]) {
  transpose_fours_half(&words[0].lo, &words[1].lo, &words[2].lo, &words[3].lo);
  transpose_fours_half(&words[0].hi, &words[1].hi, &words[2].hi, &words[3].hi);
}

// The even and the odd bf16 of 8 pairs, as float32.
OTR_INLINE __m256 even_floats(__m256i pairs) { return _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16)); }
OTR_INLINE __m256 odd_floats(__m256i pairs) {
  return _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32(static_cast<int>(0xffff0000u))));
}

// Two bf16 in every lane of 32 bits.
OTR_INLINE __m256i broadcast_bf16_pair(const Element* x) {
  int pair;
  __builtin_memcpy(&pair, x, sizeof pair);
  return _mm256_set1_epi32(pair);
}

}  // namespace otr
