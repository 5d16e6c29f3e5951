// Up to 32 rows by 32 outputs with AMX tiles: the product of linear where rows are few.
//
// Tiles: 0 … 3 = C (rows 0-15 | 16-31 x outputs 0-15 | 16-31), 4 and 5 = x rows 0-15 and 16-31 (left operand, straight from x),
// 6 and 7 = weight tiles of outputs 0-15 and 16-31 (right operand). Blocks of 32 rows take 4 loads for 4 products; fewer rows
// have the tiles configured to their counts, so that nothing past x is touched and a single row costs neither the cycles nor
// the loads of sixteen. Reduction order: C starts at 0 and adds steps of 32 inputs ascending. Inside a step TDPBF16PS's own:
// even and odd inputs in two fma chains ascending, added, then added to C; denormals are zero. A row of a tile never sees
// another row, so neither the row count nor the configuration matters.
//
// Thread safety: the tiles are the calling thread's. A task begins with a configuration and ends with tile_release.
#pragma once

#include "kernels/amx/tile.h"
#include "kernels/base/integers.h"

namespace otr {

inline constexpr int kAmxBlockRows = 2 * kTileRows, kAmxBlockColumns = 2 * kTileColumns;
inline constexpr int kAmxStepElements = kAmxBlockColumns * kTileDepth;  // of the weight: two tiles

struct alignas(64) AmxBlock {
  float row[kAmxBlockRows][kAmxBlockColumns];
};

OTR_INLINE void amx_configure_rows(int upper, int lower) {
  TileConfig config = full_tiles();
  config.rows[0] = config.rows[1] = config.rows[4] = static_cast<uint8_t>(upper);
  config.rows[2] = config.rows[3] = config.rows[5] = static_cast<uint8_t>(lower);
  tile_configure(config);
}

// For amx_multiply_two_blocks: C and x have `rows` rows.
OTR_INLINE void amx_configure_two_blocks(int rows) {
  TileConfig config = full_tiles();
  for (int tile = 0; tile <= 4; ++tile) config.rows[tile] = static_cast<uint8_t>(rows);
  tile_configure(config);
}

// Into how many columns of tasks `blocks` blocks of outputs are cut, where rows make `chunks` tasks of each: as many as are
// needed, of at most `most` blocks, and so many more that all threads end together.
OTR_INLINE int amx_task_columns(int blocks, int most, int chunks, int threads) {
  int columns = divide_up(blocks, most);
  while (columns < blocks && columns * chunks % threads != 0) ++columns;
  return columns;
}

// A tile of the weight, which L1 need not keep where it comes from L2.
template <bool kFromL2, int kTile>
OTR_INLINE void load_weight(const Element* w) {
  if constexpr (kFromL2) tile_load_once<kTile>(w, kTileBytes);
  else tile_load<kTile>(w, kTileBytes);
}

// Fetches a quarter of a step of the weight, kAhead bytes from where it is used.
template <bool kToL2, int64_t kAhead>
OTR_INLINE void fetch_quarter(const Element* w, int quarter) {
  if constexpr (kAhead > 0) {
    const char* from = reinterpret_cast<const char*>(w) + kAhead + quarter * 512;
#pragma GCC unroll 8
    for (int line = 0; line < 8; ++line) __builtin_prefetch(from + line * 64, 0, kToL2 ? 2 : 3);
  }
}

// kBoth: the block has more than 16 rows. kFetchAhead: bytes ahead of its use that the weight is fetched, where it comes from
// memory: to L1; of a block of both to L2, since x takes twice the loads and they would wait behind the fetches (32 rows: 6 to
// 10 % faster). REQUIRES: tiles configured to its row counts.
template <bool kBoth, int64_t kFetchAhead = 0>
OTR_INLINE void amx_multiply_configured(const Element* x, int64_t x_stride, const Element* w, int64_t steps, AmxBlock* out) {
  constexpr int64_t kStride = kAmxBlockColumns * static_cast<int64_t>(sizeof(float));
  const int64_t row_bytes = x_stride * 2;
  const Element* lower = x + kTileRows * x_stride;
  tile_zero<0>();
  tile_zero<1>();
  if constexpr (kBoth) {
    tile_zero<2>();
    tile_zero<3>();
  }
  constexpr bool kToL2 = kBoth && kFetchAhead > 0;
  for (int64_t step = 0; step < steps; ++step, w += kAmxStepElements) {
    tile_load<4>(x + step * kTileDepth, row_bytes);
    load_weight<kToL2, 6>(w);
    tile_dot<0, 4, 6>();
    fetch_quarter<kToL2, kFetchAhead>(w, 0);
    load_weight<kToL2, 7>(w + kAmxStepElements / 2);
    tile_dot<1, 4, 7>();
    fetch_quarter<kToL2, kFetchAhead>(w, 1);
    if constexpr (kBoth) {
      tile_load<5>(lower + step * kTileDepth, row_bytes);
      tile_dot<2, 5, 6>();
    }
    fetch_quarter<kToL2, kFetchAhead>(w, 2);
    if constexpr (kBoth) tile_dot<3, 5, 7>();
    fetch_quarter<kToL2, kFetchAhead>(w, 3);
  }
  tile_store<0>(&out->row[0][0], kStride);
  tile_store<1>(&out->row[0][kTileColumns], kStride);
  if constexpr (kBoth) {
    tile_store<2>(&out->row[kTileRows][0], kStride);
    tile_store<3>(&out->row[kTileRows][kTileColumns], kStride);
  }
}

// Up to 16 rows by two blocks of outputs, `w` and `next`: x is loaded half as often. REQUIRES: tiles configured by
// amx_configure_two_blocks.
template <int64_t kFetchAhead>
OTR_INLINE void amx_multiply_two_blocks(const Element* x, int64_t x_stride, const Element* w, const Element* next,
                                        int64_t steps, AmxBlock out[2]) {
  constexpr int64_t kStride = kAmxBlockColumns * static_cast<int64_t>(sizeof(float));
  const int64_t row_bytes = x_stride * 2;
  tile_zero<0>();
  tile_zero<1>();
  tile_zero<2>();
  tile_zero<3>();
  for (int64_t step = 0; step < steps; ++step, w += kAmxStepElements, next += kAmxStepElements) {
    tile_load<4>(x + step * kTileDepth, row_bytes);
    tile_load<6>(w, kTileBytes);
    tile_dot<0, 4, 6>();
    tile_load<7>(w + kAmxStepElements / 2, kTileBytes);
    tile_dot<1, 4, 7>();
    tile_load<5>(next, kTileBytes);
    tile_dot<2, 4, 5>();
    tile_load<6>(next + kAmxStepElements / 2, kTileBytes);
    tile_dot<3, 4, 6>();
#pragma GCC unroll 32
    for (int line = 0; line < 32; ++line) {
      __builtin_prefetch(reinterpret_cast<const char*>(w) + kFetchAhead + line * 64);
      __builtin_prefetch(reinterpret_cast<const char*>(next) + kFetchAhead + line * 64);
    }
  }
  tile_store<0>(&out[0].row[0][0], kStride);
  tile_store<1>(&out[0].row[0][kTileColumns], kStride);
  tile_store<2>(&out[1].row[0][0], kStride);
  tile_store<3>(&out[1].row[0][kTileColumns], kStride);
}

}  // namespace otr
