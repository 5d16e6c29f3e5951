// The floating-point environment results depend on: round to nearest, denormals kept, exceptions masked.
//
// A caller's FTZ/DAZ or rounding mode would change results, so engine threads set the environment once and every entry point
// that computes on a caller's thread wraps itself in a guard.
#pragma once

#include <xmmintrin.h>

namespace otr {

inline constexpr unsigned kPinnedMxcsr = 0x1f80;  // all exceptions masked, nearest, no FTZ, no DAZ

inline void pin_fp_environment() { _mm_setcsr(kPinnedMxcsr); }

class FpEnvGuard {
 public:
  FpEnvGuard() : saved_(_mm_getcsr()) { pin_fp_environment(); }
  ~FpEnvGuard() { _mm_setcsr(saved_); }
  FpEnvGuard(const FpEnvGuard&) = delete;
  FpEnvGuard& operator=(const FpEnvGuard&) = delete;

 private:
  unsigned saved_;
};

}  // namespace otr
