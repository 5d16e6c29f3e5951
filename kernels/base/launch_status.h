// What CUDA said to a launch, as a Status. Included by the sm_90a files alone.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "kernels/base/status.h"

namespace otr {

inline Status cuda_status(const char* op, cudaError_t error) {
  if (error == cudaSuccess) return {};
  return {StatusCode::kInternal, std::string(op) + ": " + cudaGetErrorString(error)};
}
inline Status launch_status(const char* op) { return cuda_status(op, cudaGetLastError()); }

}  // namespace otr
