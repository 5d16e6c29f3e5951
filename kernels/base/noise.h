// The Gumbel noise of coupled sampling: G(noise key, position, token id), a pure function shared by target and drafters.
//
// Counter layout (part of the contract; the same on every backend):
//   R = philox(key = seed;  ctr = stream_lo, stream_hi, sample, tag)                       once per sample
//   w = word v % 4 of philox(key = R0, R1;  ctr = v / 4, position, R2, R3 ^ domain)         token id v at an absolute position
//   u = (w + 1/2) / 2^32,  G = -log(-log u)
// The upper tail goes through log1p so that G reaches 22.9 instead of 16.6: with u rounded to float32 first, every u above
// 1 - 2^-25 would collapse into one value. Tokens rarer than about 1e-10 are never drawn.
#pragma once

#include <cstdint>

#include "kernels/base/elementary.h"
#include "kernels/base/philox.h"

namespace otr {

// What makes two samples' noise independent. `stream` must be unique per (step, request).
struct NoiseKey {
  uint64_t seed = 0;
  uint64_t stream = 0;
  uint32_t sample = 0;
};

inline constexpr uint32_t kNoiseTag = 0x6f747231u;     // "otr1": version of the counter layout
inline constexpr uint32_t kNoiseDomainToken = 0u;      // draws of the target and its drafters
inline constexpr uint32_t kNoiseDomainUncoupled = 1u;  // of drafters that are not to know the target's noise

// A sample's key expanded once (R above); then one philox call gives the words of four neighbouring token ids.
struct NoiseStream {
  uint32_t r[4];
};

OTR_INLINE NoiseStream noise_stream(const NoiseKey& key) {
  const PhiloxBlock b = philox4x32(
      PhiloxKey{static_cast<uint32_t>(key.seed), static_cast<uint32_t>(key.seed >> 32)},
      PhiloxBlock{{static_cast<uint32_t>(key.stream), static_cast<uint32_t>(key.stream >> 32), key.sample, kNoiseTag}});
  return NoiseStream{{b.w[0], b.w[1], b.w[2], b.w[3]}};
}

// Words of token ids 4 * quad .. 4 * quad + 3; U: uint32_t, or 16 quads at once. `keys` are philox_keys of r[0] and r[1].
OTR_INLINE PhiloxKeys noise_keys(const NoiseStream& s) { return philox_keys(PhiloxKey{s.r[0], s.r[1]}); }
template <typename U>
OTR_INLINE PhiloxWords<U> noise_words(const NoiseStream& s, const PhiloxKeys& keys, U quad, uint32_t position) {
  return philox4x32(keys, PhiloxWords<U>{{quad, broadcast(quad, position), broadcast(quad, s.r[2]),
                                          broadcast(quad, s.r[3] ^ kNoiseDomainToken)}});
}
OTR_INLINE PhiloxBlock noise_words(const NoiseStream& s, uint32_t quad, uint32_t position) {
  return noise_words(s, noise_keys(s), quad, position);
}

// The first word with u >= sqrt(1/2): from here on 1 - u is exact enough and log1p needs no exponent.
inline constexpr uint32_t kNoiseUpper = 0xb504f334u;

OTR_INLINE float float_from_uint(uint32_t a) { return static_cast<float>(a); }
OTR_INLINE float select_at_least(uint32_t a, uint32_t bound, float yes, float no) { return a >= bound ? yes : no; }

template <typename F, typename U>
OTR_INLINE F gumbel_from_words(U w) {
  const F half = broadcast(F(), 0.5f), two_to_minus_32 = broadcast(F(), 2.3283064365386963e-10f);
  F k;
  const F low = split_exponent((float_from_uint(w) + half) * two_to_minus_32, &k);
  const F high = -((float_from_uint(~w) + half) * two_to_minus_32);
  const F f = select_at_least(w, kNoiseUpper, high, low);
  k = select_at_least(w, kNoiseUpper, broadcast(half, 0.0f), k);
  return -log32(-log_split(f, k));
}
OTR_INLINE float gumbel_from_word(uint32_t w) { return gumbel_from_words<float>(w); }

OTR_INLINE float gumbel(const NoiseStream& s, uint32_t token, uint32_t position) {
  return gumbel_from_word(noise_words(s, token / 4, position).w[token % 4]);
}

// ---- Tokens that need no logarithm: what G cannot exceed --------------------------------------------------------------------

inline constexpr float kGumbelBound = 23.0f;  // of any word: the last one gives 22.874
inline constexpr int kNumWordBounds = 23;
// G(w) <= k - 0.005 for every word w < kWordsBelow[k]: 2^32 exp(-exp(0.005 - k)).
inline constexpr uint32_t kWordsBelow[kNumWordBounds] = {
    0x5db4cd03u, 0xb0e07c66u, 0xdf71d56eu, 0xf3817d00u, 0xfb54af48u, 0xfe45b52du, 0xff5cf101u, 0xffc3f784u,
    0xffe9e89du, 0xfff7df47u, 0xfffd0284u, 0xfffee664u, 0xffff9867u, 0xffffd9e3u, 0xfffff1fbu, 0xfffffad8u,
    0xfffffe1au, 0xffffff4du, 0xffffffbeu, 0xffffffe8u, 0xfffffff7u, 0xfffffffdu, 0xffffffffu};

// For every word w below this, fl(x + G(w)) < floor wherever x <= highest: rounding is monotone.
OTR_INLINE uint32_t least_word(float highest, float floor) {
  const float distance = floor - highest;
  int k = distance < 0.0f ? -1 : distance < kNumWordBounds - 1 ? static_cast<int>(distance) : kNumWordBounds - 1;
  while (k >= 0 && !(highest + static_cast<float>(k) < floor)) --k;
  return k < 0 ? 0 : kWordsBelow[k];
}

}  // namespace otr
