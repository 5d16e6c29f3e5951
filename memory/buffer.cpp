#include "memory/buffer.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

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

// Private pages that are not needed read as zeros when they are touched again.
Status give_back(void* data, size_t bytes, Accelerator* device) {
  if (data == nullptr) return {};
  if (device != nullptr) return device->give_back(data);
  if (madvise(data, bytes, MADV_DONTNEED) != 0) return Status(StatusCode::kInternal, "the system does not take memory back");
  return {};
}

Status take_back(void* data, Accelerator* device) {
  return data != nullptr && device != nullptr ? device->take_back(data) : Status();
}

void populate(void* data, size_t bytes) {
#ifdef MADV_POPULATE_WRITE  // Linux 5.14; advice: refusal costs speed only
  madvise(data, bytes, MADV_POPULATE_WRITE);
#else
  static_cast<void>(data), static_cast<void>(bytes);
#endif
}

int make_memory_file(const char* name, size_t bytes) {
  const int fd = memfd_create(name, MFD_CLOEXEC);
  if (fd >= 0 && ftruncate(fd, static_cast<off_t>(bytes)) != 0) {
    close(fd);
    return -1;
  }
  return fd;
}

void* map_memory_file(int fd, size_t bytes, bool may_write) {
  struct stat file;
  if (fstat(fd, &file) != 0 || file.st_size != static_cast<off_t>(bytes)) return nullptr;
  void* data = mmap(nullptr, bytes, may_write ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, fd, 0);
  if (data == MAP_FAILED) return nullptr;
  if (bytes >= size_t{2} << 20)
    madvise(data, bytes, MADV_HUGEPAGE);  // advice: where the system has no huge pages to share, speed
  return data;
}

void close_file(int fd) {
  if (fd >= 0) close(fd);
}

}  // namespace otr::internal
