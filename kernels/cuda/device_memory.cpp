#include "kernels/cuda/device_memory.h"

#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>

#include <string>

#include "kernels/cuda/current_device.h"

namespace otr {
namespace {

// Of the driver, all of CUDA 10.2; asked for once, since the answer never changes.
struct VirtualMemory {
  PFN_cuMemGetAllocationGranularity_v10020 granularity = nullptr;
  PFN_cuMemAddressReserve_v10020 reserve = nullptr;
  PFN_cuMemAddressFree_v10020 unreserve = nullptr;
  PFN_cuMemCreate_v10020 create = nullptr;
  PFN_cuMemRelease_v10020 release = nullptr;
  PFN_cuMemMap_v10020 map = nullptr;
  PFN_cuMemUnmap_v10020 unmap = nullptr;
  PFN_cuMemSetAccess_v10020 set_access = nullptr;
  PFN_cuGetErrorString_v6000 error_text = nullptr;
  bool complete = false;
};

const VirtualMemory& driver() {
  static const VirtualMemory found = [] {
    VirtualMemory v;
    v.complete = find_driver_function("cuMemGetAllocationGranularity", &v.granularity) &&
                 find_driver_function("cuMemAddressReserve", &v.reserve) &&
                 find_driver_function("cuMemAddressFree", &v.unreserve) && find_driver_function("cuMemCreate", &v.create) &&
                 find_driver_function("cuMemRelease", &v.release) && find_driver_function("cuMemMap", &v.map) &&
                 find_driver_function("cuMemUnmap", &v.unmap) && find_driver_function("cuMemSetAccess", &v.set_access) &&
                 find_driver_function("cuGetErrorString", &v.error_text);
    return v;
  }();
  return found;
}

CUdeviceptr address_of(const void* data) { return reinterpret_cast<CUdeviceptr>(data); }

}  // namespace

DeviceMemory::~DeviceMemory() {
  while (!blocks_.empty()) release(reinterpret_cast<void*>(blocks_.begin()->first));
}

CUmemAllocationProp DeviceMemory::properties() const {
  CUmemAllocationProp p = {};
  p.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  p.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  p.location.id = ordinal_;
  return p;
}

size_t DeviceMemory::unit() {
  if (asked_) return unit_;
  asked_ = true;
  const CUmemAllocationProp p = properties();
  if (!driver().complete || driver().granularity(&unit_, &p, CU_MEM_ALLOC_GRANULARITY_MINIMUM) != CUDA_SUCCESS) unit_ = 0;
  return unit_;
}

void* DeviceMemory::allocate(size_t bytes) {
  if (unit() == 0 || bytes < unit()) {
    void* data = nullptr;
    if (cudaMalloc(&data, bytes) == cudaSuccess) return data;
    (void)cudaGetLastError();
    return nullptr;
  }
  if (bytes > SIZE_MAX - unit()) return nullptr;
  Block block;
  block.bytes = (bytes + unit() - 1) / unit() * unit();
  CUdeviceptr at = 0;
  if (driver().reserve(&at, block.bytes, 0, 0, 0) != CUDA_SUCCESS) return nullptr;
  if (!back(at, &block)) {
    (void)driver().unreserve(at, block.bytes);
    return nullptr;
  }
  blocks_[at] = block;
  return reinterpret_cast<void*>(at);
}

void DeviceMemory::release(void* data) {
  const auto found = blocks_.find(address_of(data));
  if (found == blocks_.end()) {
    if (data != nullptr) (void)cudaFree(data);
    return;
  }
  (void)unback(found->first, &found->second);
  // Addresses with memory that the driver has not unmapped stay reserved.
  if (!found->second.backed) (void)driver().unreserve(found->first, found->second.bytes);
  blocks_.erase(found);
}

bool DeviceMemory::back(CUdeviceptr at, Block* block) {
  const CUmemAllocationProp p = properties();
  if (driver().create(&block->memory, block->bytes, &p, 0) != CUDA_SUCCESS) return false;
  std::vector<CUmemAccessDesc> access(1 + peers_.size());
  for (size_t i = 0; i < access.size(); ++i) {
    access[i].location = p.location;
    if (i > 0) access[i].location.id = peers_[i - 1];
    access[i].flags = i == 0 ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_READ;
  }
  const bool mapped = driver().map(at, block->bytes, 0, block->memory, 0) == CUDA_SUCCESS;
  // A peer that may not read is no reason to have no memory: copies to it go through the host then.
  for (const size_t readers : {access.size(), size_t{1}}) {
    if (mapped && driver().set_access(at, block->bytes, access.data(), readers) == CUDA_SUCCESS) return block->backed = true;
  }
  if (mapped) (void)driver().unmap(at, block->bytes);
  (void)driver().release(block->memory);
  return false;
}

Status DeviceMemory::unback(CUdeviceptr at, Block* block) {
  if (!block->backed) return {};
  const auto failed = [this](const char* call, CUresult result) {
    const char* text = nullptr;
    (void)driver().error_text(result, &text);
    return Status(StatusCode::kInternal,
                  "cuda:" + std::to_string(ordinal_) + ": " + call + ": " + (text != nullptr ? text : "an unknown error"));
  };
  if (const CUresult result = driver().unmap(at, block->bytes); result != CUDA_SUCCESS) return failed("cuMemUnmap", result);
  block->backed = false;
  if (const CUresult result = driver().release(block->memory); result != CUDA_SUCCESS) return failed("cuMemRelease", result);
  return {};
}

Status DeviceMemory::give_back(void* data) {
  if (unit() == 0) return unsupported("cuda:" + std::to_string(ordinal_) + " cannot take memory back and keep its address");
  const auto found = blocks_.find(address_of(data));
  return found != blocks_.end() ? unback(found->first, &found->second) : Status();
}

Result<size_t> DeviceMemory::take_back(void* data) {
  const auto found = blocks_.find(address_of(data));
  if (found == blocks_.end() || found->second.backed) return size_t{0};
  if (back(found->first, &found->second)) return found->second.bytes;
  return Status(StatusCode::kOutOfMemory,
                "cuda:" + std::to_string(ordinal_) + " does not give " + std::to_string(found->second.bytes) + " bytes back");
}

}  // namespace otr
