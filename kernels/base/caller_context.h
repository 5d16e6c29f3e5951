// CallerContext: what is current on a caller's thread, its CUDA context and how it minds others' captures, stays the caller's.
// A guard that lives while a call lasts; whatever changes one of them says so first (before_change), and the guard gives back
// what was there, none where there was none. It asks nothing unless something changes: a process without a GPU never loads a
// driver.
//
// Guards nest; each is of its own thread. A thread without one, an engine's own, keeps what was made current last.
#pragma once

namespace otr {

class CallerContext {
 public:
  struct Current {
    void* context = nullptr;  // null: none
    int capture_mode = -1;    // -1: not known
  };

  CallerContext() : outer_(innermost_) { innermost_ = this; }
  ~CallerContext() {
    if (restore_ != nullptr) restore_(current_);
    innermost_ = outer_;
  }
  CallerContext(const CallerContext&) = delete;
  CallerContext& operator=(const CallerContext&) = delete;

  // `take` tells what is current now, and may change it; `restore` makes it so again. False: no guard lives on this thread.
  static bool before_change(Current (*take)(), void (*restore)(const Current&)) {
    if (innermost_ == nullptr) return false;
    if (innermost_->restore_ != nullptr) return true;
    innermost_->current_ = take();
    innermost_->restore_ = restore;
    return true;
  }

 private:
  static inline thread_local CallerContext* innermost_ = nullptr;
  CallerContext* const outer_;
  Current current_;
  void (*restore_)(const Current&) = nullptr;  // null: nothing has changed
};

}  // namespace otr
