// CallerContext: what is current on a caller's thread, say its CUDA context, stays the caller's. A guard that lives while a
// call lasts; whatever makes another context current says so first (before_change), and the guard gives back what was there,
// none where there was none. It asks nothing unless something changes: a process without a GPU never loads a driver.
//
// Guards nest; each is of its own thread. A thread without one, an engine's own, keeps what was made current last.
#pragma once

namespace otr {

class CallerContext {
 public:
  CallerContext() : outer_(innermost_) { innermost_ = this; }
  ~CallerContext() {
    if (restore_ != nullptr) restore_(context_);
    innermost_ = outer_;
  }
  CallerContext(const CallerContext&) = delete;
  CallerContext& operator=(const CallerContext&) = delete;

  // `current` tells what is current now, null for none, and `restore` makes it so again.
  static void before_change(void* (*current)(), void (*restore)(void*)) {
    if (innermost_ == nullptr || innermost_->restore_ != nullptr) return;
    innermost_->context_ = current();
    innermost_->restore_ = restore;
  }

 private:
  static inline thread_local CallerContext* innermost_ = nullptr;
  CallerContext* const outer_;
  void* context_ = nullptr;
  void (*restore_)(void*) = nullptr;  // null: nothing has changed
};

}  // namespace otr
