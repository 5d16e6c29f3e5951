// What a device has of the CUDA backend.
#include "kernels/cuda/cuda_device.h"
#include "runtime/device.h"

namespace otr {

Status Device::choose_gpu(const DeviceOptions& options) {
  OTR_ASSIGN_OR_RETURN(const std::shared_ptr<CudaDevice> device, CudaDevice::open(options.ordinal, options.peers));
  OTR_RETURN_IF_ERROR(load_cuda_kernels(device.get()));
  accelerator_ = device;
  programs_ = std::make_unique<ProgramPool>(accelerator_.get());
  kernels_ = &cuda_kernels();
  return {};
}

Status fetch_from_gpu(const void* data, size_t bytes, std::vector<std::byte>* copy) {
  return CudaDevice::fetch(data, bytes, copy);
}

}  // namespace otr
