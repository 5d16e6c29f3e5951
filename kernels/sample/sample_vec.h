// The vector form of sample's passes over the vocabulary, bit-equal to sample_scalar.cpp; of candidates the m best are. V is a
// float type of kernels/simd.
//
// Noise: token ids are taken in blocks of 64 (noise_words_vec.h). The rest is avoided, exactly (least_word of base/noise.h):
// with `floor` the best score seen so far, first that of a token of maximal logit, and the maximum of a token's block of 256, a
// word that is too small for the greatest logit of its block cannot win. Where no word could, none is drawn; where none of 128,
// 64 or 16 is great enough, neither logits are read nor logarithms taken.
#pragma once

#include "kernels/sample/candidates_row.h"
#include "kernels/sample/noise_words_vec.h"

namespace otr {

template <typename V>
struct VecSampleOps {
  using U = typename V::Uint;
  using Noise = VecNoiseWords<U>;

  static constexpr uint32_t kRareWord = 0xff000000u;  // a word of 128 is as likely below it as not
  alignas(64) static constexpr uint32_t kLaneIndex[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

  // x[v … v + 15], -inf (of weight 0, never chosen) beyond n.
  OTR_INLINE V load_or_minus_inf(const float* x, int32_t v, int32_t n) {
    if (v + 16 <= n) return V::load(x + v);
    const V none = V::broadcast(-__builtin_inff());
    return v < n ? V::load_first(x + v, n - v, none) : none;
  }

  OTR_INLINE bool finite_max(const float* x, int32_t n, float* maxima, float* max) {
    V all = V::broadcast(-__builtin_inff()), poison = V::zero();  // x * 0 stays 0 unless x is NaN or Inf
    for (int32_t begin = 0; begin < n; begin += kSampleMaxBlock) {
      V m = V::broadcast(x[begin]);
      int32_t v = begin;
      if (begin + kSampleMaxBlock <= n) {
        V poisons[4] = {poison, V::zero(), V::zero(), V::zero()}, ms[4] = {m, m, m, m};
        for (; v < begin + kSampleMaxBlock; v += 64) {
          for (int j = 0; j < 4; ++j) {
            const V a = V::load(x + v + 16 * j);
            ms[j] = max_(a, ms[j]);
            poisons[j] = fma_(a, V::zero(), poisons[j]);
          }
        }
        m = max_(max_(ms[0], ms[1]), max_(ms[2], ms[3]));
        poison = (poisons[0] + poisons[1]) + (poisons[2] + poisons[3]);
      }
      for (; v < begin + kSampleMaxBlock && v < n; v += 16) {
        const V a = V::load_first(x + v, n - v, V::broadcast(x[begin]));
        m = max_(a, m);
        poison = fma_(a, V::zero(), poison);
      }
      maxima[begin / kSampleMaxBlock] = reduce_max(m);
      all = max_(m, all);
    }
    *max = reduce_max(all) + 0.0f;
    return mask_finite(poison) == 0xffffu;
  }

  OTR_INLINE double sum_exp(const float* x, float max, int32_t n, const float* next) {
    const V m = V::broadcast(max);
    double total = 0.0;
    for (int32_t begin = 0; begin < n; begin += kSampleSumBlock) {
      const int32_t end = begin + kSampleSumBlock < n ? begin + kSampleSumBlock : n;
      V lanes = V::zero();
      for (int32_t v = begin; v < end; v += 16) {
        __builtin_prefetch(next + v, 0, 2);  // one cache line
        lanes = lanes + exp32_not_positive(load_or_minus_inf(x, v, n) - m);
      }
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

  // Brings kCount floats near.
  template <int32_t kCount>
  OTR_INLINE void fetch(const float* x) {
#pragma GCC unroll 16
    for (int32_t i = 0; i < kCount; i += 16) __builtin_prefetch(x + i, 0, 2);
  }

  OTR_INLINE int32_t argmax_with_noise(const SampleDraw& d, const float* x, float max, const float* maxima, int32_t n,
                                       const float* next) {
    const uint32_t position = static_cast<uint32_t>(d.position);
    const int32_t top = sample_top(x, maxima, max);
    float floor = x[top] + gumbel(d.noise, static_cast<uint32_t>(top), position);
    const U lane_index = U::load(kLaneIndex);
    const PhiloxKeys keys = noise_keys(d.noise);

    V best_score = V::broadcast(-__builtin_inff());
    U best_id = U::broadcast(0);
    for (int32_t begin = 0; begin < n; begin += kSampleMaxBlock) {
      const float highest = maxima[begin / kSampleMaxBlock];
      if (highest + kGumbelBound < floor) {
        fetch<kSampleMaxBlock>(next + begin);
        continue;
      }
      uint32_t least = least_word(highest, floor);
      for (int32_t v = begin; v < begin + kSampleMaxBlock && v < n; v += 64) {
        if (v % 128 == 0) {
          fetch<128>(next + v);
          if (!Noise::any_at_least_of_pair(d, keys, v, least)) {
            v += 64;
            continue;
          }
        }
        const auto block = Noise::block(d, keys, v);
        if (!any_at_least(block.w, least)) continue;
        U words[4];
        Noise::in_token_order(block, words);
        for (int j = 0; j < 4; ++j) {
          if (!any_at_least(words[j], least)) continue;
          const V score = load_or_minus_inf(x, v + 16 * j, n) + gumbel_from_words<V>(words[j]);
          const U id = lane_index + U::broadcast(static_cast<uint32_t>(v + 16 * j));
          best_id = select_less(best_score, score, id, best_id);  // strict: the lowest id of a lane's best stays
          best_score = select_less(best_score, score, score, best_score);
          if (mask_less(V::broadcast(floor), score) != 0) {
            floor = reduce_max(score);
            least = least_word(highest, floor);
          }
        }
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

  OTR_INLINE int32_t collect(const float* x, float bound, const float* maxima, int32_t n, int32_t* ids) {
    const V least = V::broadcast(bound);
    const U lane_index = U::load(kLaneIndex);
    uint32_t* out = reinterpret_cast<uint32_t*>(ids);
    int32_t count = 0;
    for (int32_t v = 0; v < n; v += 16) {
      if (v % kSampleMaxBlock == 0 && maxima[v / kSampleMaxBlock] < bound) {
        v += kSampleMaxBlock - 16;
        continue;
      }
      const uint32_t below = mask_less(load_or_minus_inf(x, v, n), least);
      const uint32_t inside = n - v >= 16 ? 0xffffu : (1u << (n - v)) - 1u;
      count += store_selected(out + count, ~below & inside, lane_index + U::broadcast(static_cast<uint32_t>(v)));
    }
    return count;
  }

  OTR_INLINE int32_t collect_with_noise(const SampleDraw& d, const float* x, CandidateBound bound, const float* maxima,
                                        int32_t n, float* scores, int32_t* ids) {
    const PhiloxKeys keys = noise_keys(d.noise);
    const U lane_index = U::load(kLaneIndex);
    uint32_t* const out = reinterpret_cast<uint32_t*>(ids);
    int32_t count = 0;
    float floor = candidate_bound_least(bound);
    for (int32_t begin = 0; begin < n; begin += kSampleMaxBlock) {
      const float highest = maxima[begin / kSampleMaxBlock];
      if (highest + kGumbelBound < floor) continue;
      uint32_t least = least_word(highest, floor);
      for (int32_t v = begin; v < begin + kSampleMaxBlock && v < n; v += 64) {
        if (least >= kRareWord && v % 128 == 0 && !Noise::any_at_least_of_pair(d, keys, v, least)) {
          v += 64;
          continue;
        }
        const auto block = Noise::block(d, keys, v);
        if (!any_at_least(block.w, least)) continue;
        U words[4];
        Noise::in_token_order(block, words);
        for (int j = 0; j < 4 && v + 16 * j < n; ++j) {
          if (!any_at_least(words[j], least)) continue;
          const int32_t at = v + 16 * j, left = n - at;
          const V score = load_or_minus_inf(x, at, n) + gumbel_from_words<V>(words[j]);
          const uint32_t inside = left >= 16 ? 0xffffu : (1u << left) - 1u;
          const uint32_t kept = ~mask_less(score, V::broadcast(floor)) & inside;
          store_selected(scores + count, kept, score);
          count += store_selected(out + count, kept, lane_index + U::broadcast(static_cast<uint32_t>(at)));
          uint32_t better = mask_less(V::broadcast(bound.of_best), score) & inside;
          if (better == 0) continue;
          float lanes[16];
          store(lanes, score);
          for (; better != 0; better &= better - 1) candidate_bound_show(&bound, lanes[__builtin_ctz(better)]);
          floor = candidate_bound_least(bound);
          least = least_word(highest, floor);
        }
      }
    }
    return count;
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
