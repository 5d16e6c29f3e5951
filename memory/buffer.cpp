#include "memory/buffer.h"

#include <sys/mman.h>

namespace otr::internal {

void* allocate_zeroed(size_t bytes, Accelerator* device) {
  if (device != nullptr) return device->allocate(bytes);
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) return nullptr;
  if (bytes >= size_t{2} << 20) madvise(data, bytes, MADV_HUGEPAGE);  // advice: refusal costs speed only
  return data;
}

void release(void* data, size_t bytes, Accelerator* device) {
  if (device != nullptr) return device->release(data);
  if (data != nullptr) munmap(data, bytes);
}

}  // namespace otr::internal
