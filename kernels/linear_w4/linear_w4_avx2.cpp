// cpu-avx2: out = x Wq^T (+ bias) (+ residual) with VPMADDUBSW, products of bytes summed as integers.
//
// Nibbles are the unsigned operand, x the signed one; the zero point times the sum of x comes off afterwards, exactly, since
// both are integers below 2^24. A product of 2 inputs is at most 15 * 128 * 2, so words hold 8 of them, those of 4 pieces, and
// then are widened.
//
// Tile: up to 2 rows x 16 outputs: 4 accumulators of words and 4 of sums.
// Roofline: a row needs 4 VPMADDUBSW and 4 additions for 64 bytes of nibbles.
#include "kernels/linear_w4/linear_w4_vec.h"
#include "kernels/simd/vec_avx2.h"

namespace otr {
namespace {

constexpr int kRowBlock = 2;
constexpr int kWordPieces = 4;  // of which a word holds the products, two of 2 inputs each
static_assert(kWordPieces * 2 * 2 * 15 * 128 < 1 << 15 && kLinearStepK / kW4PieceK % kWordPieces == 0);

OTR_INLINE __m256i load_lanes(const void* p) { return _mm256_load_si256(static_cast<const __m256i*>(p)); }

OTR_INLINE int sum_of_lanes(__m256i v) {
  const __m128i four = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  const __m128i two = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32(two, 0xb1)));
}

void round_group(const Element* x, int inputs, int row, const W4Rounded& to) {
  __m256i greatest = _mm256_setzero_si256();
  for (int i = 0; i < inputs; i += 16) {
    const __m256i v = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x + i));
    greatest = _mm256_max_epu16(greatest, _mm256_and_si256(v, _mm256_set1_epi16(0x7fff)));
  }
  // VPHMINPOSUW finds the least of 8 words: of complements, which turn the order round.
  const __m128i half = _mm_max_epu16(_mm256_castsi256_si128(greatest), _mm256_extracti128_si256(greatest, 1));
  const int least = _mm_extract_epi16(_mm_minpos_epu16(_mm_xor_si128(half, _mm_set1_epi16(-1))), 0);
  const W4Unit unit = w4_unit(static_cast<uint32_t>(0xffff - least) >> 7);  // bf16 has float32's exponents
  const __m256 inverse = _mm256_set1_ps(unit.inverse);
  // Lanes as packing leaves them to inputs in order; then each 8 of them to 0, 4, 1, 5, 2, 6, 3, 7.
  const __m256i lanes = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  const __m256i order = _mm256_setr_epi8(0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15, 0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9,
                                         13, 10, 14, 11, 15);
  __m256i sum = _mm256_setzero_si256();
  for (int i = 0; i < kW4GroupK; i += 32) {
    __m256i integers = _mm256_setzero_si256();
    if (i < inputs) {
      __m256i v[4];
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) {
        const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(x + i + 8 * j));
        const __m256 value = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
        v[j] = _mm256_cvtps_epi32(_mm256_mul_ps(value, inverse));
      }
      const __m256i packed = _mm256_packs_epi16(_mm256_packs_epi32(v[0], v[1]), _mm256_packs_epi32(v[2], v[3]));
      integers = _mm256_shuffle_epi8(_mm256_permutevar8x32_epi32(packed, lanes), order);
    }
    _mm256_store_si256(reinterpret_cast<__m256i*>(to.integers[row] + i), integers);
    const __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), integers);
    sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
  }
  to.units[row] = unit.unit;
  to.sums[row] = static_cast<float>(sum_of_lanes(sum));
}

OTR_INLINE __m256i broadcast_four(const int8_t* x) {
  int four;
  __builtin_memcpy(&four, x, sizeof four);
  return _mm256_set1_epi32(four);
}

// Adds a group to rows [first, first + kRows) and the 16 outputs of a tile.
template <int kRows>
__attribute__((noinline)) void add_rows(const W4Group& g, int tile, int first, W4Sums* sums) {
  const __m256i mask = _mm256_set1_epi8(15), ones = _mm256_set1_epi16(1);
  const int8_t* x = g.x.integers[first];
  const uint8_t* nibbles = g.nibbles + tile * kW4TileBytes;
  __m256i partial[kRows][2];
#pragma GCC unroll 2
  for (int r = 0; r < kRows; ++r) partial[r][0] = partial[r][1] = _mm256_setzero_si256();
  for (int piece = 0; piece < g.pieces; piece += kWordPieces) {
    __m256i words[kRows][2];
#pragma GCC unroll 2
    for (int r = 0; r < kRows; ++r) words[r][0] = words[r][1] = _mm256_setzero_si256();
#pragma GCC unroll 4
    for (int i = 0; i < kWordPieces; ++i, x += kW4PieceK, nibbles += kW4PieceBytes) {
      __builtin_prefetch(nibbles + kW4PrefetchBytes);
#pragma GCC unroll 2
      for (int half = 0; half < 2; ++half) {
        __m256i q[2];
#pragma GCC unroll 2
        for (int v = 0; v < 2; ++v) {
          const __m256i both = load_lanes(nibbles + v * 32);
          q[v] = _mm256_and_si256(half == 0 ? both : _mm256_srli_epi16(both, 4), mask);
        }
#pragma GCC unroll 2
        for (int r = 0; r < kRows; ++r) {
          const __m256i four = broadcast_four(x + r * kW4GroupK + 4 * half);
#pragma GCC unroll 2
          for (int v = 0; v < 2; ++v) words[r][v] = _mm256_add_epi16(words[r][v], _mm256_maddubs_epi16(q[v], four));
        }
      }
    }
#pragma GCC unroll 2
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
      for (int v = 0; v < 2; ++v) partial[r][v] = _mm256_add_epi32(partial[r][v], _mm256_madd_epi16(words[r][v], ones));
    }
  }
#pragma GCC unroll 2
  for (int v = 0; v < 2; ++v) {
    const __m256i word = load_lanes(g.words + tile * kLinearTileN * 4 + v * 32);
    const __m256 scale = _mm256_castsi256_ps(word);
    const __m256 zero = _mm256_cvtepi32_ps(_mm256_and_si256(word, _mm256_set1_epi32(kW4ZeroPointMask)));
#pragma GCC unroll 2
    for (int r = 0; r < kRows; ++r) {
      float* sum = sums->row[first + r] + tile * kLinearTileN + v * 8;
      const __m256 exact = _mm256_fnmadd_ps(zero, _mm256_set1_ps(g.x.sums[first + r]), _mm256_cvtepi32_ps(partial[r][v]));
      const __m256 factor = _mm256_mul_ps(scale, _mm256_set1_ps(g.x.units[first + r]));
      _mm256_store_ps(sum, _mm256_fmadd_ps(factor, exact, _mm256_load_ps(sum)));
    }
  }
}

}  // namespace

void linear_w4_avx2(const LinearW4Params& p, ThreadPool& pool) {
  linear_w4_tasks<VecAvx2>(p, pool, round_group, [](const W4Group& g, W4Sums* sums) {
    for (int tile = 0; tile < 2; ++tile) {
      int row = 0;
      for (; row + kRowBlock <= g.num_rows; row += kRowBlock) add_rows<kRowBlock>(g, tile, row, sums);
      if (row < g.num_rows) add_rows<1>(g, tile, row, sums);
    }
  });
}

}  // namespace otr
