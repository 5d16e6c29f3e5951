// Integer arithmetic without library templates, which the files of one instruction set must not contain: the linker could merge
// their std::min into baseline code.
#pragma once

#include <cstdint>

#include "kernels/base/macros.h"

namespace otr {

template <typename T>
OTR_INLINE constexpr T smaller_of(T a, T b) {
  return b < a ? b : a;
}
template <typename T>
OTR_INLINE constexpr T greater_of(T a, T b) {
  return a < b ? b : a;
}

// REQUIRES: n >= 0, by > 0, and a quotient that an int holds.
OTR_INLINE constexpr int divide_up(int64_t n, int64_t by) { return static_cast<int>((n + by - 1) / by); }

}  // namespace otr
