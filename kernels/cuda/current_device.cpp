#include "kernels/cuda/current_device.h"

#include <cudaTypedefs.h>

namespace otr {
namespace {

struct Contexts {
  PFN_cuCtxGetCurrent_v4000 get = nullptr;
  PFN_cuCtxSetCurrent_v4000 set = nullptr;
  bool complete = false;
};

const Contexts& contexts() {
  static const Contexts found = [] {
    Contexts c;
    c.complete = find_driver_function("cuCtxGetCurrent", &c.get) && find_driver_function("cuCtxSetCurrent", &c.set);
    return c;
  }();
  return found;
}

// A driver that has not begun has no context current.
void* current_context() {
  CUcontext context = nullptr;
  return contexts().get(&context) == CUDA_SUCCESS ? context : nullptr;
}

void set_current_context(void* context) { (void)contexts().set(static_cast<CUcontext>(context)); }

}  // namespace

void keep_callers_context() {
  if (contexts().complete) CallerContext::before_change(current_context, set_current_context);
}

cudaError_t make_device_current(int ordinal) {
  keep_callers_context();
  return cudaSetDevice(ordinal);
}

}  // namespace otr
