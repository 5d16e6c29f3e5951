// cpu-avx512: attention_tile.h with VDPBF16PS.
//
// Product tile: up to 7 lanes of q or P by 64 keys, or channels of V, or 8 lanes by 32: a pair of a lane is broadcast and
// multiplied with the vectors of 16 pairs as the page has them. 7 lanes by 4 vectors are 28 accumulators.
// Reduction order: dot, one float32 chain over pairs of head_dim ascending; O, one chain a split over pairs of keys ascending;
// inside a pair VDPBF16PS's own (denormals are zero). The rest as in attention_tile.h.
// Roofline: a group of 7 heads makes 7 products of 64 bytes of K or V: one Zen 4 core could take 34 GB/s, more than memory has.
#include "kernels/attention/attention_tile.h"
#include "kernels/simd/vec_avx512.h"

namespace otr {
namespace {

using Product = AttentionProduct<Element>;

template <int kLanes, int kBlocks>
OTR_INLINE void product_blocks(const Product& t, int lane, int block) {
  __m512 acc[kLanes][kBlocks];
#pragma GCC unroll 8
  for (int r = 0; r < kLanes; ++r) {
#pragma GCC unroll 4
    for (int i = 0; i < kBlocks; ++i) acc[r][i] = _mm512_setzero_ps();
  }
  const Element* a = t.a + lane * kAttentionStride;
  for (int done = 0, piece = 0; done < t.pairs; done += t.piece_pairs, ++piece) {
    const int64_t at = block * t.block_elements;
    const Element *b = t.pieces[piece] + at, *ahead = t.ahead[piece] + at;
    const int pairs = t.pairs - done < t.piece_pairs ? t.pairs - done : t.piece_pairs;
    for (int pair = 0; pair < pairs; ++pair, a += 2, b += 2 * kKvLanes, ahead += 2 * kKvLanes) {
      __m512bh w[kBlocks];
#pragma GCC unroll 4
      for (int i = 0; i < kBlocks; ++i) {
        _mm_prefetch(reinterpret_cast<const char*>(ahead + i * t.block_elements), _MM_HINT_T1);
        w[i] = reinterpret_cast<__m512bh>(_mm512_loadu_si512(b + i * t.block_elements));
      }
#pragma GCC unroll 8
      for (int r = 0; r < kLanes; ++r) {
        const __m512bh x = broadcast_bf16_pair(a + r * kAttentionStride);
#pragma GCC unroll 4
        for (int i = 0; i < kBlocks; ++i) acc[r][i] = _mm512_dpbf16_ps(acc[r][i], w[i], x);
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kLanes; ++r) {
#pragma GCC unroll 4
    for (int i = 0; i < kBlocks; ++i) {
      _mm512_storeu_ps(t.c + (lane + r) * kAttentionStride + (block + i) * kKvLanes, acc[r][i]);
    }
  }
}

template <int kLanes>
__attribute__((noinline)) void product_lanes(const Product& t, int lane) {
  int block = 0;
  if constexpr (kLanes <= 7) {
    for (; block + 4 <= t.blocks; block += 4) product_blocks<kLanes, 4>(t, lane, block);
  }
  for (; block + 2 <= t.blocks; block += 2) product_blocks<kLanes, 2>(t, lane, block);
  if (block < t.blocks) product_blocks<kLanes, 1>(t, lane, block);
}

struct Isa {
  using Vec = VecAvx512;
  using Operand = Element;
  OTR_INLINE Element widen(Element x) { return x; }
  // As rounding by integers does: no weight is denormal.
  OTR_INLINE void store_weights(Element* p, VecAvx512 weights) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(weights.v)));
  }
  static constexpr Product::Lanes kProducts[] = {nullptr,          product_lanes<1>, product_lanes<2>,
                                                 product_lanes<3>, product_lanes<4>, product_lanes<5>,
                                                 product_lanes<6>, product_lanes<7>, product_lanes<8>};
};

}  // namespace

void attention_avx512(const AttentionParams& params, ThreadPool& pool) { attention_tiles<Isa>(params, pool); }

}  // namespace otr
