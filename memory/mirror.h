// Mirror: a block of a device's memory and its image on the host, copied down or up a piece at a time. What the host writes for
// a device to read, or reads of what it wrote, goes through one.
//
// The host's image may be changed once the copies that were asked of it are done: begin() waits for those. With several images
// it goes on with the next one, and so many batches can be under way before it waits. Errors: create() gives kOutOfMemory.
// Thread safety: as the accelerator.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "kernels/base/accelerator.h"

namespace otr {

class Mirror {
 public:
  Mirror() = default;
  Mirror(Mirror&& other) noexcept { *this = std::move(other); }
  Mirror& operator=(Mirror&& other) noexcept;
  ~Mirror();

  // `accelerator` outlives the mirror.
  static Result<Mirror> create(int64_t bytes, const char* what, Accelerator* accelerator, int32_t num_images = 1);

  // Before the image is changed; what another one holds is not in it. Errors: as Accelerator::wait.
  Status begin();
  void down(int64_t begin, int64_t end);  // bytes, from the host to the device
  void up(int64_t begin, int64_t end);    // there at the next wait()

  template <typename T>
  T* host(int64_t offset = 0) const {
    return reinterpret_cast<T*>(image() + offset);
  }
  template <typename T>
  T* device(int64_t offset = 0) const {
    return reinterpret_cast<T*>(device_ + offset);
  }
  int64_t bytes() const { return bytes_; }  // on the device

 private:
  std::byte* image() const { return host_ + static_cast<int64_t>(current_) * bytes_; }

  Accelerator* accelerator_ = nullptr;
  std::byte *host_ = nullptr, *device_ = nullptr;
  int64_t bytes_ = 0;
  size_t current_ = 0;
  std::vector<uint64_t> idle_from_;  // by image: the number of waits from which no copy of it is under way
};

// Places arrays in a block one after the other, each aligned to 256 bytes.
class MirrorLayout {
 public:
  // The offset of `size` elements of T.
  template <typename T>
  int64_t add(int64_t size) {
    constexpr int64_t kAlignment = 256;
    const int64_t at = bytes_;
    bytes_ += (size * static_cast<int64_t>(sizeof(T)) + kAlignment - 1) / kAlignment * kAlignment;
    return at;
  }
  int64_t bytes() const { return bytes_; }

 private:
  int64_t bytes_ = 0;
};

}  // namespace otr
