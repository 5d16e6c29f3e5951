#include "runtime/kv_lease.h"

namespace otr {

bool LentPages::copy(int32_t first, std::span<const PageId> to, ModelRunner* target) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (over_) return false;
  target->copy_pages(source_, std::span(pages_).subspan(static_cast<size_t>(first), to.size()), to);
  return true;
}

bool LentPages::copy_layer(int32_t layer, int32_t first, std::span<const PageId> to, ModelRunner* target) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (over_) return false;
  target->copy_layer(source_, layer, std::span(pages_).subspan(static_cast<size_t>(first), to.size()), to);
  return true;
}

void LentPages::end() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (over_) return;
    over_ = true;
  }
  lender_->end_lease();
}

void LentPages::revoke() {
  const std::lock_guard<std::mutex> lock(mutex_);
  over_ = true;
}

bool LentPages::hold(const std::function<void()>& read) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!over_) read();
  return !over_;
}

}  // namespace otr
