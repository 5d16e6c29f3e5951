// Launches of clusters, and what CUDA said to a launch, as a Status. Included by the sm_90a files alone.
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

// Launches `kernel` on num_clusters clusters of `cluster` blocks.
template <typename... Params>
Status launch_clusters(const char* op, void (*kernel)(Params...), int num_clusters, int cluster, int threads, int shared_bytes,
                       cudaStream_t stream, const Params&... params) {
  OTR_RETURN_IF_ERROR(cuda_status(op, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes)));
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = static_cast<unsigned>(cluster), attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(num_clusters * cluster));
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  return cuda_status(op, cudaLaunchKernelEx(&config, kernel, params...));
}

}  // namespace otr
