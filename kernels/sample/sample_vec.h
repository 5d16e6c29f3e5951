// The vector form of sample's passes over the vocabulary, bit-equal to sample_scalar.cpp. V is a float type of kernels/simd.
//
// Noise: token ids are taken in blocks of 64, whose 16 Philox counters are computed at once (200 integer operations); a
// transpose in groups of four brings their words into token order. Most of it is avoided, exactly: rounding is monotone, so
//   fl(x_v + G_v) <= fl(x_v + bound) < floor  implies that v cannot win,
// where floor is the score of a token of maximal logit. With bound = 23 (no word gives more than 22.874) a whole block is left
// out; with bound = 8, words below kRareWord are, that is all but 1 in 2,950, and the two logarithms run on few blocks.
#pragma once

#include "kernels/sample/candidates_row.h"

namespace otr {

inline constexpr float kGumbelBound = 23.0f;
inline constexpr float kCommonGumbelBound = 8.0f;  // G < 8 for every word below kRareWord (G(kRareWord) = 7.99)
inline constexpr uint32_t kRareWord = 0xffe9cc45u;

template <typename V>
struct VecSampleOps {
  using U = typename V::Uint;

  // Lane 4 g + r works on quad 4 r + g of a block, so that transpose_fours leaves word vector r with the tokens 16 r … 16 r
  // + 15.
  alignas(64) static constexpr uint32_t kQuadOfLane[16] = {0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15};
  alignas(64) static constexpr uint32_t kLaneIndex[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

  // x[v … v + 15], -inf (of weight 0, never chosen) beyond n.
  OTR_INLINE V load_or_minus_inf(const float* x, int32_t v, int32_t n) {
    if (v + 16 <= n) return V::load(x + v);
    const V none = V::broadcast(-__builtin_inff());
    return v < n ? V::load_first(x + v, n - v, none) : none;
  }

  OTR_INLINE bool finite_max(const float* x, int32_t n, float* max) {
    V m = V::broadcast(x[0]), poison = V::zero();  // x * 0 stays 0 unless x is NaN or Inf
    int32_t v = 0;
    for (; v + 16 <= n; v += 16) {
      const V a = V::load(x + v);
      m = max_(a, m);
      poison = fma_(a, V::zero(), poison);
    }
    const V tail = V::load_first(x + v, n - v, V::broadcast(x[0]));
    m = max_(tail, m);
    poison = fma_(tail, V::zero(), poison);
    *max = reduce_max(m) + 0.0f;
    return mask_finite(poison) == 0xffffu;
  }

  OTR_INLINE double sum_exp(const float* x, float max, int32_t n) {
    const V m = V::broadcast(max);
    double total = 0.0;
    for (int32_t begin = 0; begin < n; begin += kSampleSumBlock) {
      const int32_t end = begin + kSampleSumBlock < n ? begin + kSampleSumBlock : n;
      V lanes = V::zero();
      for (int32_t v = begin; v < end; v += 16) lanes = lanes + exp32(load_or_minus_inf(x, v, n) - m);
      total += static_cast<double>(reduce_add(lanes));
    }
    return total;
  }

  OTR_INLINE void divide(const float* x, float divisor, int32_t n, float* out) {
    const V d = V::broadcast(divisor);
    int32_t v = 0;
    for (; v + 16 <= n; v += 16) store(out + v, V::load(x + v) / d);
    if (v < n) store_first(out + v, n - v, V::load_first(x + v, n - v) / d);
  }

  OTR_INLINE int32_t argmax_with_noise(const SampleDraw& d, const float* x, float max, int32_t n) {
    const uint32_t position = static_cast<uint32_t>(d.position);
    int32_t top = 0;
    while (x[top] != max) ++top;
    const V floor = V::broadcast(x[top] + gumbel(d.noise, static_cast<uint32_t>(top), position));
    const V bound = V::broadcast(kGumbelBound), common_bound = V::broadcast(kCommonGumbelBound);
    const U quads = U::load(kQuadOfLane), lane_index = U::load(kLaneIndex);

    V best_score = V::broadcast(-__builtin_inff());
    U best_id = U::broadcast(0);
    for (int32_t v = 0; v < n; v += 64) {
      V logits[4];
      for (int j = 0; j < 4; ++j) logits[j] = load_or_minus_inf(x, v + 16 * j, n);
      const V highest = max_(max_(logits[0], logits[1]), max_(logits[2], logits[3]));
      if (mask_less(highest + bound, floor) == 0xffffu) continue;
      const bool only_rare = mask_less(highest + common_bound, floor) == 0xffffu;

      PhiloxWords<U> words = noise_words(d.noise, quads + U::broadcast(static_cast<uint32_t>(v) / 4), position);
      transpose_fours(words.w);
      for (int j = 0; j < 4; ++j) {
        if (only_rare && !any_at_least(words.w[j], kRareWord)) continue;
        const V score = logits[j] + gumbel_from_words<V>(words.w[j]);
        const U id = lane_index + U::broadcast(static_cast<uint32_t>(v + 16 * j));
        best_id = select_less(best_score, score, id, best_id);  // strict: the lowest id of a lane's best stays
        best_score = select_less(best_score, score, score, best_score);
      }
    }

    float scores[16];
    uint32_t ids[16];
    store(scores, best_score);
    store(ids, best_id);
    int best = 0;
    for (int i = 1; i < 16; ++i) {
      if (scores[i] > scores[best] || (scores[i] == scores[best] && ids[i] < ids[best])) best = i;
    }
    return static_cast<int32_t>(ids[best]);
  }

  OTR_INLINE void add_noise(const SampleDraw& d, const float* x, int32_t n, float* out) {
    const U quads = U::load(kQuadOfLane);
    for (int32_t v = 0; v < n; v += 64) {
      PhiloxWords<U> words =
          noise_words(d.noise, quads + U::broadcast(static_cast<uint32_t>(v) / 4), static_cast<uint32_t>(d.position));
      transpose_fours(words.w);
      for (int j = 0; j < 4 && v + 16 * j < n; ++j) {
        const int32_t at = v + 16 * j, left = n - at;
        const V score = load_or_minus_inf(x, at, n) + gumbel_from_words<V>(words.w[j]);
        if (left >= 16) store(out + at, score);
        else store_first(out + at, left, score);
      }
    }
  }

  OTR_INLINE bool any_above(const float* x, int32_t n, float floor) {
    const V f = V::broadcast(floor);
    uint32_t above = 0;
    for (int32_t v = 0; v < n; v += 16) above |= mask_less(f, load_or_minus_inf(x, v, n));
    return above != 0;
  }

  OTR_INLINE void weigh(const float* x, float max, float inv_beta, int32_t n, float* total, float* mean) {
    // A weight of exp(-80) is none; bounding the distance keeps 0 * Inf out of the mean.
    const V m = V::broadcast(max), scale = V::broadcast(inv_beta), lowest = V::broadcast(-80.0f / inv_beta);
    V weights = V::zero(), sums = V::zero();
    for (int32_t v = 0; v < n; v += 16) {
      const V below = max_(load_or_minus_inf(x, v, n) - m, lowest), w = exp32(below * scale);
      weights = weights + w;
      sums = fma_(w, below, sums);
    }
    *total = reduce_add(weights);
    *mean = reduce_add(sums);
  }
};

}  // namespace otr
