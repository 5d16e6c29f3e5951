// The noise's words of 64 neighbouring tokens at once, for sample_vec.h: their 16 Philox counters run through the lanes of one
// vector, and a transpose in groups of four brings the words into token order. U is an integer type of kernels/simd.
//
// A round of Philox is a product, a shift and an exclusive or, each waiting for the one before. Where nothing but the question
// remains whether any word is great enough, two blocks run through it together: 53 µs for 151,936 tokens instead of 59 (Zen 4,
// AVX-512; the operations themselves fill the units for 41).
#pragma once

#include "kernels/base/noise.h"
#include "kernels/sample/sample.h"

namespace otr {

// Two W that run through one chain of operations together.
template <typename W>
struct NoisePair {
  W a, b;
};
template <typename W>
OTR_INLINE NoisePair<W> operator^(NoisePair<W> x, NoisePair<W> y) {
  return {x.a ^ y.a, x.b ^ y.b};
}
template <typename W>
OTR_INLINE NoisePair<W> broadcast(NoisePair<W> x, uint32_t value) {
  return {broadcast(x.a, value), broadcast(x.b, value)};
}
template <typename W>
OTR_INLINE NoisePair<W> multiply_wide(NoisePair<W> x, uint32_t y, NoisePair<W>* low) {
  return {multiply_wide(x.a, y, &low->a), multiply_wide(x.b, y, &low->b)};
}

template <typename U>
struct VecNoiseWords {
  // Lane 4 g + r works on quad 4 r + g of a block, so that transpose_fours leaves word vector r with the tokens 16 r … 16 r
  // + 15.
  alignas(64) static constexpr uint32_t kQuadOfLane[16] = {0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15};
  using Wide = decltype(widen(U()));
  OTR_INLINE Wide block_quads(int32_t v) {
    const Wide first = widen(U::load(kQuadOfLane));
    return first + broadcast(first, static_cast<uint32_t>(v) / 4);
  }
  // The words of tokens v … v + 63, in the form in which they are computed.
  OTR_INLINE PhiloxWords<Wide> block(const SampleDraw& d, const PhiloxKeys& keys, int32_t v) {
    return noise_words(d.noise, keys, block_quads(v), static_cast<uint32_t>(d.position));
  }
  // Whether a word of tokens v … v + 127 is at least `bound`.
  OTR_INLINE bool any_at_least_of_pair(const SampleDraw& d, const PhiloxKeys& keys, int32_t v, uint32_t bound) {
    const NoisePair<Wide> quads = {block_quads(v), block_quads(v + 64)};
    const PhiloxWords<NoisePair<Wide>> words = noise_words(d.noise, keys, quads, static_cast<uint32_t>(d.position));
    const Wide first[4] = {words.w[0].a, words.w[1].a, words.w[2].a, words.w[3].a};
    const Wide second[4] = {words.w[0].b, words.w[1].b, words.w[2].b, words.w[3].b};
    const int in_first = any_at_least(first, bound), in_second = any_at_least(second, bound);
    return (in_first | in_second) != 0;  // one branch, not two
  }
  // Those of the block's tokens 16 j … 16 j + 15 in words[j].
  OTR_INLINE void in_token_order(const PhiloxWords<Wide>& words_of_block, U words[4]) {
    for (int i = 0; i < 4; ++i) words[i] = narrow(words_of_block.w[i]);
    transpose_fours(words);
  }
};

}  // namespace otr
