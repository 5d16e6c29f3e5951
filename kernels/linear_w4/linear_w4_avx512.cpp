// cpu-avx512: out = x Wq^T (+ bias) (+ residual) with VDPBF16PS.
//
// Tile: up to 6 rows x 32 outputs x 2 chains: 24 accumulators. Up to 16 rows expand the nibbles in registers as they are read,
// for 5 rows at a time; more rows expand a group once, to L1, and multiply 6 rows at a time from there.
// Two chains, because a product takes 6 cycles: a row alone has 4 in flight, and needs 6 cycles for 64 bytes of nibbles.
// Reduction order: a group's partial sum is chain(even pairs) + chain(odd pairs), pairs ascending, padding (zeros) included;
// inside a pair VDPBF16PS's own (linear_avx512.cpp). Groups ascending, one fma each; then bias, then residual.
// Roofline: a row needs 4 VDPBF16PS for 64 bytes of nibbles, one a cycle. Measured on one Zen 4 core of 3.6 GHz, the weight in
// L2: 8.9 cycles for 1 row, 11.4 for 2, 17 for 4, 34 for 8, 263 for 64. From memory: 20, 18, 12.5 and 6.7 GB/s for 1, 2, 4
// and 8 rows, where a loop that only reads gets 22: 1 and 2 rows are bound by memory, 4 and more by VDPBF16PS.
#include "kernels/linear_w4/linear_w4_vec.h"
#include "kernels/linear_w4/w4_expand_avx512.h"

namespace otr {
namespace {

constexpr int kRowBlock = 6;
constexpr int kFusedRows = 16;     // up to here rows expand on the way
constexpr int kFusedRowBlock = 5;  // what fits the registers then

// Adds a group to rows [first, first + kRows). `expanded`: the group as bf16, or null: nibbles are expanded on the way.
template <int kRows, bool kExpanded>
__attribute__((noinline)) void add_rows(const W4Group& g, const W4Expanded* expanded, int first, W4Sums* sums) {
  const __m512i table = w4_table();
  const __m512i offsets[2] = {w4_offsets(g.words), w4_offsets(g.words + 64)};
  const Element* x = g.x + first * g.x_stride;
  const uint8_t* nibbles = g.nibbles;
  __m512 partial[kRows][2][2];
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) {
    partial[r][0][0] = partial[r][0][1] = partial[r][1][0] = partial[r][1][1] = _mm512_setzero_ps();
  }
  for (int piece = 0; piece < g.pieces; ++piece, x += kW4PieceK, nibbles += kW4PieceBytes) {
    const W4Piece q[2] = {kExpanded ? W4Piece{} : w4_load(nibbles, offsets[0]),
                          kExpanded ? W4Piece{} : w4_load(nibbles + kW4TileBytes, offsets[1])};
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      __m512bh w[2];
#pragma GCC unroll 2
      for (int tile = 0; tile < 2; ++tile) {
        w[tile] =
            reinterpret_cast<__m512bh>(kExpanded ? _mm512_load_si512(expanded->step[piece / 4].pair[tile][piece % 4 * 4 + i])
                                                 : w4_pair(q[tile], i, table));
      }
#pragma GCC unroll 6
      for (int r = 0; r < kRows; ++r) {
        const __m512bh pair = broadcast_bf16_pair(x + r * g.x_stride + 2 * i);
        partial[r][0][i % 2] = _mm512_dpbf16_ps(partial[r][0][i % 2], w[0], pair);
        partial[r][1][i % 2] = _mm512_dpbf16_ps(partial[r][1][i % 2], w[1], pair);
      }
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int tile = 0; tile < 2; ++tile) {
      float* sum = sums->row[first + r] + tile * kLinearTileN;
      const __m512 scale = _mm512_load_ps(g.words + tile * 64), both = _mm512_add_ps(partial[r][tile][0], partial[r][tile][1]);
      _mm512_store_ps(sum, _mm512_fmadd_ps(scale, both, _mm512_load_ps(sum)));
    }
  }
}

using AddRows = void (*)(const W4Group&, const W4Expanded*, int, W4Sums*);
constexpr AddRows kAddRows[2][kRowBlock + 1] = {{nullptr, add_rows<1, false>, add_rows<2, false>, add_rows<3, false>,
                                                 add_rows<4, false>, add_rows<5, false>, add_rows<6, false>},
                                                {nullptr, add_rows<1, true>, add_rows<2, true>, add_rows<3, true>,
                                                 add_rows<4, true>, add_rows<5, true>, add_rows<6, true>}};

}  // namespace

void linear_w4_avx512(const LinearW4Params& p, ThreadPool& pool) {
  linear_w4_tasks<VecAvx512>(p, pool, [](const W4Group& g, W4Sums* sums) {
    const bool fused = g.num_rows <= kFusedRows;
    const int most = fused ? kFusedRowBlock : kRowBlock;
    const int pieces = (g.num_rows + most - 1) / most;
    W4Expanded expanded;
    if (!fused) w4_expand_group(g.words, g.nibbles, g.pieces, &expanded);
    for (int i = 0; i < pieces; ++i) {  // of equal size
      const int begin = g.num_rows * i / pieces, end = g.num_rows * (i + 1) / pieces;
      kAddRows[!fused][end - begin](g, &expanded, begin, sums);
    }
  });
}

}  // namespace otr
