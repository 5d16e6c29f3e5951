// Round numbers along an axis.
//
// Thread safety: pure function.
#pragma once

#include <cmath>

namespace otr::cli {

// 1, 2 or 5 times a power of ten: at most `count` of them up to `most`. REQUIRES: most > 0
inline double axis_step(double most, int count) {
  const double rough = most / count, power = std::pow(10, std::floor(std::log10(rough)));
  for (const double digit : {1.0, 2.0, 5.0}) {
    if (digit * power >= rough * (1 - 1e-9)) return digit * power;
  }
  return 10 * power;
}

}  // namespace otr::cli
