#include "kernels/cuda/current_device.h"

#include <cudaTypedefs.h>

namespace otr {
namespace {

struct Driver {
  PFN_cuCtxGetCurrent_v4000 get = nullptr;
  PFN_cuCtxSetCurrent_v4000 set = nullptr;
  PFN_cuThreadExchangeStreamCaptureMode_v10010 exchange_mode = nullptr;
  PFN_cuDevicePrimaryCtxGetState_v7000 primary_state = nullptr;
  bool complete = false;
};

const Driver& driver() {
  static const Driver found = [] {
    Driver d;
    d.complete = find_driver_function("cuCtxGetCurrent", &d.get) && find_driver_function("cuCtxSetCurrent", &d.set) &&
                 find_driver_function("cuThreadExchangeStreamCaptureMode", &d.exchange_mode) &&
                 find_driver_function("cuDevicePrimaryCtxGetState", &d.primary_state);
    return d;
  }();
  return found;
}

// The mode that the thread had; -1 where the driver has not begun.
int exchange_capture_mode(int mode) {
  CUstreamCaptureMode m = static_cast<CUstreamCaptureMode>(mode);
  return driver().exchange_mode(&m) == CUDA_SUCCESS ? static_cast<int>(m) : -1;
}

// A driver that has not begun has no context current.
CallerContext::Current take_current() {
  CUcontext context = nullptr;
  if (driver().get(&context) != CUDA_SUCCESS) context = nullptr;
  return {context, exchange_capture_mode(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)};
}

void restore_current(const CallerContext::Current& current) {
  (void)driver().set(static_cast<CUcontext>(current.context));
  if (current.capture_mode >= 0) (void)exchange_capture_mode(current.capture_mode);
}

}  // namespace

void keep_callers_context() {
  if (!driver().complete || CallerContext::before_change(take_current, restore_current)) return;
  thread_local bool is_done = false;
  if (!is_done) is_done = exchange_capture_mode(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL) >= 0;
}

bool make_a_used_device_current() {
  keep_callers_context();
  CUcontext context = nullptr;
  if (!driver().complete || driver().get(&context) != CUDA_SUCCESS || context != nullptr) return context != nullptr;
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) (void)cudaGetLastError();
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    unsigned flags = 0;
    int is_active = 0;
    if (driver().primary_state(ordinal, &flags, &is_active) == CUDA_SUCCESS && is_active != 0)
      return cudaSetDevice(ordinal) == cudaSuccess;
  }
  return false;
}

cudaError_t make_device_current(int ordinal) {
  keep_callers_context();
  return cudaSetDevice(ordinal);
}

}  // namespace otr
