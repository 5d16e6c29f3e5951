// A group of x in 8 bits (linear_w4.h), by AVX-512: for the paths cpu-avx512 and cpu-amx.
#pragma once

#include "kernels/linear_w4/linear_w4.h"
#include "kernels/simd/vec_avx512.h"

namespace otr {

// Of the 32-bit lanes of two vectors, packed to words in pairs of 4: each 8 inputs in the order 0, 4, 1, 5, 2, 6, 3, 7.
struct alignas(64) W4InputOrder {
  uint16_t at[32];
};
OTR_INLINE constexpr W4InputOrder w4_input_order() {
  constexpr int kOrder[kW4PieceK] = {0, 4, 1, 5, 2, 6, 3, 7};
  W4InputOrder order = {};
  for (int i = 0; i < 32; ++i) {
    const int input = i / kW4PieceK * kW4PieceK + kOrder[i % kW4PieceK], lane = input % 16;
    order.at[i] = static_cast<uint16_t>(lane / 4 * 8 + input / 16 * 4 + lane % 4);
  }
  return order;
}
constexpr W4InputOrder kW4InputOrder = w4_input_order();  // made once: a group's rounding takes 17 ns instead of 26

struct W4RoundedGroup {
  __m256i bytes[kW4GroupK / 32];  // in the weight's order
  float unit;
};

// `inputs` (32, 64, 96 or 128) of x, and zeros.
OTR_INLINE W4RoundedGroup w4_round_group(const Element* x, int inputs) {
  const __m512i order = _mm512_load_si512(kW4InputOrder.at);
  __m512i v[kW4GroupK / 32], greatest = _mm512_setzero_si512();
#pragma GCC unroll 4
  for (int i = 0; i < kW4GroupK / 32; ++i) {
    v[i] = 32 * i < inputs ? _mm512_loadu_si512(x + 32 * i) : _mm512_setzero_si512();
    greatest = _mm512_max_epu16(greatest, _mm512_and_si512(v[i], _mm512_set1_epi16(0x7fff)));
  }
  const __m512i wide = _mm512_max_epu32(_mm512_and_si512(greatest, _mm512_set1_epi32(0xffff)), _mm512_srli_epi32(greatest, 16));
  const W4Unit unit = w4_unit(_mm512_reduce_max_epu32(wide) >> 7);  // bf16 has float32's exponents
  const __m512 inverse = _mm512_set1_ps(unit.inverse);
  W4RoundedGroup rounded;
  rounded.unit = unit.unit;
#pragma GCC unroll 4
  for (int i = 0; i < kW4GroupK / 32; ++i) {
    const __m512i a = _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_castsi512_si256(v[i])), 16);
    const __m512i b = _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(v[i], 1)), 16);
    const __m512i words = _mm512_packs_epi32(_mm512_cvtps_epi32(_mm512_mul_ps(_mm512_castsi512_ps(a), inverse)),
                                             _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_castsi512_ps(b), inverse)));
    rounded.bytes[i] = _mm512_cvtsepi16_epi8(_mm512_permutexvar_epi16(order, words));  // 127.5: 127
  }
  return rounded;
}

}  // namespace otr
