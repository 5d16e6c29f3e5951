// Launches of clusters, and what CUDA said to a launch, as a Status. Included by the sm_90a files alone.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "kernels/base/status.h"

namespace otr {

inline Status cuda_status(const char* op, cudaError_t error) {
  if (error == cudaSuccess) return {};
  const bool is_short = error == cudaErrorMemoryAllocation;
  return {is_short ? StatusCode::kOutOfMemory : StatusCode::kInternal, std::string(op) + ": " + cudaGetErrorString(error)};
}
inline Status launch_status(const char* op) { return cuda_status(op, cudaGetLastError()); }

// Loads kernels on the current device. CUDA does that at their first launch otherwise, when there may be no memory for them.
template <typename... Kernels>
Status load_kernels(const char* op, Kernels*... kernels) {
  cudaFuncAttributes unused;
  cudaError_t error = cudaSuccess;
  ((error = error == cudaSuccess ? cudaFuncGetAttributes(&unused, kernels) : error), ...);
  if (error != cudaSuccess) (void)cudaGetLastError();
  return cuda_status(op, error);
}

// Dynamic shared memory of a block at most, on compute capability 9.0: 227 KB.
inline constexpr int kMostSharedBytes = 232448;

// Lets launches of `kernel` have so much dynamic shared memory. That is kept with the kernel on its device, not with a launch:
// `bytes` is the same in every call, or another thread would lower it between this one's call and its launch.
template <typename... Params>
Status allow_shared_memory(const char* op, void (*kernel)(Params...), int bytes) {
  return cuda_status(op, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
}

// Launches `kernel`, which has no static shared memory, on num_clusters clusters of `cluster` blocks; `early`: it may begin
// before the launch ahead of it has ended, for it waits itself for what that one writes (ptx::grid_wait).
template <typename... Params>
Status launch_clusters(const char* op, void (*kernel)(Params...), int num_clusters, int cluster, int threads, int shared_bytes,
                       cudaStream_t stream, bool early, const Params&... params) {
  OTR_RETURN_IF_ERROR(allow_shared_memory(op, kernel, kMostSharedBytes));  // shared_bytes vary with the rows
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeClusterDimension;
  attributes[0].val.clusterDim.x = static_cast<unsigned>(cluster);
  attributes[0].val.clusterDim.y = attributes[0].val.clusterDim.z = 1;
  attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[1].val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(num_clusters * cluster));
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = early ? 2 : 1;
  return cuda_status(op, cudaLaunchKernelEx(&config, kernel, params...));
}

}  // namespace otr
