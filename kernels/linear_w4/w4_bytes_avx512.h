// Operands of linear_w4 for TDPBSSD, products of bytes: what cpu-amx makes of weights and of x.
//
// 64 bytes of the packed weight, 8 inputs of 16 outputs, become two rows of a right operand by 5 operations: the lower nibbles
// and the upper ones; the zero point is taken off bytewise.
#pragma once

#include "kernels/amx/tile.h"
#include "kernels/linear_w4/w4_round_avx512.h"

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
  OTR_INLINE_MEMBER int64_t group_bytes() const { return kUnitBytes + int64_t{rows} * kW4GroupK; }
  OTR_INLINE_MEMBER float* units(char* group) const { return reinterpret_cast<float*>(group); }
  OTR_INLINE_MEMBER int8_t* half(char* group, int half) const {
    return reinterpret_cast<int8_t*>(group + kUnitBytes + half * int64_t{rows} * kW4ByteDepth);
  }
};

// One row's group of x, as row `row` of the layout.
OTR_INLINE void w4_store_group(const W4RoundedGroup& rounded, W4BytesLayout layout, int row, char* group) {
  layout.units(group)[row] = rounded.unit;
#pragma GCC unroll 4
  for (int i = 0; i < kW4GroupK / 32; ++i) {
    _mm256_store_si256(reinterpret_cast<__m256i*>(layout.half(group, i / 2) + row * kW4ByteDepth + i % 2 * 32),
                       rounded.bytes[i]);
  }
}

}  // namespace otr
