// AMX tile instructions, one a function. Tiles are numbered 0 … 7; a tile holds up to 16 rows of up to 64 bytes.
//
// Inline assembly, because GCC 12's own _tile_* macros do not tell the compiler that they read and write memory: it deletes the
// stores before a tile load. With OUTRIDER_SOFT_TILES the same functions come from tile_soft.h instead.
//
// Tile configuration and data belong to the thread. A task configures at its start (tens of cycles against at least tens of
// microseconds of work) and releases at its end, so that no task depends on another and idle threads carry no tile state.
#pragma once

#include <cstdint>

#include "kernels/base/element.h"
#include "kernels/base/macros.h"

namespace otr {

inline constexpr int kTileRows = 16;
inline constexpr int kTileBytes = 64;    // of a row
inline constexpr int kTileDepth = 32;    // bf16 of a row: inputs that one tile_dot adds up
inline constexpr int kTileColumns = 16;  // float32 or int32 of a row

// The operand of LDTILECFG. Rows past a tile's row count are neither loaded nor stored nor multiplied.
struct alignas(64) TileConfig {
  uint8_t palette, start_row, reserved[14];
  uint16_t row_bytes[16];
  uint8_t rows[16];
};
static_assert(sizeof(TileConfig) == 64);

// Eight tiles of 16 rows x 64 bytes.
OTR_INLINE TileConfig full_tiles() {
  TileConfig config = {};
  config.palette = 1;
  for (int t = 0; t < 8; ++t) {
    config.row_bytes[t] = kTileBytes;
    config.rows[t] = kTileRows;
  }
  return config;
}

}  // namespace otr

#if defined(OUTRIDER_SOFT_TILES)
#include "kernels/amx/tile_soft.h"
#else

namespace otr {

OTR_INLINE void tile_configure(const TileConfig& config) { __asm__ volatile("ldtilecfg %0" ::"m"(config) : "memory"); }

OTR_INLINE void tile_release() { __asm__ volatile("tilerelease" ::: "memory"); }

template <int kTile>
OTR_INLINE void tile_zero() {
  static_assert(kTile >= 0 && kTile < 8);
  __asm__ volatile("tilezero %%tmm%c0" ::"i"(kTile));
}

// Row r is read from base + r * stride bytes.
template <int kTile>
OTR_INLINE void tile_load(const void* base, int64_t stride) {
  static_assert(kTile >= 0 && kTile < 8);
  __asm__ volatile("tileloadd (%1,%2,1), %%tmm%c0" ::"i"(kTile), "r"(base), "r"(stride) : "memory");
}

// The same of what is not read again soon: it leaves the lines alone that L1 holds.
template <int kTile>
OTR_INLINE void tile_load_once(const void* base, int64_t stride) {
  static_assert(kTile >= 0 && kTile < 8);
  __asm__ volatile("tileloaddt1 (%1,%2,1), %%tmm%c0" ::"i"(kTile), "r"(base), "r"(stride) : "memory");
}

template <int kTile>
OTR_INLINE void tile_store(void* base, int64_t stride) {
  static_assert(kTile >= 0 && kTile < 8);
  __asm__ volatile("tilestored %%tmm%c0, (%1,%2,1)" ::"i"(kTile), "r"(base), "r"(stride) : "memory");
}

// TDPBF16PS: C [m][n] float32 += A [m][2k] bf16 times B [k][n][2] bf16.
template <int kC, int kA, int kB>
OTR_INLINE void tile_dot() {
  static_assert(kC != kA && kC != kB && kA != kB, "the instruction faults on equal operands");
  __asm__ volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kC), "i"(kA), "i"(kB));
}

// TDPBSSD: C [m][n] int32 += A [m][4k] int8 times B [k][n][4] int8.
template <int kC, int kA, int kB>
OTR_INLINE void tile_dot_bytes() {
  static_assert(kC != kA && kC != kB && kA != kB, "the instruction faults on equal operands");
  __asm__ volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kC), "i"(kA), "i"(kB));
}

}  // namespace otr

#endif
