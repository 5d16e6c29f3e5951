// Buffer: one aligned, zeroed block of memory with a type, of the host or of an accelerator, made at create and freed with its
// owner. Move-only. What lies on a device is not to be read or written here.
//
// On the host the pages come zeroed from the system and cost nothing until they are touched, or until populate(): whoever
// touches them first waits for the system, which may take longer than the work on them. Blocks of 2 MB and more ask for huge
// pages: a weight sweep then walks hundreds of translations instead of hundreds of thousands.
//
// A shared one is a file in the host's memory, which other processes attach(), to read: one copy for all. It has its memory
// from the first. Its owner may write at any time; when is theirs to agree on.
//
// sleep() gives its memory to the system or the device and keeps its address; wake() gives it memory again, zeroed as at
// create. Between them nothing may touch it. Not of a shared one. Errors: kOutOfMemory with the size; attach() gives kBadInput
// for a file of another size. Thread safety: none needed, it owns; on a device as the accelerator.
#pragma once

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>

#include "kernels/base/accelerator.h"
#include "kernels/base/status.h"

namespace otr {

class ThreadPool;

namespace internal {
void* allocate_zeroed(size_t bytes, Accelerator* device);  // null if the system refuses
void release(void* data, size_t bytes, Accelerator* device);
Status give_back(void* data, size_t bytes, Accelerator* device);
Status take_back(void* data, Accelerator* device);
void populate(void* data, size_t bytes);
int make_memory_file(const char* name, size_t bytes);         // -1 if the system refuses
void* map_memory_file(int fd, size_t bytes, bool may_write);  // null likewise, or if the file has another size
// Has the system give it all its memory, or false and errno: a write into a mapping without it would be a signal.
bool reserve_memory_file(int fd, void* data, size_t bytes, ThreadPool& pool);
void close_file(int fd);
}  // namespace internal

template <typename T>
class Buffer {
 public:
  Buffer() = default;
  Buffer(Buffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)),
        size_(std::exchange(other.size_, 0)),
        fd_(std::exchange(other.fd_, -1)),
        device_(other.device_) {}
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(fd_, other.fd_);
    std::swap(device_, other.device_);
    return *this;
  }
  ~Buffer() {
    internal::release(data_, size_ * sizeof(T), device_);
    internal::close_file(fd_);
  }

  // `device`, if not null, has the memory and outlives the buffer.
  static Result<Buffer> create(int64_t size, const char* what, Accelerator* device = nullptr) {
    Buffer b;
    b.device_ = device;
    if (size <= 0) return b;
    // A product that would wrap around must not end up as a small block.
    const bool countable = static_cast<size_t>(size) <= SIZE_MAX / sizeof(T);
    if (countable) b.data_ = static_cast<T*>(internal::allocate_zeroed(static_cast<size_t>(size) * sizeof(T), device));
    if (b.data_ == nullptr) {
      return Status(StatusCode::kOutOfMemory, std::string(what) + ": cannot allocate " + std::to_string(size) + " times " +
                                                  std::to_string(sizeof(T)) + " bytes" +
                                                  (device != nullptr ? " on the device" : ""));
    }
    b.size_ = static_cast<size_t>(size);
    return b;
  }

  // As create(), for other processes to attach. Its memory is made by the pool.
  static Result<Buffer> create_shared(int64_t size, const char* what, ThreadPool& pool) {
    Buffer b;
    if (size <= 0) return b;
    const bool countable = static_cast<size_t>(size) <= SIZE_MAX / sizeof(T);
    const size_t bytes = countable ? static_cast<size_t>(size) * sizeof(T) : 0;
    errno = ENOMEM;
    if (countable) b.fd_ = internal::make_memory_file(what, bytes);
    if (b.fd_ >= 0) b.data_ = static_cast<T*>(internal::map_memory_file(b.fd_, bytes, true));
    if (b.data_ != nullptr) b.size_ = static_cast<size_t>(size);
    if (b.data_ == nullptr || !internal::reserve_memory_file(b.fd_, b.data_, bytes, pool)) {
      return Status(StatusCode::kOutOfMemory, std::string(what) + ": cannot share " + std::to_string(size) + " times " +
                                                  std::to_string(sizeof(T)) + " bytes: " + std::strerror(errno));
    }
    return b;
  }

  // Another process' shared buffer of this size, to be read only. `fd` stays the caller's, and is not needed any more; of an
  // empty one it is -1.
  static Result<Buffer> attach(int fd, int64_t size, const char* what) {
    Buffer b;
    if (size <= 0 && fd < 0) return b;
    if (size > 0 && fd >= 0)
      b.data_ = static_cast<T*>(internal::map_memory_file(fd, static_cast<size_t>(size) * sizeof(T), false));
    if (b.data_ == nullptr)
      return bad_input(std::string(what) + ": what another process shares is not " + std::to_string(size) + " elements");
    b.size_ = static_cast<size_t>(size);
    return b;
  }

  // REQUIRES: not shared. Asking twice is no error. Errors: as Accelerator::give_back and take_back.
  Status sleep() { return internal::give_back(data_, size_ * sizeof(T), device_); }
  Status wake() { return internal::take_back(data_, device_); }

  // Takes its pages from the system now, on the host. What the system refuses comes when it is touched; but where it limits a
  // group of processes and ends one that goes beyond, it may do so here.
  void populate() {
    if (device_ == nullptr && data_ != nullptr) internal::populate(data_, bytes());
  }

  int fd() const { return fd_; }  // of one that others may attach; else -1
  T* data() { return data_; }
  const T* data() const { return data_; }
  size_t size() const { return size_; }
  size_t bytes() const { return size_ * sizeof(T); }

 private:
  T* data_ = nullptr;
  size_t size_ = 0;
  int fd_ = -1;
  Accelerator* device_ = nullptr;  // null: host
};

}  // namespace otr
