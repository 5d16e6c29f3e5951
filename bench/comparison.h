// How a case compares its output with the definition: sampled places, each with the tolerance of the op's unit tests.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>

#include "kernels/base/philox.h"

namespace otr::bench {

// Places to look at: the same on every run.
class Places {
 public:
  int64_t below(int64_t n) {
    const PhiloxBlock b = philox4x32(PhiloxKey{7, 7}, PhiloxBlock{{next_++, 0, 0, 0}});
    return static_cast<int64_t>((uint64_t{b.w[0]} << 31 ^ b.w[1]) % static_cast<uint64_t>(n));
  }

 private:
  uint32_t next_ = 0;
};

// Keeps the worst of what it is shown. NaN and infinities are never near anything.
class Comparison {
 public:
  void expect(int64_t index, double actual, double expected, double tolerance) {
    const double error = std::fabs(actual - expected) / tolerance;
    if (error <= worst_) return;
    if (std::isnan(worst_)) return;
    worst_ = error;
    if (!(error <= 1.0)) {
      text_ = "wrong: index " + std::to_string(index) + " is " + std::to_string(actual) + " instead of " +
              std::to_string(expected) + ", " + std::to_string(error) + " times the tolerance";
    }
  }
  void expect_equal(int64_t index, uint64_t actual, uint64_t expected) {
    if (actual == expected || !text_.empty()) return;
    text_ = "wrong: index " + std::to_string(index) + " has the bits " + std::to_string(actual) + " instead of " +
            std::to_string(expected);
  }
  std::string verdict() const { return text_; }

 private:
  double worst_ = 0;
  std::string text_;
};

inline constexpr double kBf16Rounding = 0x1p-8;  // half an ulp of 8 significant bits, relative

// What a float32 sum of k products may be off, of which the squares sum to `squares`; `ends` is the size of what is added last.
inline double sum_tolerance(int64_t k, double squares, double ends) {
  return 8.0 / std::sqrt(12.0) * 0x1p-24 * std::sqrt(static_cast<double>(k) * squares) + 4 * 0x1p-24 * ends + 1e-30;
}

}  // namespace otr::bench
