#include "runtime/worker_mailbox.h"

#include <utility>

namespace otr {

void WorkerMailbox::start(std::unique_ptr<Sequence> s) {
  const std::lock_guard<std::mutex> lock(mutex_);
  orders_.arrived.push(std::move(s));
  posted_.notify_one();
}

void WorkerMailbox::cancel(uint64_t) {
  const std::lock_guard<std::mutex> lock(mutex_);
  orders_.cancelled = true;
  posted_.notify_one();
}

void WorkerMailbox::give(const Move& move) {
  const std::lock_guard<std::mutex> lock(mutex_);
  orders_.move = move;
  posted_.notify_one();
}

void WorkerMailbox::end_step() {
  const std::lock_guard<std::mutex> lock(mutex_);
  orders_.end_step = true;
  posted_.notify_one();
}

void WorkerMailbox::end_lease() {
  const std::lock_guard<std::mutex> lock(mutex_);
  orders_.lease_ended = true;
  posted_.notify_one();
}

void WorkerMailbox::ring() {
  const std::lock_guard<std::mutex> lock(mutex_);
  orders_.rung = true;
  posted_.notify_one();
}

void WorkerMailbox::set_roles(const DraftRoles& roles) {
  const std::lock_guard<std::mutex> lock(mutex_);
  orders_.roles = roles;
  posted_.notify_one();
}

void WorkerMailbox::lend(const Lend& lend) {
  const std::lock_guard<std::mutex> lock(mutex_);
  orders_.lend = lend;
  posted_.notify_one();
}

void WorkerMailbox::pause() {
  const std::lock_guard<std::mutex> lock(mutex_);
  paused_ = true;
  posted_.notify_one();  // it may be in await()
}

void WorkerMailbox::resume() {
  const std::lock_guard<std::mutex> lock(mutex_);
  paused_ = false;
  posted_.notify_one();
}

void WorkerMailbox::stop() {
  const std::lock_guard<std::mutex> lock(mutex_);
  stop_ = true;
  posted_.notify_one();
}

bool WorkerMailbox::at_rest() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return at_rest_ && !awake(false);
}

bool WorkerMailbox::is_paused() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return paused_;
}

}  // namespace otr
