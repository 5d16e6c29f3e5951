// cpu-avx512: out = x Wq^T (+ bias) (+ residual) with VPDPBUSD, products of bytes summed as integers.
//
// Nibbles are the unsigned operand, x the signed one; the zero point times the sum of x comes off afterwards. Both are integers
// below 2^24, so float32 takes them off exactly, and any order of the products gives the same bits.
//
// Tile: up to 8 rows x 32 outputs: 16 accumulators; up to 4 rows have two each, since a product takes 4 cycles. 128 bytes of
// nibbles are 6 operations, on pipes that the products leave free, so every 8 rows expand them anew.
// Roofline: a row needs 2 VPDPBUSD for 64 bytes of nibbles, one a cycle: up to 4 rows are bound by memory. Measured on 2 Zen 4
// cores: 0.83 to 0.98 of the read bandwidth with 1 row, 0.84 to 1.1 with 4; many rows 1.6 to 1.7 of what VDPBF16PS could do.
#include "kernels/linear_w4/linear_w4_vec.h"
#include "kernels/linear_w4/w4_round_avx512.h"

namespace otr {
namespace {

constexpr int kRowBlock = 8;

void round_group(const Element* x, int inputs, int row, const W4Rounded& to) {
  const W4RoundedGroup rounded = w4_round_group(x, inputs);
  __m256i sum = _mm256_setzero_si256();
#pragma GCC unroll 4
  for (int i = 0; i < kW4GroupK / 32; ++i) {
    _mm256_store_si256(reinterpret_cast<__m256i*>(to.integers[row] + 32 * i), rounded.bytes[i]);
    sum = _mm256_dpbusd_epi32(sum, _mm256_set1_epi8(1), rounded.bytes[i]);
  }
  to.units[row] = rounded.unit;
  to.sums[row] = static_cast<float>(_mm512_reduce_add_epi32(_mm512_zextsi256_si512(sum)));
}

OTR_INLINE __m512i broadcast_four(const int8_t* x) {
  int four;
  __builtin_memcpy(&four, x, sizeof four);
  return _mm512_set1_epi32(four);
}

// Adds a group to rows [first, first + kRows).
template <int kRows>
__attribute__((noinline)) void add_rows(const W4Group& g, int first, W4Sums* sums) {
  constexpr int kChains = kRows <= 4 ? 2 : 1;
  __m512i mask = _mm512_set1_epi8(15);
  __asm__("" : "+v"(mask));  // in a register: left to itself the compiler reads it from memory each time
  const int8_t* x = g.x.integers[first];
  const uint8_t* nibbles = g.nibbles;
  __m512i partial[kRows][2][kChains];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int chain = 0; chain < kChains; ++chain) partial[r][0][chain] = partial[r][1][chain] = _mm512_setzero_si512();
  }
  for (int piece = 0; piece < g.pieces; ++piece, x += kW4PieceK, nibbles += kW4PieceBytes) {
    __m512i q[2][2];  // [tile][lower, upper nibbles]
#pragma GCC unroll 2
    for (int tile = 0; tile < 2; ++tile) {
      __builtin_prefetch(nibbles + tile * kW4TileBytes + kW4PrefetchBytes);
      const __m512i both = _mm512_load_si512(nibbles + tile * kW4TileBytes);
      q[tile][0] = _mm512_and_si512(both, mask);
      q[tile][1] = _mm512_and_si512(_mm512_srli_epi16(both, 4), mask);
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
      for (int half = 0; half < 2; ++half) {
        const __m512i four = broadcast_four(x + r * kW4GroupK + 4 * half);
#pragma GCC unroll 2
        for (int tile = 0; tile < 2; ++tile) {
          __m512i& sum = partial[r][tile][half % kChains];
          sum = _mm512_dpbusd_epi32(sum, q[tile][half], four);
        }
      }
    }
  }
  const __m512 scale[2] = {_mm512_load_ps(g.words), _mm512_load_ps(g.words + 64)};
  __m512 zero[2];
#pragma GCC unroll 2
  for (int tile = 0; tile < 2; ++tile) {
    const __m512i word = _mm512_castps_si512(scale[tile]);
    zero[tile] = _mm512_cvtepi32_ps(_mm512_and_si512(word, _mm512_set1_epi32(kW4ZeroPointMask)));
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    const __m512 unit = _mm512_set1_ps(g.x.units[first + r]), sum_of_x = _mm512_set1_ps(g.x.sums[first + r]);
#pragma GCC unroll 2
    for (int tile = 0; tile < 2; ++tile) {
      float* sum = sums->row[first + r] + tile * kLinearTileN;
      const __m512i products =
          kChains == 2 ? _mm512_add_epi32(partial[r][tile][0], partial[r][tile][kChains - 1]) : partial[r][tile][0];
      const __m512 exact = _mm512_fnmadd_ps(zero[tile], sum_of_x, _mm512_cvtepi32_ps(products));
      _mm512_store_ps(sum, _mm512_fmadd_ps(_mm512_mul_ps(scale[tile], unit), exact, _mm512_load_ps(sum)));
    }
  }
}

using AddRows = void (*)(const W4Group&, int, W4Sums*);
constexpr AddRows kAddRows[kRowBlock + 1] = {nullptr,     add_rows<1>, add_rows<2>, add_rows<3>, add_rows<4>,
                                             add_rows<5>, add_rows<6>, add_rows<7>, add_rows<8>};

}  // namespace

void linear_w4_avx512(const LinearW4Params& p, ThreadPool& pool) {
  linear_w4_tasks<VecAvx512>(p, pool, round_group, [](const W4Group& g, W4Sums* sums) {
    const int parts = (g.num_rows + kRowBlock - 1) / kRowBlock;
    for (int i = 0; i < parts; ++i) {  // of equal size
      const int begin = g.num_rows * i / parts, end = g.num_rows * (i + 1) / parts;
      kAddRows[end - begin](g, begin, sums);
    }
  });
}

}  // namespace otr
