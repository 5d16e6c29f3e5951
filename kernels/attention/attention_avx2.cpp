// cpu-avx2: attention_tile.h with float32 fma.
//
// Product tile: 4 rows (keys, or rows of V^T) x 16 lanes: 8 accumulators; q or P is widened from bf16 by a shift and a mask
// once for the 4 rows, and each row's pair is broadcast from the page and widened: 14 of 16 registers. Reduction order: dot,
// one float32 fma chain over head_dim ascending; O, one chain a split over keys ascending. The rest as in attention_tile.h.
// Roofline: 16 fma (of 8) per 4 broadcasts and 12 widening operations: bound by fma (one Zen 4 core, 128 rows at 4k: 84 GFLOP/s
// over the 14 lanes in use of 16, of 116).
#include "kernels/attention/attention_tile.h"
#include "kernels/simd/vec_avx2.h"

namespace otr {
namespace {

constexpr int kRowBlock = 4;

// The even and the odd bf16 of 8 pairs, as float32.
OTR_INLINE __m256 even_floats(__m256i pairs) { return _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16)); }
OTR_INLINE __m256 odd_floats(__m256i pairs) {
  return _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32(static_cast<int>(0xffff0000u))));
}

OTR_INLINE __m256i load_pairs(const Element* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }

template <int kRows>
__attribute__((noinline)) void product_rows(const AttentionProduct& t, int first_row) {
  VecAvx2 acc[kRows];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) acc[r] = VecAvx2::zero();
  const Element* b = t.b;
  for (int done = 0, piece = 0; done < t.depth; done += t.piece_depth, ++piece) {
    const Element* a = t.pieces[piece] + t.offset + first_row * t.stride;
    const int pairs = (t.depth - done < t.piece_depth ? t.depth - done : t.piece_depth) / 2;
    for (int pair = 0; pair < pairs; ++pair, a += 2, b += 32) {
      const __m256i lo = load_pairs(b), hi = load_pairs(b + 16);
      const VecAvx2 even{even_floats(lo), even_floats(hi)}, odd{odd_floats(lo), odd_floats(hi)};
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        const __m256i row = broadcast_bf16_pair(a + r * t.stride);
        const __m256 a0 = even_floats(row), a1 = odd_floats(row);
        acc[r] = fma_(VecAvx2{a0, a0}, even, acc[r]);
        acc[r] = fma_(VecAvx2{a1, a1}, odd, acc[r]);
      }
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) store(t.c + (first_row + r) * kAttentionLanes, acc[r]);
}

struct Isa {
  using Vec = VecAvx2;
  OTR_INLINE void begin() {}
  OTR_INLINE void end() {}
  OTR_INLINE void product(const AttentionProduct& t) {
    int row = 0;
    for (; row + kRowBlock <= t.rows; row += kRowBlock) product_rows<kRowBlock>(t, row);
    for (; row < t.rows; row += 2) product_rows<2>(t, row);
  }
};

}  // namespace

void attention_avx2(const AttentionParams& params, ThreadPool& pool) { attention_tiles<Isa>(params, pool); }

}  // namespace otr
