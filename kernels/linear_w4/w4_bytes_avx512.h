// Operands of linear_w4 for TDPBSSD, products of bytes: what cpu-amx makes of weights and of x.
//
// Weights: 64 bytes of the packed weight, 8 inputs of 16 outputs, become two rows of a right operand by 5 operations: the lower
// nibbles are inputs 0, 4, 1, 5 of each output, the upper ones 2, 6, 3, 7; the zero point is taken off bytewise.
//
// x: a row's 128 inputs of a group are integers times a power of two, unit = 2^(e - 6), where 2^e <= the greatest |x| < 2^(e +
// 1): i = x / unit, rounded to nearest even, -128 … 127, in the weight's order of inputs.
#pragma once

#include "kernels/amx/tile.h"
#include "kernels/linear_w4/linear_w4_vec.h"
#include "kernels/simd/vec_avx512.h"

namespace otr {

inline constexpr int kW4ByteDepth = 64;  // inputs that one product of tiles adds up: half a group
inline constexpr int kW4HalfPieces = kW4ByteDepth / kW4PieceK;
inline constexpr int kW4HalfBytes = kW4HalfPieces * kW4PieceBytes;  // of nibbles

// ---- Weights

// 64 inputs of 32 outputs: two tiles.
struct alignas(64) W4Half {
  int8_t row[2][kTileRows][kTileBytes];  // [tile][4 inputs][16 outputs x 4 inputs]
};

// The zero point in the four bytes of each output's lane.
OTR_INLINE __m512i w4_zeros(const uint8_t* words) {
  const __m512i zero = _mm512_and_si512(_mm512_load_si512(words), _mm512_set1_epi32(kW4ZeroPointMask));
  return _mm512_shuffle_epi8(zero, _mm512_set4_epi32(0x0c0c0c0c, 0x08080808, 0x04040404, 0x00000000));
}

// How far ahead of its use the weight is fetched into L1, and into L2: memory's lines take longer than a group.
inline constexpr int64_t kW4FetchAhead = 1024, kW4FetchToL2 = 3072;

// kPieces: 8, or 4 where a weight ends; then the other rows stay as they are. Fetches ahead, which is harmless past the end.
template <int kPieces>
OTR_INLINE void w4_expand_half(const uint8_t* nibbles, const __m512i* zeros, W4Half* out) {
  __m512i mask = _mm512_set1_epi8(15);
  __asm__("" : "+v"(mask));  // in a register: left to itself the compiler reads it from memory each time
#pragma GCC unroll 16
  for (int i = 0; i < 2 * kPieces; ++i) {
    const int piece = i / 2, tile = i % 2;
    const uint8_t* line = nibbles + i * kW4TileBytes;
    __builtin_prefetch(line + kW4FetchAhead);
    __builtin_prefetch(line + kW4FetchToL2, 0, 2);
    const __m512i q = _mm512_load_si512(line);
    const __m512i low = _mm512_and_si512(q, mask), high = _mm512_and_si512(_mm512_srli_epi16(q, 4), mask);
    _mm512_store_si512(out->row[tile][2 * piece], _mm512_sub_epi8(low, zeros[tile]));
    _mm512_store_si512(out->row[tile][2 * piece + 1], _mm512_sub_epi8(high, zeros[tile]));
  }
}

// ---- x

// A group of up to 32 rows of x: their units, then of either half of its inputs 64 bytes a row.
struct W4BytesLayout {
  int rows;

  static constexpr int64_t kUnitBytes = 2 * kTileRows * static_cast<int64_t>(sizeof(float));
  int64_t group_bytes() const { return kUnitBytes + int64_t{rows} * kW4GroupK; }
  float* units(char* group) const { return reinterpret_cast<float*>(group); }
  int8_t* half(char* group, int half) const {
    return reinterpret_cast<int8_t*>(group + kUnitBytes + half * int64_t{rows} * kW4ByteDepth);
  }
};

// Of the 32-bit lanes of two vectors, packed to words in pairs of 4: each 8 inputs in the order 0, 4, 1, 5, 2, 6, 3, 7.
OTR_INLINE __m512i w4_input_order() {
  constexpr int kOrder[kW4PieceK] = {0, 4, 1, 5, 2, 6, 3, 7};
  alignas(64) uint16_t at[32];
  for (int i = 0; i < 32; ++i) {
    const int input = i / kW4PieceK * kW4PieceK + kOrder[i % kW4PieceK], lane = input % 16;
    at[i] = static_cast<uint16_t>(lane / 4 * 8 + input / 16 * 4 + lane % 4);
  }
  return _mm512_load_si512(at);
}

// One row's group of x, `inputs` (32, 64, 96 or 128) of it and zeros: as row `row` of the layout.
OTR_INLINE void w4_round_group(const Element* x, int inputs, __m512i order, W4BytesLayout layout, int row, char* group) {
  __m512i v[kW4GroupK / 32], greatest = _mm512_setzero_si512();
#pragma GCC unroll 4
  for (int i = 0; i < kW4GroupK / 32; ++i) {
    v[i] = 32 * i < inputs ? _mm512_loadu_si512(x + 32 * i) : _mm512_setzero_si512();
    greatest = _mm512_max_epu16(greatest, _mm512_and_si512(v[i], _mm512_set1_epi16(0x7fff)));
  }
  const __m512i wide = _mm512_max_epu32(_mm512_and_si512(greatest, _mm512_set1_epi32(0xffff)), _mm512_srli_epi32(greatest, 16));
  // The exponent that bf16 and float32 have in common. Units of 2^-100 and more keep their products with scales (of 2^-26 and
  // more) from being denormal: where all of a group is 0 that made the whole product four times as slow.
  constexpr uint32_t kBits = 6, kLeast = kBits + 27, kNotFinite = 255;
  const uint32_t most = _mm512_reduce_max_epu32(wide) >> 7, e = most < kLeast ? kLeast : most;
  const bool finite = most != kNotFinite;
  layout.units(group)[row] = finite ? float_from_bits((e - kBits) << 23) : __builtin_nanf("");
  const __m512 inverse = _mm512_set1_ps(finite ? float_from_bits((254 - (e - kBits)) << 23) : 0.0f);
#pragma GCC unroll 4
  for (int i = 0; i < kW4GroupK / 32; ++i) {
    const __m512i a = _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_castsi512_si256(v[i])), 16);
    const __m512i b = _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(v[i], 1)), 16);
    const __m512i words = _mm512_packs_epi32(_mm512_cvtps_epi32(_mm512_mul_ps(_mm512_castsi512_ps(a), inverse)),
                                             _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_castsi512_ps(b), inverse)));
    const __m256i bytes = _mm512_cvtsepi16_epi8(_mm512_permutexvar_epi16(order, words));  // 127.5: 127
    _mm256_store_si256(reinterpret_cast<__m256i*>(layout.half(group, i / 2) + row * kW4ByteDepth + i % 2 * 32), bytes);
  }
}

}  // namespace otr
