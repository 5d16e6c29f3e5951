// The floating-point environment results depend on: round to nearest, denormals kept, exceptions masked.
//
// A caller's FTZ/DAZ or rounding mode would change results, so engine threads set the environment once and every entry point
// that computes on a caller's thread wraps itself in a guard. Both units are pinned: SSE, which computes, and x87, whose
// rounding and precision glibc's long doubles and, through them, conversions of decimal text follow.
#pragma once

#include <xmmintrin.h>

#include <cstdint>

namespace otr {

inline constexpr unsigned kPinnedMxcsr = 0x1f80;       // all exceptions masked, nearest, no FTZ, no DAZ
inline constexpr uint16_t kPinnedX87Control = 0x037f;  // all exceptions masked, nearest, 64-bit significands

inline uint16_t x87_control() {
  uint16_t control;
  asm volatile("fnstcw %0" : "=m"(control));
  return control;
}
inline void set_x87_control(uint16_t control) { asm volatile("fldcw %0" : : "m"(control)); }

inline void pin_fp_environment() {
  _mm_setcsr(kPinnedMxcsr);
  set_x87_control(kPinnedX87Control);
}

class FpEnvGuard {
 public:
  FpEnvGuard() : mxcsr_(_mm_getcsr()), x87_control_(x87_control()) { pin_fp_environment(); }
  ~FpEnvGuard() {
    _mm_setcsr(mxcsr_);
    set_x87_control(x87_control_);
  }
  FpEnvGuard(const FpEnvGuard&) = delete;
  FpEnvGuard& operator=(const FpEnvGuard&) = delete;

 private:
  unsigned mxcsr_;
  uint16_t x87_control_;
};

}  // namespace otr
