// From nibbles to bf16 in AVX-512, for linear_w4 on cpu-avx512.
//
// 64 bytes hold four nibbles in each of 32 words. Lower and upper nibbles of all bytes are split off, the zero point is taken
// off bytewise, and VPERMW looks the bf16 up: it reads 5 bits of each word, exactly an index q - zero + 16 = 1 … 31, and does
// not see the byte above. 11 operations for 4 vectors of 32 weights, against 4 VDPBF16PS a row.
#pragma once

#include "kernels/linear_w4/linear_w4_vec.h"
#include "kernels/simd/vec_avx512.h"

namespace otr {

// bf16 of i - 16.
OTR_INLINE __m512i w4_table() {
  alignas(64) uint16_t bits[32];
  for (int i = 0; i < 32; ++i) bits[i] = static_cast<uint16_t>(bits_from_float(static_cast<float>(i - 16)) >> 16);
  return _mm512_load_si512(bits);
}

// 16 - zero in the four bytes of each output's lane.
OTR_INLINE __m512i w4_offsets(const uint8_t* words) {
  const __m512i zero = _mm512_and_si512(_mm512_load_si512(words), _mm512_set1_epi32(kW4ZeroPointMask));
  const __m512i first_byte = _mm512_set4_epi32(0x0c0c0c0c, 0x08080808, 0x04040404, 0x00000000);
  return _mm512_sub_epi8(_mm512_set1_epi8(16), _mm512_shuffle_epi8(zero, first_byte));
}

// 16 outputs x 8 inputs: q - zero + 16 in bytes, those of the lower and of the upper nibbles.
struct W4Piece {
  __m512i nibbles[2];
};

OTR_INLINE W4Piece w4_load(const uint8_t* tile, __m512i offsets) {
  __builtin_prefetch(tile + kW4PrefetchBytes);
  const __m512i q = _mm512_load_si512(tile), mask = _mm512_set1_epi8(15);
  return {{_mm512_add_epi8(_mm512_and_si512(q, mask), offsets),
           _mm512_add_epi8(_mm512_and_si512(_mm512_srli_epi16(q, 4), mask), offsets)}};
}

// bf16 [16 outputs][2 inputs] of input pair i, 0 … 3.
OTR_INLINE __m512i w4_pair(const W4Piece& piece, int i, __m512i table) {
  const __m512i bytes = piece.nibbles[i % 2];
  return _mm512_permutexvar_epi16(i < 2 ? bytes : _mm512_srli_epi16(bytes, 8), table);
}

// What every piece needs, in registers: left to itself the compiler reads table and mask from memory for each.
struct W4Constants {
  __m512i table = w4_table(), mask = _mm512_set1_epi8(15);
  W4Constants() { __asm__("" : "+v"(table), "+v"(mask)); }
};

// A step of linear as bf16: 32 inputs of 32 outputs from 512 bytes of nibbles.
struct alignas(64) W4Step {
  Element pair[2][16][32];  // [tile][pair][16 outputs x 2 inputs]
};
inline constexpr int kW4StepPieces = kLinearStepK / kW4PieceK;
inline constexpr int kW4StepBytes = kW4StepPieces * kW4PieceBytes;

OTR_INLINE void w4_expand_step(const uint8_t* nibbles, const __m512i* offsets, const W4Constants& c, W4Step* out) {
#pragma GCC unroll 8
  for (int i = 0; i < 2 * kW4StepPieces; ++i) {
    const int piece = i / 2, tile = i % 2;
    const __m512i q = _mm512_load_si512(nibbles + i * kW4TileBytes);
    const __m512i low = _mm512_add_epi8(_mm512_and_si512(q, c.mask), offsets[tile]);
    const __m512i high = _mm512_add_epi8(_mm512_and_si512(_mm512_srli_epi16(q, 4), c.mask), offsets[tile]);
    Element(*rows)[32] = out->pair[tile] + 4 * piece;
    _mm512_store_si512(rows[0], _mm512_permutexvar_epi16(low, c.table));
    _mm512_store_si512(rows[1], _mm512_permutexvar_epi16(high, c.table));
    _mm512_store_si512(rows[2], _mm512_permutexvar_epi16(_mm512_srli_epi16(low, 8), c.table));
    _mm512_store_si512(rows[3], _mm512_permutexvar_epi16(_mm512_srli_epi16(high, 8), c.table));
  }
}

// A group as bf16, in linear's order: 8 KB, so it stays in L1.
struct W4Expanded {
  W4Step step[kW4GroupK / kLinearStepK];
};

OTR_INLINE void w4_expand_group(const uint8_t* words, const uint8_t* nibbles, int pieces, W4Expanded* out) {
  const W4Constants constants;
  const __m512i offsets[2] = {w4_offsets(words), w4_offsets(words + 64)};
  for (int step = 0; step < pieces / kW4StepPieces; ++step, nibbles += kW4StepBytes) {
    w4_expand_step(nibbles, offsets, constants, out->step + step);
    for (int line = 0; line < kW4StepBytes; line += 64) __builtin_prefetch(nibbles + kW4PrefetchBytes + line);
  }
}

}  // namespace otr
