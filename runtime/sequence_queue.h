// SequenceQueue: sequences on their way, first in, first out. They are linked through themselves, so that handing one over
// never allocates and never fails.
//
// Thread safety: single-threaded; whoever shares one guards it.
#pragma once

#include <memory>
#include <utility>

#include "runtime/request.h"

namespace otr {

class SequenceQueue {
 public:
  SequenceQueue() = default;
  SequenceQueue(const SequenceQueue&) = delete;
  SequenceQueue& operator=(const SequenceQueue&) = delete;
  ~SequenceQueue() {
    while (const std::unique_ptr<Sequence> s = pop()) s->group->disband();
  }

  bool empty() const { return first_ == nullptr; }

  void push(std::unique_ptr<Sequence> s) {
    s->next_in_queue = nullptr;
    (empty() ? first_ : last_->next_in_queue) = s.get();
    last_ = s.release();
  }
  // Null if there is none.
  std::unique_ptr<Sequence> pop() {
    std::unique_ptr<Sequence> s(first_);
    if (first_ != nullptr) first_ = first_->next_in_queue;
    return s;
  }
  // Takes all that `other` holds.
  void append(SequenceQueue* other) {
    if (other->empty()) return;
    (empty() ? first_ : last_->next_in_queue) = other->first_;
    last_ = std::exchange(other->last_, nullptr);
    other->first_ = nullptr;
  }

  template <typename Visit>
  void for_each(const Visit& visit) const {
    for (const Sequence* s = first_; s != nullptr; s = s->next_in_queue) visit(*s);
  }
  template <typename Visit>
  void for_each(const Visit& visit) {
    for (Sequence* s = first_; s != nullptr; s = s->next_in_queue) visit(*s);
  }

 private:
  Sequence* first_ = nullptr;  // owned, with all behind it
  Sequence* last_ = nullptr;   // of no meaning while empty
};

}  // namespace otr
