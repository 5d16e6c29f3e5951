// The turn of a ring of shared-memory slots that a producer fills and consumers empty, each slot with two mbarriers: `full`,
// which the copied bytes complete, and `empty`, which the consumers complete. Both sides walk the ring with a RingTurn of
// their own:
//
//   producer: wait(empty[slot], phase ^ 1), fill, announce on full[slot]     the first round finds every slot empty
//   consumer: wait(full[slot], phase), read, arrive on empty[slot]
//
// Constant expressions of host and device; tests/kernels/sm90_layout_test.cpp plays all of it against a model of the barriers.
#pragma once

#include <cstdint>

#include "kernels/base/macros.h"

namespace otr {

struct RingTurn {
  uint32_t slot = 0;
  uint32_t phase = 0;

  OTR_HOST_DEVICE constexpr void advance(uint32_t num_slots) {
    if (++slot == num_slots) slot = 0, phase ^= 1;
  }
};

}  // namespace otr
