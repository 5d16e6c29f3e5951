// FakeAccelerator: a device in host memory. Copies and launches wait in the queue until wait(), so that memory which is touched
// too early is seen; a capture keeps what is asked while it is made. Its memory is as large as it is told to be.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "kernels/base/accelerator.h"

namespace otr {

class FakeAccelerator final : public Accelerator {
 public:
  explicit FakeAccelerator(size_t bytes) : free_(bytes) {}
  ~FakeAccelerator() override {
    for (const auto& [data, size] : blocks_) std::free(data);
  }

  // A launch of a kernel.
  void ask(std::function<void()> work) { (capturing_ != nullptr ? *capturing_ : queue_).push_back(std::move(work)); }

  void* allocate(size_t bytes) override {
    if (bytes > free_) return nullptr;
    free_ -= bytes;
    return take(bytes, 0);
  }
  void release(void* data) override {
    if (data != nullptr && asleep_.erase(data) == 0) free_ += blocks_.at(data);
    drop(data);
  }
  Status give_back(void* data) override {
    if (data != nullptr && asleep_.insert(data).second) free_ += blocks_.at(data);
    return {};
  }
  Status take_back(void* data) override {
    if (!asleep_.contains(data)) return {};
    if (blocks_.at(data) > free_) return Status(StatusCode::kOutOfMemory, "the fake device is full");
    free_ -= blocks_.at(data);
    asleep_.erase(data);
    std::memset(data, 0, blocks_.at(data));
    return {};
  }
  void* allocate_host(size_t bytes) override { return take(bytes, 0x7f); }
  void release_host(void* data) override { drop(data); }
  uint64_t free_bytes() const override { return free_; }
  bool can_copy(const void*) const override { return true; }
  void copy(void* to, const void* from, size_t bytes) override {
    ++num_copies;
    ask([=] { std::memcpy(to, from, bytes); });
  }
  void copy_from(const Accelerator&, void* to, const void* from, size_t bytes) override { copy(to, from, bytes); }
  void clear(void* data, size_t bytes) override {
    ask([=] { std::memset(data, 0, bytes); });
  }
  void keep(const Status& status) override {
    if (failure_.ok()) failure_ = status;
  }
  Status wait() override {
    std::vector<std::function<void()>> work;
    work.swap(queue_);
    for (const auto& piece : work) piece();
    ++waits_;
    return failure_;
  }
  uint64_t num_waits() const override { return waits_; }
  Result<Capture> capture(const std::function<void()>& launches) override {
    auto list = std::make_unique<std::vector<std::function<void()>>>();
    capturing_ = list.get();
    try {
      launches();
    } catch (...) {
      capturing_ = nullptr;
      throw;
    }
    capturing_ = nullptr;
    if (kCaptureBytes > free_) return Status(StatusCode::kOutOfMemory, "the fake device is full");
    free_ -= kCaptureBytes;
    return Capture{list.release(), static_cast<int64_t>(kCaptureBytes)};
  }
  void launch(const Capture& c) override {
    for (const auto& piece : *static_cast<std::vector<std::function<void()>>*>(c.executable)) ask(piece);
  }
  void destroy(const Capture& c) override {
    free_ += kCaptureBytes;
    delete static_cast<std::vector<std::function<void()>>*>(c.executable);
  }

  static constexpr size_t kCaptureBytes = 1000;
  int64_t num_copies = 0;

 private:
  void* take(size_t bytes, int fill) {
    void* data = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
    std::memset(data, fill, bytes);
    blocks_[data] = bytes;
    return data;
  }
  void drop(void* data) {
    blocks_.erase(data);
    std::free(data);
  }

  size_t free_;
  std::map<void*, size_t> blocks_;
  std::set<void*> asleep_;  // of them
  std::vector<std::function<void()>> queue_, *capturing_ = nullptr;
  Status failure_;
  uint64_t waits_ = 0;
};

}  // namespace otr
