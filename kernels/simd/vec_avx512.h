// 16 float lanes and 16 uint32 lanes in AVX-512 registers: the vocabulary of the *_avx512.cpp files.
//
// vec_avx2.h offers the same operations on pairs of 256-bit registers. A kernel is a template over the float type (the integer
// type is F::Uint), so both paths run one algorithm; every operation rounds as the scalar operation of base/elementary.h and
// base/noise.h of the same name does, which is what makes lanes bit-equal to the scalar definition.
//
// Loads and stores need no alignment. `*_first` touch only the first n lanes in memory, 0 <= n (n >= 16: all of them).
// Sums of lanes go by halves: lane i + lane i + 8, then + 4, + 2, + 1.
#pragma once

// GCC 12 warns about its own deliberately undefined operands in this header when it does not optimise.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#ifndef __clang__
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
#pragma GCC diagnostic pop

#include <cstdint>

#include "kernels/base/element.h"
#include "kernels/base/macros.h"

namespace otr {

struct UintAvx512 {
  __m512i v;

  OTR_INLINE UintAvx512 load(const uint32_t* p) { return {_mm512_loadu_si512(p)}; }
  OTR_INLINE UintAvx512 broadcast(uint32_t x) { return {_mm512_set1_epi32(static_cast<int>(x))}; }
};

struct VecAvx512 {
  using Uint = UintAvx512;
  __m512 v;

  OTR_INLINE VecAvx512 zero() { return {_mm512_setzero_ps()}; }
  OTR_INLINE VecAvx512 broadcast(float x) { return {_mm512_set1_ps(x)}; }
  OTR_INLINE __mmask16 first(int n) { return static_cast<__mmask16>(n >= 16 ? 0xffffu : (1u << n) - 1u); }

  OTR_INLINE VecAvx512 load(const float* p) { return {_mm512_loadu_ps(p)}; }
  OTR_INLINE VecAvx512 load(const Bf16* p) {
    const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16))};
  }
  // Lanes from n on are 0, or those of `rest`.
  OTR_INLINE VecAvx512 load_first(const float* p, int n) { return {_mm512_maskz_loadu_ps(first(n), p)}; }
  OTR_INLINE VecAvx512 load_first(const float* p, int n, VecAvx512 rest) { return {_mm512_mask_loadu_ps(rest.v, first(n), p)}; }
  OTR_INLINE VecAvx512 load_first(const Bf16* p, int n) {
    const __m256i half = _mm256_maskz_loadu_epi16(first(n), p);
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16))};
  }
};

// ---- Float arithmetic ---------------------------------------------------------------------------------------------------

OTR_INLINE VecAvx512 operator+(VecAvx512 a, VecAvx512 b) { return {_mm512_add_ps(a.v, b.v)}; }
OTR_INLINE VecAvx512 operator-(VecAvx512 a, VecAvx512 b) { return {_mm512_sub_ps(a.v, b.v)}; }
OTR_INLINE VecAvx512 operator*(VecAvx512 a, VecAvx512 b) { return {_mm512_mul_ps(a.v, b.v)}; }
OTR_INLINE VecAvx512 operator/(VecAvx512 a, VecAvx512 b) { return {_mm512_div_ps(a.v, b.v)}; }
OTR_INLINE VecAvx512 operator-(VecAvx512 a) { return {_mm512_xor_ps(a.v, _mm512_set1_ps(-0.0f))}; }
OTR_INLINE VecAvx512 fma_(VecAvx512 a, VecAvx512 b, VecAvx512 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
OTR_INLINE VecAvx512 sqrt_(VecAvx512 a) { return {_mm512_sqrt_ps(a.v)}; }
OTR_INLINE VecAvx512 broadcast(VecAvx512, float value) { return VecAvx512::broadcast(value); }
// a > b ? a : b: the second one where either is NaN or both are zero.
OTR_INLINE VecAvx512 max_(VecAvx512 a, VecAvx512 b) { return {_mm512_max_ps(a.v, b.v)}; }

OTR_INLINE VecAvx512 select_less(VecAvx512 a, VecAvx512 b, VecAvx512 yes, VecAvx512 no) {
  return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ), no.v, yes.v)};
}
OTR_INLINE UintAvx512 select_less(VecAvx512 a, VecAvx512 b, UintAvx512 yes, UintAvx512 no) {
  return {_mm512_mask_blend_epi32(_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ), no.v, yes.v)};
}
// Bit i: lane i of a is less than lane i of b; lane i is finite.
OTR_INLINE uint32_t mask_less(VecAvx512 a, VecAvx512 b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ); }
OTR_INLINE uint32_t mask_finite(VecAvx512 a) {
  constexpr int kNanOrInf = 0x99;
  return static_cast<__mmask16>(~_mm512_fpclass_ps_mask(a.v, kNanOrInf));
}

