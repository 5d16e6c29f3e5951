// cpu-avx2: out = x Wq^T (+ bias) (+ residual) with float32 fma.
//
// Tile: up to 4 rows x 16 outputs: 8 accumulators of 8 outputs. A group of 16 outputs is expanded once for all rows of the
// task, to float32 in L1 (8 KB): shift, mask, subtract and convert for each 8 weights. Then as linear: 2 weight vectors and a
// broadcast. Reduction order: a group's partial sum is one float32 chain over inputs ascending, one fma each, the padding
// (zeros) included; groups ascending, one fma each; then bias, then residual. As the products are exact, that is cpu-scalar's
// arithmetic. Roofline: bound by the expansion up to 2 rows (4 operations for 8 weights), then by fma.
#include "kernels/linear_w4/linear_w4_vec.h"
#include "kernels/simd/vec_avx2.h"

namespace otr {
namespace {

constexpr int kRowBlock = 4;

struct alignas(64) Expanded {
  float w[kW4GroupK][kLinearTileN];
};

OTR_INLINE __m256i load_lanes(const uint8_t* p) { return _mm256_load_si256(reinterpret_cast<const __m256i*>(p)); }

// q - zero of one tile's group.
void expand(const uint8_t* words, const uint8_t* nibbles, int pieces, Expanded* out) {
  const __m256i mask = _mm256_set1_epi32(kW4ZeroPointMask);
  for (int half = 0; half < 2; ++half) {
    const __m256i zero = _mm256_and_si256(load_lanes(words + half * 32), mask);
    for (int piece = 0; piece < pieces; ++piece) {
      const __m256i q = load_lanes(nibbles + piece * kW4PieceBytes + half * 32);
#pragma GCC unroll 8
      for (int i = 0; i < kW4PieceK; ++i) {
        const __m256i nibble = _mm256_and_si256(_mm256_srli_epi32(q, i % 2 * 16 + i / 2 * 4), mask);
        _mm256_store_ps(out->w[piece * kW4PieceK + i] + half * 8, _mm256_cvtepi32_ps(_mm256_sub_epi32(nibble, zero)));
      }
    }
  }
}

// Adds one tile's group to rows [first, first + kRows).
template <int kRows>
__attribute__((noinline)) void add_rows(const W4Group& g, const Expanded& expanded, int tile, int first, W4Sums* sums) {
  const Element* x = g.x + first * g.x_stride;
  VecAvx2 partial[kRows];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) partial[r] = VecAvx2::zero();
  for (int k = 0; k < g.pieces * kW4PieceK; ++k) {
    const VecAvx2 w{_mm256_load_ps(expanded.w[k]), _mm256_load_ps(expanded.w[k] + 8)};
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) partial[r] = fma_(VecAvx2::broadcast(to_float(x[r * g.x_stride + k])), w, partial[r]);
  }
  const VecAvx2 scale = VecAvx2::load(reinterpret_cast<const float*>(g.words) + tile * kLinearTileN);
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
    float* sum = sums->row[first + r] + tile * kLinearTileN;
    store(sum, fma_(scale, partial[r], VecAvx2::load(sum)));
  }
}

using AddRows = void (*)(const W4Group&, const Expanded&, int, int, W4Sums*);
constexpr AddRows kAddRows[kRowBlock + 1] = {nullptr, add_rows<1>, add_rows<2>, add_rows<3>, add_rows<4>};

}  // namespace

void linear_w4_avx2(const LinearW4Params& p, ThreadPool& pool) {
  linear_w4_tasks<VecAvx2>(p, pool, [](const W4Group& g, W4Sums* sums) {
    Expanded expanded;
    const int pieces = (g.num_rows + kRowBlock - 1) / kRowBlock;
    for (int tile = 0; tile < 2; ++tile) {
      expand(g.words + tile * kLinearTileN * 4, g.nibbles + tile * kW4TileBytes, g.pieces, &expanded);
      for (int i = 0; i < pieces; ++i) {  // of equal size
        const int begin = g.num_rows * i / pieces, end = g.num_rows * (i + 1) / pieces;
        kAddRows[end - begin](g, expanded, tile, begin, sums);
      }
    }
  });
}

}  // namespace otr
