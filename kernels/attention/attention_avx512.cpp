// cpu-avx512: attention_tile.h with VDPBF16PS.
//
// Product tile: 16 rows (keys, or rows of V^T) x 16 lanes: 16 accumulators; a pair of a row is broadcast from the page and
// multiplied with the [16 lanes][2] vector of q or P: one VDPBF16PS and one broadcast load a pair in both products.
// Reduction order: dot, one float32 chain over pairs of head_dim ascending; O, one chain a split over pairs of keys ascending;
// inside a pair VDPBF16PS's own (denormals are zero). The rest as in attention_tile.h.
// Roofline: 64 flop per 4 bytes of K or V: bound by VDPBF16PS (one Zen 4 core, 28 heads, 4 KV heads of 128, 4k keys: 145 useful
// GFLOP/s of 233 for a prefill, which fills 14 lanes; 60 for one token, which fills 7: 8 GB/s). Half vectors for 7 lanes are no
// faster.
#include "kernels/attention/attention_tile.h"
#include "kernels/simd/vec_avx512.h"

namespace otr {
namespace {

constexpr int kRowBlock = 16;

OTR_INLINE __m512bh load_lanes(const Element* b) { return reinterpret_cast<__m512bh>(_mm512_loadu_si512(b)); }

// kStride: t.stride where it is known, which makes every row's address a constant away from the first one's; otherwise 0.
template <int kRows, int kStride>
__attribute__((noinline)) void product_rows(const AttentionProduct& t, int first_row) {
  const int64_t stride = kStride ? kStride : t.stride;
  __m512 acc[kRows];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) acc[r] = _mm512_setzero_ps();
  const Element* b = t.b;
  for (int done = 0, piece = 0; done < t.depth; done += t.piece_depth, ++piece) {
    const Element* a = t.pieces[piece] + t.offset + first_row * stride;
    // 16 rows at a time in steps of 16 bytes is no pattern that the hardware prefetches: as much as is read of `a` is fetched
    // of what comes next, in another page if need be.
    const bool last_piece = done + t.piece_depth >= t.depth, last_rows = first_row + kRows >= t.rows;
    const Element* next = t.pieces[last_piece ? 0 : piece + 1] + t.offset + (first_row + (last_piece ? kRows : 0)) * stride;
    const char* ahead = reinterpret_cast<const char*>(last_piece && last_rows ? t.next : next);
    const int pairs = (t.depth - done < t.piece_depth ? t.depth - done : t.piece_depth) / 2;
    int pair = 0;
    for (; pair + 4 <= pairs; pair += 4, a += 8, b += 128) {  // four at a time: one row pointer serves four products
#pragma GCC unroll 4
      for (int line = 0; line < kRows / 4; ++line, ahead += 64) _mm_prefetch(ahead, _MM_HINT_T0);
      const __m512bh b0 = load_lanes(b), b1 = load_lanes(b + 32), b2 = load_lanes(b + 64), b3 = load_lanes(b + 96);
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        const Element* row = a + r * stride;
        acc[r] = _mm512_dpbf16_ps(acc[r], b0, broadcast_bf16_pair(row));
        acc[r] = _mm512_dpbf16_ps(acc[r], b1, broadcast_bf16_pair(row + 2));
        acc[r] = _mm512_dpbf16_ps(acc[r], b2, broadcast_bf16_pair(row + 4));
        acc[r] = _mm512_dpbf16_ps(acc[r], b3, broadcast_bf16_pair(row + 6));
      }
    }
    for (; pair < pairs; ++pair, a += 2, b += 32) {
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) acc[r] = _mm512_dpbf16_ps(acc[r], load_lanes(b), broadcast_bf16_pair(a + r * stride));
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) _mm512_storeu_ps(t.c + (first_row + r) * kAttentionLanes, acc[r]);
}

template <int kStride>
OTR_INLINE void product_blocks(const AttentionProduct& t) {
  int row = 0;
  for (; row + kRowBlock <= t.rows; row += kRowBlock) product_rows<kRowBlock, kStride>(t, row);
  for (; row < t.rows; row += 2) product_rows<2, 0>(t, row);
}

struct Isa {
  using Vec = VecAvx512;
  OTR_INLINE void begin() {}
  OTR_INLINE void end() {}
  OTR_INLINE void product(const AttentionProduct& t) {
    switch (t.stride) {
      case 64: return product_blocks<64>(t);
      case 128: return product_blocks<128>(t);
      default: return product_blocks<0>(t);
    }
  }
};

}  // namespace

void attention_avx512(const AttentionParams& params, ThreadPool& pool) { attention_tiles<Isa>(params, pool); }

}  // namespace otr