OTR_INLINE VecAvx512 exp2_of_magic(VecAvx512 magic_sum) {
  const __m512i biased = _mm512_add_epi32(_mm512_castps_si512(magic_sum.v), _mm512_set1_epi32(127));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(biased, 23))};
}
OTR_INLINE VecAvx512 split_exponent(VecAvx512 x, VecAvx512* k) {
  const __m512i bits = _mm512_castps_si512(x.v);
  const __m512i e = _mm512_srai_epi32(_mm512_sub_epi32(bits, _mm512_set1_epi32(0x3f3504f3)), 23);
  k->v = _mm512_cvtepi32_ps(e);
  const __m512i mantissa = _mm512_sub_epi32(bits, _mm512_slli_epi32(e, 23));
  return {_mm512_sub_ps(_mm512_castsi512_ps(mantissa), _mm512_set1_ps(1.0f))};
}

// ---- Sums and maxima of lanes ----------------------------------------------------------------------------------------------

OTR_INLINE float reduce_add(VecAvx512 a) {
  const __m256 s8 = _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
  const __m128 s4 = _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
  const __m128 s2 = _mm_add_ps(s4, _mm_movehl_ps(s4, s4));
  return _mm_cvtss_f32(_mm_add_ss(s2, _mm_movehdup_ps(s2)));
}
OTR_INLINE float reduce_max(VecAvx512 a) {
  const __m256 m8 = _mm256_max_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
  const __m128 m4 = _mm_max_ps(_mm256_castps256_ps128(m8), _mm256_extractf128_ps(m8, 1));
  const __m128 m2 = _mm_max_ps(m4, _mm_movehl_ps(m4, m4));
  return _mm_cvtss_f32(_mm_max_ss(m2, _mm_movehdup_ps(m2)));
}

// ---- Stores --------------------------------------------------------------------------------------------------------------

OTR_INLINE void store(float* p, VecAvx512 a) { _mm512_storeu_ps(p, a.v); }
OTR_INLINE void store_first(float* p, int n, VecAvx512 a) { _mm512_mask_storeu_ps(p, VecAvx512::first(n), a.v); }
OTR_INLINE void store(uint32_t* p, UintAvx512 a) { _mm512_storeu_si512(p, a.v); }
// The lanes of `mask`, in order; returns how many. All 16 places behind p may be written. (Compressing to memory takes Zen 4
// 142 cycles.)
OTR_INLINE int store_selected(uint32_t* p, uint32_t mask, UintAvx512 a) {
  _mm512_storeu_si512(p, _mm512_maskz_compress_epi32(static_cast<__mmask16>(mask), a.v));
  return __builtin_popcount(mask);
}
OTR_INLINE int store_selected(float* p, uint32_t mask, VecAvx512 a) {
  _mm512_storeu_ps(p, _mm512_maskz_compress_ps(static_cast<__mmask16>(mask), a.v));
  return __builtin_popcount(mask);
}

// Rounds to bf16 as bf16_from_float does, each result in the low half of its 32-bit lane. By integers: VCVTNEPS2BF16 would
// flush denormals to zero.
OTR_INLINE __m512i round_to_bf16_lanes(VecAvx512 a) {
  const __m512i bits = _mm512_castps_si512(a.v);
  const __m512i high = _mm512_srli_epi32(bits, 16);
  const __m512i even = _mm512_add_epi32(_mm512_and_si512(high, _mm512_set1_epi32(1)), _mm512_set1_epi32(0x7fff));
  const __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(bits, even), 16);
  const __m512i quiet = _mm512_or_si512(high, _mm512_set1_epi32(0x40));
  return _mm512_mask_blend_epi32(_mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q), rounded, quiet);
}
OTR_INLINE __m256i round_to_bf16(VecAvx512 a) { return _mm512_cvtepi32_epi16(round_to_bf16_lanes(a)); }
OTR_INLINE void store(Bf16* p, VecAvx512 a) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), round_to_bf16(a)); }
OTR_INLINE void store_first(Bf16* p, int n, VecAvx512 a) { _mm256_mask_storeu_epi16(p, VecAvx512::first(n), round_to_bf16(a)); }

// ---- Integer lanes ----------------------------------------------------------------------------------------------------

