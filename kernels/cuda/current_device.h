// Which CUDA device is current on a thread, and the driver's functions by name: the library does not link to the driver.
//
// Thread safety: all may be called from any thread.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/base/caller_context.h"

namespace otr {

// Function's name in the driver, as of CUDA 10.2. False: it has none.
template <typename Function>
bool find_driver_function(const char* name, Function* function) {
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  const cudaError_t error = cudaGetDriverEntryPointByVersion(name, &entry, 10020, cudaEnableDefault, &found);
  *function = reinterpret_cast<Function>(entry);
  if (error != cudaSuccess) (void)cudaGetLastError();
  return error == cudaSuccess && found == cudaDriverEntryPointSuccess;
}

// Before a call of the runtime: the thread's CallerContext, if it has one, gives back the CUDA context that is current now. By
// the driver, since a context need not be a device's primary one, and cudaSetDevice would make one on a device that its caller
// has never used. And the thread minds no captures but its own: by default CUDA refuses what may wait or allocate while another
// thread captures for all, as the host program may, and ends that capture too.
void keep_callers_context();

// The same, and where the thread has no context, a device becomes its whose primary one is in use: the runtime would make one
// on the first device, which may be nobody's here. False: there is none, and so no memory of a device.
bool make_a_used_device_current();

// Makes device number `ordinal` the calling thread's.
cudaError_t make_device_current(int ordinal);

}  // namespace otr
