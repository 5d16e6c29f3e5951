// cpu-amx: attention_tile.h with TDPBF16PS.
//
// Tiles: 0 … 3 = sums of up to 64 rows (keys of a page, or rows of V^T) x 16 lanes; 4 and 5 = 16 rows x 32 of K or V^T, straight
// from the page; 6 = a step of q or P, [16 pairs][16 lanes][2]. Five loads for four products a step.
// A head_dim that is not a multiple of 32 leaves a last step of K with fewer columns, or a last tile of V^T with fewer rows:
// those are copied into a zero-padded tile, so that nothing past the operand is read and no stray value meets a zero.
// Reduction order: dot, steps of 32 of head_dim ascending; O, steps of 32 keys ascending from the split's first key on. Inside a
// step TDPBF16PS's own: even and odd positions in two fma chains ascending, added, then added to the sum; denormals are zero.
// The rest as in attention_tile.h, with AVX-512 for the softmax.
// Roofline: 16 lanes are all an AMX right operand holds, so each tile of K or V^T is loaded for one product: bound by loads.
#include "kernels/amx/tile.h"
#include "kernels/attention/attention_tile.h"
#include "kernels/simd/vec_avx512.h"

namespace otr {
namespace {

// Loads up to 16 rows of up to 32 elements; the rest of the tile is zero.
template <int kTile>
OTR_INLINE void load_left(const Element* a, int64_t stride, int rows, int columns) {
  if (rows >= kTileRows && columns >= kTileDepth) {
    tile_load<kTile>(a, stride * 2);
    return;
  }
  alignas(64) Element staged[kTileRows][kTileDepth] = {};
  const unsigned bytes = static_cast<unsigned>(columns < kTileDepth ? columns : kTileDepth) * 2;
  for (int r = 0; r < rows && r < kTileRows; ++r) __builtin_memcpy(staged[r], a + r * stride, bytes);
  tile_load<kTile>(staged, kTileBytes);
}

// REQUIRES: 16 (kTiles - 1) < t.rows <= 16 kTiles.
template <int kTiles>
__attribute__((noinline)) void product_tiles(const AttentionProduct& t) {
  tile_zero<0>();
  if constexpr (kTiles > 1) tile_zero<1>();
  if constexpr (kTiles > 2) tile_zero<2>();
  if constexpr (kTiles > 3) tile_zero<3>();
  const Element* b = t.b;
  const int64_t tile_stride = kTileRows * t.stride;
  for (int done = 0, piece = 0; done < t.depth; done += t.piece_depth, ++piece) {
    const Element* a = t.pieces[piece] + t.offset;
    const int depth = t.depth - done < t.piece_depth ? t.depth - done : t.piece_depth;
    for (int i = 0; i < depth; i += kTileDepth, a += kTileDepth, b += kTileDepth * kAttentionLanes) {
      const int columns = depth - i;
      tile_load<6>(b, kTileBytes);
      load_left<4>(a, t.stride, t.rows, columns);
      tile_dot<0, 4, 6>();
      if constexpr (kTiles > 1) {
        load_left<5>(a + tile_stride, t.stride, t.rows - kTileRows, columns);
        tile_dot<1, 5, 6>();
      }
      if constexpr (kTiles > 2) {
        load_left<4>(a + 2 * tile_stride, t.stride, t.rows - 2 * kTileRows, columns);
        tile_dot<2, 4, 6>();
      }
      if constexpr (kTiles > 3) {
        load_left<5>(a + 3 * tile_stride, t.stride, t.rows - 3 * kTileRows, columns);
        tile_dot<3, 5, 6>();
      }
    }
  }
  constexpr int kTileFloats = kTileRows * kTileColumns;
  tile_store<0>(t.c, kTileBytes);
  if constexpr (kTiles > 1) tile_store<1>(t.c + kTileFloats, kTileBytes);
  if constexpr (kTiles > 2) tile_store<2>(t.c + 2 * kTileFloats, kTileBytes);
  if constexpr (kTiles > 3) tile_store<3>(t.c + 3 * kTileFloats, kTileBytes);
}

struct Isa {
  using Vec = VecAvx512;
  OTR_INLINE void begin() { tile_configure(full_tiles()); }
  OTR_INLINE void end() { tile_release(); }
  OTR_INLINE void product(const AttentionProduct& t) {
    switch ((t.rows + kTileRows - 1) / kTileRows) {
      case 1: return product_tiles<1>(t);
      case 2: return product_tiles<2>(t);
      case 3: return product_tiles<3>(t);
      default: return product_tiles<4>(t);
    }
  }
};

}  // namespace

void attention_amx(const AttentionParams& params, ThreadPool& pool) { attention_tiles<Isa>(params, pool); }

}  // namespace otr
