#include "memory/buffer.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>

#include "kernels/base/descriptor.h"
#include "kernels/base/thread_pool.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23  // Linux 5.14; glibc's header has it from 2.35 on
#endif

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
  madvise(data, bytes, MADV_POPULATE_WRITE);  // advice: refusal costs speed only
}

int make_memory_file(const char* name, size_t bytes) {
  const int fd = above_standard(memfd_create(name, MFD_CLOEXEC));
  const NoSizeSignal no_signal;
  if (fd < 0 || ftruncate(fd, static_cast<off_t>(bytes)) == 0) return fd;
  const int reason = errno;
  close(fd);
  errno = reason;
  return -1;
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

bool reserve_memory_file(int fd, void* data, size_t bytes, ThreadPool& pool) {
  // A core zeroes some 1.6 GB/s in small pages.
  constexpr size_t kPiece = size_t{64} << 20;
  std::atomic<int> error = 0;
  pool.parallel_for(static_cast<int>((bytes + kPiece - 1) / kPiece), [&](int task, int) {
    const size_t at = static_cast<size_t>(task) * kPiece;
    std::byte* const piece = static_cast<std::byte*>(data) + at;
    if (error == 0 && madvise(piece, std::min(kPiece, bytes - at), MADV_POPULATE_WRITE) != 0) error = errno;
  });
  errno = error;
  // EINVAL: a system that does not know it. EFAULT: there is no room; what follows says so.
  if (errno != EINVAL && errno != EFAULT) return errno == 0;
  errno = posix_fallocate(fd, 0, static_cast<off_t>(bytes));
  return errno == 0;
}

void close_file(int fd) {
  if (fd >= 0) close(fd);
}

}  // namespace otr::internal