OTR_INLINE UintAvx512 operator+(UintAvx512 a, UintAvx512 b) { return {_mm512_add_epi32(a.v, b.v)}; }
OTR_INLINE UintAvx512 operator^(UintAvx512 a, UintAvx512 b) { return {_mm512_xor_si512(a.v, b.v)}; }
OTR_INLINE UintAvx512 operator~(UintAvx512 a) { return {_mm512_xor_si512(a.v, _mm512_set1_epi32(-1))}; }
OTR_INLINE UintAvx512 broadcast(UintAvx512, uint32_t value) { return UintAvx512::broadcast(value); }

// 16 words for chains of products: each in the low half of a 64-bit lane whose high half is arbitrary, those of even lanes in
// `even`. A product then is one instruction, and its high half one shift.
struct WideAvx512 {
  __m512i even, odd;
};
OTR_INLINE WideAvx512 operator+(WideAvx512 a, WideAvx512 b) {
  return {_mm512_add_epi32(a.even, b.even), _mm512_add_epi32(a.odd, b.odd)};
}
OTR_INLINE WideAvx512 widen(UintAvx512 a) { return {a.v, _mm512_srli_epi64(a.v, 32)}; }
OTR_INLINE UintAvx512 narrow(WideAvx512 a) { return {_mm512_mask_blend_epi32(0xaaaa, a.even, _mm512_slli_epi64(a.odd, 32))}; }
OTR_INLINE WideAvx512 operator^(WideAvx512 a, WideAvx512 b) {
  return {_mm512_xor_si512(a.even, b.even), _mm512_xor_si512(a.odd, b.odd)};
}
OTR_INLINE WideAvx512 broadcast(WideAvx512, uint32_t value) {
  const __m512i all = _mm512_set1_epi32(static_cast<int>(value));
  return {all, all};
}
OTR_INLINE WideAvx512 multiply_wide(WideAvx512 a, uint32_t b, WideAvx512* low) {
  const __m512i factor = _mm512_set1_epi32(static_cast<int>(b));
  *low = {_mm512_mul_epu32(a.even, factor), _mm512_mul_epu32(a.odd, factor)};
  return {_mm512_srli_epi64(low->even, 32), _mm512_srli_epi64(low->odd, 32)};
}

OTR_INLINE bool any_at_least(const WideAvx512 words[4], uint32_t bound) {
  __m512i most = _mm512_max_epu32(words[0].even, words[0].odd);
  for (int i = 1; i < 4; ++i) most = _mm512_max_epu32(_mm512_max_epu32(words[i].even, words[i].odd), most);
  return _mm512_mask_cmpge_epu32_mask(0x5555, most, _mm512_set1_epi32(static_cast<int>(bound))) != 0;
}

// Nearest float, one rounding.
OTR_INLINE VecAvx512 float_from_uint(UintAvx512 a) { return {_mm512_cvtepu32_ps(a.v)}; }
OTR_INLINE VecAvx512 select_at_least(UintAvx512 a, uint32_t bound, VecAvx512 yes, VecAvx512 no) {
  const __mmask16 m = _mm512_cmpge_epu32_mask(a.v, _mm512_set1_epi32(static_cast<int>(bound)));
  return {_mm512_mask_blend_ps(m, no.v, yes.v)};
}
OTR_INLINE bool any_at_least(UintAvx512 a, uint32_t bound) {
  return _mm512_cmpge_epu32_mask(a.v, _mm512_set1_epi32(static_cast<int>(bound))) != 0;
}

// Within each group of four lanes: lane 4g + i of words[j] <-> lane 4g + j of words[i].
OTR_INLINE void transpose_fours(UintAvx512 words[4]) {
  const __m512i a = _mm512_unpacklo_epi32(words[0].v, words[1].v), b = _mm512_unpackhi_epi32(words[0].v, words[1].v);
  const __m512i c = _mm512_unpacklo_epi32(words[2].v, words[3].v), d = _mm512_unpackhi_epi32(words[2].v, words[3].v);
  words[0].v = _mm512_unpacklo_epi64(a, c);
  words[1].v = _mm512_unpackhi_epi64(a, c);
  words[2].v = _mm512_unpacklo_epi64(b, d);
  words[3].v = _mm512_unpackhi_epi64(b, d);
}

// Two bf16 in every lane of 32 bits.
OTR_INLINE __m512bh broadcast_bf16_pair(const Element* x) {
  int pair;
  __builtin_memcpy(&pair, x, sizeof pair);
  return reinterpret_cast<__m512bh>(_mm512_set1_epi32(pair));
}

}  // namespace otr
