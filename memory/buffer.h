// Buffer: one aligned, zeroed block of memory with a type, made at create and freed with its owner. Move-only.
//
// The pages come zeroed from the system and cost nothing until they are touched. Blocks of 2 MB and more ask for huge pages: a
// weight sweep then walks hundreds of translations instead of hundreds of thousands.
// Errors: create() gives kOutOfMemory with the size. Thread safety: none needed, it owns.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "kernels/base/status.h"

namespace otr {

namespace internal {
void* map_zeroed(size_t bytes);  // null if the system refuses
void unmap(void* data, size_t bytes);
}  // namespace internal

template <typename T>
class Buffer {
 public:
  Buffer() = default;
  Buffer(Buffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~Buffer() { internal::unmap(data_, size_ * sizeof(T)); }

  static Result<Buffer> create(int64_t size, const char* what) {
    Buffer b;
    if (size <= 0) return b;
    // A product that would wrap around must not end up as a small block.
    const bool countable = static_cast<size_t>(size) <= SIZE_MAX / sizeof(T);
    if (countable) b.data_ = static_cast<T*>(internal::map_zeroed(static_cast<size_t>(size) * sizeof(T)));
    if (b.data_ == nullptr) {
      return Status(StatusCode::kOutOfMemory, std::string(what) + ": cannot allocate " + std::to_string(size) + " times " +
                                                  std::to_string(sizeof(T)) + " bytes");
    }
    b.size_ = static_cast<size_t>(size);
    return b;
  }

  T* data() { return data_; }
  const T* data() const { return data_; }
  size_t size() const { return size_; }
  size_t bytes() const { return size_ * sizeof(T); }

 private:
  T* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace otr
