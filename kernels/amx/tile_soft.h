// Software tiles: the functions of tile.h in AVX-512, for sanitizers (which cannot see through tile loads) and for machines
// without AMX. Included by tile.h only, with OUTRIDER_SOFT_TILES.
//
// tile_dot is TDPBF16PS to the bit, as the Intel SDM defines it: for every output, the products of even and of odd inputs are
// summed by fma in two float32 chains over k ascending, the two are added, and the sum is added to C. Round to nearest even,
// denormal inputs and results are zero, whatever MXCSR says. tile_dot_bytes is TDPBSSD.
// Rows are 64 bytes in every configuration here. Faults of the hardware (not configured, operands that do not fit) are asserts.
#pragma once

#include <cassert>

#include "kernels/simd/vec_avx512.h"

namespace otr {

struct alignas(64) SoftTile {
  unsigned char row[kTileRows][kTileBytes];
};

struct SoftTiles {
  TileConfig config;
  bool configured;
  SoftTile tile[8];
};

static thread_local SoftTiles soft_tiles;

OTR_INLINE void tile_configure(const TileConfig& config) {
  for (int t = 0; t < 8; ++t) assert(config.row_bytes[t] == kTileBytes && config.rows[t] <= kTileRows);
  soft_tiles.config = config;
  soft_tiles.configured = true;
  __builtin_memset(soft_tiles.tile, 0, sizeof soft_tiles.tile);
}

OTR_INLINE void tile_release() { soft_tiles.configured = false; }

template <int kTile>
OTR_INLINE void tile_zero() {
  __builtin_memset(&soft_tiles.tile[kTile], 0, sizeof(SoftTile));
}

template <int kTile>
OTR_INLINE void tile_load(const void* base, int64_t stride) {
  assert(soft_tiles.configured);
  SoftTile& t = soft_tiles.tile[kTile];
  const int rows = soft_tiles.config.rows[kTile];
  for (int r = 0; r < rows; ++r) __builtin_memcpy(t.row[r], static_cast<const char*>(base) + r * stride, kTileBytes);
  for (int r = rows; r < kTileRows; ++r) __builtin_memset(t.row[r], 0, kTileBytes);
}

template <int kTile>
OTR_INLINE void tile_load_once(const void* base, int64_t stride) {
  tile_load<kTile>(base, stride);
}

template <int kTile>
OTR_INLINE void tile_store(void* base, int64_t stride) {
  assert(soft_tiles.configured);
  for (int r = 0; r < soft_tiles.config.rows[kTile]; ++r) {
    __builtin_memcpy(static_cast<char*>(base) + r * stride, soft_tiles.tile[kTile].row[r], kTileBytes);
  }
}

// Sets MXCSR and lets no load or store of tile data pass: the arithmetic between two calls runs in the first one's mode.
OTR_INLINE void set_mxcsr(uint32_t mxcsr) { __asm__ volatile("ldmxcsr %0" ::"m"(mxcsr) : "memory"); }
OTR_INLINE uint32_t get_mxcsr() {
  uint32_t mxcsr;
  __asm__ volatile("stmxcsr %0" : "=m"(mxcsr)::"memory");
  return mxcsr;
}

// C rows m … m + kRows - 1: 16 columns a vector.
template <int kRows>
OTR_INLINE void soft_dot_rows(SoftTile& c, const SoftTile& a, const SoftTile& b, int m) {
  __m512 even[kRows], odd[kRows];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) even[r] = odd[r] = _mm512_setzero_ps();
  for (int k = 0; k < kTileRows; ++k) {
    const __m512i pairs = _mm512_load_si512(b.row[k]);
    const __m512 b_even = _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16));
    const __m512 b_odd = _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      uint32_t pair;
      __builtin_memcpy(&pair, a.row[m + r] + 4 * k, sizeof pair);
      even[r] = _mm512_fmadd_ps(_mm512_set1_ps(float_from_bits(pair << 16)), b_even, even[r]);
      odd[r] = _mm512_fmadd_ps(_mm512_set1_ps(float_from_bits(pair & 0xffff0000u)), b_odd, odd[r]);
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
    const __m512 sum = _mm512_add_ps(_mm512_load_ps(c.row[m + r]), _mm512_add_ps(even[r], odd[r]));
    _mm512_store_ps(c.row[m + r], sum);
  }
}

static __attribute__((noinline, unused)) void soft_dot(SoftTile& c, const SoftTile& a, const SoftTile& b, int rows) {
  constexpr uint32_t kMaskedNearestFlush = 0x9fc0;  // all exceptions masked, nearest, FTZ and DAZ
  const uint32_t saved = get_mxcsr();
  set_mxcsr(kMaskedNearestFlush);
  int m = 0;
  for (; m + 4 <= rows; m += 4) soft_dot_rows<4>(c, a, b, m);
  for (; m < rows; ++m) soft_dot_rows<1>(c, a, b, m);
  set_mxcsr(saved);
}

template <int kC, int kA, int kB>
OTR_INLINE void tile_dot() {
  static_assert(kC != kA && kC != kB && kA != kB, "the instruction faults on equal operands");
  const uint8_t* rows = soft_tiles.config.rows;
  assert(soft_tiles.configured && rows[kA] == rows[kC] && rows[kB] == kTileRows);
  soft_dot(soft_tiles.tile[kC], soft_tiles.tile[kA], soft_tiles.tile[kB], rows[kC]);
}

// Sums of integers: no order matters.
static __attribute__((noinline, unused)) void soft_dot_bytes(SoftTile& c, const SoftTile& a, const SoftTile& b, int rows) {
  for (int m = 0; m < rows; ++m) {
    __m512i sum = _mm512_load_si512(c.row[m]);
    for (int k = 0; k < kTileRows; ++k) {
      const __m512i fours = _mm512_load_si512(b.row[k]);
      for (int i = 0; i < 4; ++i) {  // byte i of each lane, signed
        const __m512i shifted = _mm512_sll_epi32(fours, _mm_cvtsi32_si128(24 - 8 * i));
        const int32_t x = static_cast<int8_t>(a.row[m][4 * k + i]);
        sum = _mm512_add_epi32(sum, _mm512_mullo_epi32(_mm512_srai_epi32(shifted, 24), _mm512_set1_epi32(x)));
      }
    }
    _mm512_store_si512(c.row[m], sum);
  }
}

template <int kC, int kA, int kB>
OTR_INLINE void tile_dot_bytes() {
  static_assert(kC != kA && kC != kB && kA != kB, "the instruction faults on equal operands");
  const uint8_t* rows = soft_tiles.config.rows;
  assert(soft_tiles.configured && rows[kA] == rows[kC] && rows[kB] == kTileRows);
  soft_dot_bytes(soft_tiles.tile[kC], soft_tiles.tile[kA], soft_tiles.tile[kB], rows[kC]);
}

}  // namespace otr
