// Philox4x32-10, the counter-based generator of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).
// A pure function of (key, counter): no state exists anywhere. Checked against the Random123 known answers.
#pragma once

#include <cstdint>

#include "kernels/base/macros.h"

namespace otr {

struct PhiloxKey {
  uint32_t k0, k1;
};

// Four words of a counter or a result. U = uint32_t is the definition; the integer lanes of kernels/simd run the same steps on
// 16 counters at once.
template <typename U>
struct PhiloxWords {
  U w[4];
};
using PhiloxBlock = PhiloxWords<uint32_t>;

inline constexpr uint32_t kPhiloxMul0 = 0xD2511F53u;
inline constexpr uint32_t kPhiloxMul1 = 0xCD9E8D57u;
inline constexpr uint32_t kPhiloxWeyl0 = 0x9E3779B9u;
inline constexpr uint32_t kPhiloxWeyl1 = 0xBB67AE85u;
inline constexpr int kPhiloxRounds = 10;

OTR_INLINE uint32_t broadcast(uint32_t, uint32_t value) { return value; }
// The 64-bit product a * b: high word returned, low word stored.
OTR_INLINE uint32_t multiply_wide(uint32_t a, uint32_t b, uint32_t* low) {
  const uint64_t product = static_cast<uint64_t>(a) * b;
  *low = static_cast<uint32_t>(product);
  return static_cast<uint32_t>(product >> 32);
}

// The keys of the rounds: a loop over counters reads them from memory.
struct PhiloxKeys {
  PhiloxKey rounds[kPhiloxRounds];
};
OTR_INLINE PhiloxKeys philox_keys(PhiloxKey key) {
  PhiloxKeys keys;
  for (int round = 0; round < kPhiloxRounds; ++round) {
    keys.rounds[round] = key;
    key.k0 += kPhiloxWeyl0;
    key.k1 += kPhiloxWeyl1;
  }
  return keys;
}

template <typename U>
OTR_INLINE PhiloxWords<U> philox4x32(const PhiloxKeys& keys, PhiloxWords<U> ctr) {
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const PhiloxKey key = keys.rounds[round];
    U lo0, lo1;
    const U hi0 = multiply_wide(ctr.w[0], kPhiloxMul0, &lo0);
    const U hi1 = multiply_wide(ctr.w[2], kPhiloxMul1, &lo1);
    ctr = PhiloxWords<U>{{hi1 ^ ctr.w[1] ^ broadcast(lo0, key.k0), lo1, hi0 ^ ctr.w[3] ^ broadcast(lo0, key.k1), lo0}};
  }
  return ctr;
}
template <typename U>
OTR_INLINE PhiloxWords<U> philox4x32(PhiloxKey key, PhiloxWords<U> ctr) {
  return philox4x32(philox_keys(key), ctr);
}

}  // namespace otr
