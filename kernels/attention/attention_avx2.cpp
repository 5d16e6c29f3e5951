// cpu-avx2: attention_tile.h with float32 fma.
//
// Product tile: up to 8 lanes of q or P, widened beforehand, by 8 keys, or channels of V, whose pairs are widened from bf16 by
// a shift and a mask: 8 accumulators, or 10 of twice as many keys for up to 5 lanes. Reduction order: dot, one float32 fma
// chain over head_dim ascending; O, one chain a split over keys ascending. The rest as in attention_tile.h. Roofline: a group
// of 7 heads makes 14 fma of 32 bytes of K or V: bound by them, and by as many broadcasts.
#include "kernels/attention/attention_tile.h"
#include "kernels/simd/vec_avx2.h"

namespace otr {
namespace {

using Product = AttentionProduct<float>;

constexpr int kHalf = 8;  // keys or channels of a register

// kHalves of a block of 16, from number `half` on.
template <int kLanes, int kHalves>
OTR_INLINE void product_halves(const Product& t, int lane, int block, int half) {
  __m256 acc[kLanes][kHalves];
#pragma GCC unroll 8
  for (int r = 0; r < kLanes; ++r) {
#pragma GCC unroll 2
    for (int i = 0; i < kHalves; ++i) acc[r][i] = _mm256_setzero_ps();
  }
  const float* a = t.a + lane * kAttentionStride;
  for (int done = 0, piece = 0; done < t.pairs; done += t.piece_pairs, ++piece) {
    const int64_t at = block * t.block_elements + half * 2 * kHalf;
    const Element *b = t.pieces[piece] + at, *ahead = t.ahead[piece] + at;
    const int pairs = t.pairs - done < t.piece_pairs ? t.pairs - done : t.piece_pairs;
    for (int pair = 0; pair < pairs; ++pair, a += 2, b += 2 * kKvLanes, ahead += 2 * kKvLanes) {
      __m256 even[kHalves], odd[kHalves];
      _mm_prefetch(reinterpret_cast<const char*>(ahead), _MM_HINT_T1);
#pragma GCC unroll 2
      for (int i = 0; i < kHalves; ++i) {
        const __m256i w = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(b + i * 2 * kHalf));
        even[i] = even_floats(w);
        odd[i] = odd_floats(w);
      }
#pragma GCC unroll 8
      for (int r = 0; r < kLanes; ++r) {
        const __m256 first = _mm256_broadcast_ss(a + r * kAttentionStride);
        const __m256 second = _mm256_broadcast_ss(a + r * kAttentionStride + 1);
#pragma GCC unroll 2
        for (int i = 0; i < kHalves; ++i) {
          acc[r][i] = _mm256_fmadd_ps(first, even[i], acc[r][i]);
          acc[r][i] = _mm256_fmadd_ps(second, odd[i], acc[r][i]);
        }
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kLanes; ++r) {
#pragma GCC unroll 2
    for (int i = 0; i < kHalves; ++i) {
      _mm256_storeu_ps(t.c + (lane + r) * kAttentionStride + block * kKvLanes + (half + i) * kHalf, acc[r][i]);
    }
  }
}

template <int kLanes>
__attribute__((noinline)) void product_lanes(const Product& t, int lane) {
  constexpr int kHalves = kLanes <= 5 ? 2 : 1;
  for (int block = 0; block < t.blocks; ++block) {
    for (int half = 0; half < 2; half += kHalves) product_halves<kLanes, kHalves>(t, lane, block, half);
  }
}

struct Isa {
  using Vec = VecAvx2;
  using Operand = float;
  OTR_INLINE float widen(Element x) { return to_float(x); }
  OTR_INLINE void store_weights(float* p, VecAvx2 weights) {
    Element rounded[kKvLanes];
    store(rounded, weights);
    store(p, VecAvx2::load(rounded));
  }
  static constexpr Product::Lanes kProducts[] = {nullptr,          product_lanes<1>, product_lanes<2>,
                                                 product_lanes<3>, product_lanes<4>, product_lanes<5>,
                                                 product_lanes<6>, product_lanes<7>, product_lanes<8>};
};

}  // namespace

void attention_avx2(const AttentionParams& params, ThreadPool& pool) { attention_tiles<Isa>(params, pool); }

}  // namespace otr
