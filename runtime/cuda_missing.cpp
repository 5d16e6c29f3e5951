// In place of device_cuda.cpp where the build has no CUDA.
#include "runtime/device.h"

namespace otr {

Status Device::choose_gpu(const DeviceOptions& options) {
  return unsupported("device cuda:" + std::to_string(options.ordinal) + ": this build has no CUDA backend, path " + kCudaPath);
}

Status fetch_from_gpu(const void*, size_t, std::vector<std::byte>*) { return {}; }

}  // namespace otr
