// Philox4x32-10, the counter-based generator of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).
// A pure function of (key, counter): no state exists anywhere. Checked against the Random123 known answers.
#pragma once

#include <cstdint>

#include "kernels/base/macros.h"

namespace otr {

struct PhiloxKey {
  uint32_t k0, k1;
};

struct PhiloxBlock {
  uint32_t w[4];
};

inline constexpr uint32_t kPhiloxMul0 = 0xD2511F53u;
inline constexpr uint32_t kPhiloxMul1 = 0xCD9E8D57u;
inline constexpr uint32_t kPhiloxWeyl0 = 0x9E3779B9u;
inline constexpr uint32_t kPhiloxWeyl1 = 0xBB67AE85u;
inline constexpr int kPhiloxRounds = 10;

OTR_INLINE PhiloxBlock philox4x32(PhiloxKey key, PhiloxBlock ctr) {
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const uint64_t p0 = static_cast<uint64_t>(kPhiloxMul0) * ctr.w[0];
    const uint64_t p1 = static_cast<uint64_t>(kPhiloxMul1) * ctr.w[2];
    const uint32_t hi0 = static_cast<uint32_t>(p0 >> 32), lo0 = static_cast<uint32_t>(p0);
    const uint32_t hi1 = static_cast<uint32_t>(p1 >> 32), lo1 = static_cast<uint32_t>(p1);
    ctr = PhiloxBlock{{hi1 ^ ctr.w[1] ^ key.k0, lo1, hi0 ^ ctr.w[3] ^ key.k1, lo0}};
    key.k0 += kPhiloxWeyl0;
    key.k1 += kPhiloxWeyl1;
  }
  return ctr;
}

}  // namespace otr
