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

// Before a call of the runtime that may make a device current: the thread's CallerContext, if it has one, gives back the CUDA
// context that is current now. By the driver, since a context need not be a device's primary one, and cudaSetDevice would make
// one on a device that its caller has never used.
void keep_callers_context();

// Makes device number `ordinal` the calling thread's.
cudaError_t make_device_current(int ordinal);

}  // namespace otr
