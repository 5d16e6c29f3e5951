#include "memory/mirror.h"

#include <cstring>
#include <string>
#include <utility>

namespace otr {

Mirror& Mirror::operator=(Mirror&& other) noexcept {
  std::swap(accelerator_, other.accelerator_);
  std::swap(host_, other.host_);
  std::swap(device_, other.device_);
  std::swap(bytes_, other.bytes_);
  std::swap(current_, other.current_);
  std::swap(idle_from_, other.idle_from_);
  return *this;
}

Mirror::~Mirror() {
  if (accelerator_ == nullptr) return;
  accelerator_->release_host(host_);
  accelerator_->release(device_);
}

Result<Mirror> Mirror::create(int64_t bytes, const char* what, Accelerator* accelerator, int32_t num_images) {
  Mirror m;
  m.accelerator_ = accelerator;
  m.bytes_ = bytes;
  m.idle_from_.assign(static_cast<size_t>(num_images), 0);
  const size_t host_bytes = static_cast<size_t>(bytes) * m.idle_from_.size();
  m.host_ = static_cast<std::byte*>(accelerator->allocate_host(host_bytes));
  if (m.host_ != nullptr) m.device_ = static_cast<std::byte*>(accelerator->allocate(static_cast<size_t>(bytes)));
  if (m.device_ == nullptr) {
    return Status(StatusCode::kOutOfMemory, std::string(what) + ": cannot allocate " + std::to_string(bytes) + " bytes " +
                                                (m.host_ == nullptr ? "that the device can read" : "on the device"));
  }
  std::memset(m.host_, 0, host_bytes);
  return m;
}

Status Mirror::begin() {
  current_ = (current_ + 1) % idle_from_.size();
  return accelerator_->num_waits() >= idle_from_[current_] ? Status() : accelerator_->wait();
}

void Mirror::down(int64_t begin, int64_t end) {
  accelerator_->copy(device_ + begin, image() + begin, static_cast<size_t>(end - begin));
  idle_from_[current_] = accelerator_->num_waits() + 1;
}

void Mirror::up(int64_t begin, int64_t end) {
  accelerator_->copy(image() + begin, device_ + begin, static_cast<size_t>(end - begin));
  idle_from_[current_] = accelerator_->num_waits() + 1;
}

}  // namespace otr
