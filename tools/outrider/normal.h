// Normal: numbers of the standard normal law, the same on every system, which std::normal_distribution's are not.
//
// Thread safety: one thread at a time.
#pragma once

#include <cmath>
#include <cstdint>
#include <random>

namespace otr::cli {

// Two uniform numbers make a normal one.
class Normal {
 public:
  explicit Normal(uint64_t seed) : rng_(seed) {}
  double operator()() {
    const double radius = std::sqrt(-2 * std::log(1 - unit())), angle = 6.283185307179586 * unit();
    return radius * std::cos(angle);
  }

  double unit() { return static_cast<double>(rng_() >> 11) * 0x1p-53; }  // from 0 to below 1

 private:
  std::mt19937_64 rng_;
};

}  // namespace otr::cli
