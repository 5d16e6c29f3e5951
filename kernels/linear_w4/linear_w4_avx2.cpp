// cpu-avx2: out = x Wq^T (+ bias) (+ residual) with float32 fma.
//
// Tile: up to 3 rows x 32 outputs: 12 accumulators of 8 outputs. For 8 weights a shift, a mask, a subtraction and a conversion
// give q - zero as float32. Up to 3 rows do that as they read; more rows expand a group once, to 16 KB of L1.
// Reduction order: a group's partial sum is one float32 chain over inputs ascending, one fma each, padding (zeros) included;
// groups ascending, one fma each; then bias, then residual. As the products are exact, that is cpu-scalar's arithmetic.
// Roofline: bound by the expansion up to 3 rows (one row on Zen 4: 25 cycles for 64 bytes of nibbles), then by fma.
#include "kernels/linear_w4/linear_w4_vec.h"
#include "kernels/simd/vec_avx2.h"

namespace otr {
namespace {

constexpr int kRowBlock = 3;
constexpr int kVectors = kLinearBlockN / 8;  // of 8 outputs

OTR_INLINE __m256i load_lanes(const uint8_t* p) { return _mm256_load_si256(reinterpret_cast<const __m256i*>(p)); }

// q - zero of input i (0 … 7) of a piece: 8 outputs.
OTR_INLINE __m256 w4_weight(const uint8_t* nibbles, __m256i zero, int i) {
  const __m256i shifted = _mm256_srli_epi32(load_lanes(nibbles), i % 2 * 16 + i / 2 * 4);
  return _mm256_cvtepi32_ps(_mm256_sub_epi32(_mm256_and_si256(shifted, _mm256_set1_epi32(kW4ZeroPointMask)), zero));
}

OTR_INLINE __m256i w4_zeros(const uint8_t* words) {
  return _mm256_and_si256(load_lanes(words), _mm256_set1_epi32(kW4ZeroPointMask));
}

struct alignas(64) Expanded {
  float w[kW4GroupK][kLinearBlockN];
};

void expand_group(const W4Group& g, Expanded* out) {
  for (int v = 0; v < kVectors; ++v) {
    const __m256i zero = w4_zeros(g.words + v * 32);
    for (int piece = 0; piece < g.pieces; ++piece) {
#pragma GCC unroll 8
      for (int i = 0; i < kW4PieceK; ++i) {
        _mm256_store_ps(out->w[piece * kW4PieceK + i] + v * 8, w4_weight(g.nibbles + piece * kW4PieceBytes + v * 32, zero, i));
      }
    }
  }
}

// Adds a group to rows [first, first + kRows). `expanded`: read if kExpanded, else nibbles are expanded on the way.
template <int kRows, bool kExpanded>
__attribute__((noinline)) void add_rows(const W4Group& g, const Expanded& expanded, int first, W4Sums* sums) {
  const Element* x = g.x + first * g.x_stride;
  __m256i zero[kVectors];
  __m256 partial[kRows][kVectors];
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) {
    zero[v] = w4_zeros(g.words + v * 32);
#pragma GCC unroll 3
    for (int r = 0; r < kRows; ++r) partial[r][v] = _mm256_setzero_ps();
  }
  for (int piece = 0; piece < g.pieces; ++piece, x += kW4PieceK) {
    const uint8_t* nibbles = g.nibbles + piece * kW4PieceBytes;
    if constexpr (!kExpanded) {
      __builtin_prefetch(nibbles + kW4PrefetchBytes);
      __builtin_prefetch(nibbles + kW4PrefetchBytes + kW4TileBytes);
    }
#pragma GCC unroll 8
    for (int i = 0; i < kW4PieceK; ++i) {
      __m256 input[kRows];
#pragma GCC unroll 3
      for (int r = 0; r < kRows; ++r) input[r] = _mm256_set1_ps(to_float(x[r * g.x_stride + i]));
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        const __m256 w =
            kExpanded ? _mm256_load_ps(expanded.w[piece * kW4PieceK + i] + v * 8) : w4_weight(nibbles + v * 32, zero[v], i);
#pragma GCC unroll 3
        for (int r = 0; r < kRows; ++r) partial[r][v] = _mm256_fmadd_ps(input[r], w, partial[r][v]);
      }
    }
  }
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) {
    const __m256 scale = _mm256_castsi256_ps(load_lanes(g.words + v * 32));
#pragma GCC unroll 3
    for (int r = 0; r < kRows; ++r) {
      float* sum = sums->row[first + r] + v * 8;
      _mm256_store_ps(sum, _mm256_fmadd_ps(scale, partial[r][v], _mm256_load_ps(sum)));
    }
  }
}

using AddRows = void (*)(const W4Group&, const Expanded&, int, W4Sums*);
constexpr AddRows kAddRows[2][kRowBlock + 1] = {{nullptr, add_rows<1, false>, add_rows<2, false>, add_rows<3, false>},
                                                {nullptr, add_rows<1, true>, add_rows<2, true>, add_rows<3, true>}};

}  // namespace

void linear_w4_avx2(const LinearW4Params& p, ThreadPool& pool) {
  linear_w4_tasks<VecAvx2>(p, pool, [](const W4Group& g, W4Sums* sums) {
    const int pieces = (g.num_rows + kRowBlock - 1) / kRowBlock;
    Expanded expanded;
    if (pieces > 1) expand_group(g, &expanded);
    for (int i = 0; i < pieces; ++i) {  // of equal size
      const int begin = g.num_rows * i / pieces, end = g.num_rows * (i + 1) / pieces;
      kAddRows[pieces > 1][end - begin](g, expanded, begin, sums);
    }
  });
}

}  // namespace otr
