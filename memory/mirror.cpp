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
  std::swap(idle_from_, other.idle_from_);
  return *this;
}

Mirror::~Mirror() {
  if (accelerator_ == nullptr) return;
  accelerator_->release_host(host_);
  accelerator_->release(device_);
}

Result<Mirror> Mirror::create(int64_t bytes, const char* what, Accelerator* accelerator) {
  Mirror m;
  m.accelerator_ = accelerator;
  m.bytes_ = bytes;
  m.host_ = static_cast<std::byte*>(accelerator->allocate_host(static_cast<size_t>(bytes)));
  if (m.host_ != nullptr) m.device_ = static_cast<std::byte*>(accelerator->allocate(static_cast<size_t>(bytes)));
  if (m.device_ == nullptr) {
    return Status(StatusCode::kOutOfMemory, std::string(what) + ": cannot allocate " + std::to_string(bytes) + " bytes " +
                                                (m.host_ == nullptr ? "that the device can read" : "on the device"));
  }
  std::memset(m.host_, 0, static_cast<size_t>(bytes));
  return m;
}

Status Mirror::begin() { return accelerator_->num_waits() >= idle_from_ ? Status() : accelerator_->wait(); }

void Mirror::down(int64_t begin, int64_t end) {
  accelerator_->copy(device_ + begin, host_ + begin, static_cast<size_t>(end - begin));
  idle_from_ = accelerator_->num_waits() + 1;
}

void Mirror::up(int64_t begin, int64_t end) {
  accelerator_->copy(host_ + begin, device_ + begin, static_cast<size_t>(end - begin));
  idle_from_ = accelerator_->num_waits() + 1;
}

}  // namespace otr
