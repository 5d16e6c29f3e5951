#include "runtime/worker_mailbox.h"

#include <chrono>
#include <utility>

namespace otr {

void WorkerMailbox::start(std::unique_ptr<Sequence> s) {
  const std::lock_guard<std::mutex> lock(mutex_);
  orders_.arrived.push(std::move(s));
  notify();
}

void WorkerMailbox::cancel(uint64_t) {
  const std::lock_guard<std::mutex> lock(mutex_);
  orders_.cancelled = true;
  notify();
}

void WorkerMailbox::give(const Move& move) {
  const std::lock_guard<std::mutex> lock(mutex_);
  orders_.move = move;
  notify();
}

void WorkerMailbox::end_step() {
  const std::lock_guard<std::mutex> lock(mutex_);
  orders_.end_step = true;
  notify();
}

void WorkerMailbox::end_lease() {
  const std::lock_guard<std::mutex> lock(mutex_);
  orders_.lease_ended = true;
  notify();
}

void WorkerMailbox::ring() {
  const std::lock_guard<std::mutex> lock(mutex_);
  orders_.rung = true;
  notify();
}

void WorkerMailbox::take_arrived(SequenceQueue* to) {
  const std::lock_guard<std::mutex> lock(mutex_);
  to->append(&orders_.arrived);
}

void WorkerMailbox::set_roles(const DraftRoles& roles) {
  const std::lock_guard<std::mutex> lock(mutex_);
  orders_.roles = roles;
  notify();
}

void WorkerMailbox::lend(const Lend& lend) {
  const std::lock_guard<std::mutex> lock(mutex_);
  orders_.lend = lend;
  notify();
}

void WorkerMailbox::pause() {
  const std::lock_guard<std::mutex> lock(mutex_);
  paused_ = true;
  notify();  // it may be in await()
}

void WorkerMailbox::resume() {
  const std::lock_guard<std::mutex> lock(mutex_);
  paused_ = false;
  notify();
}

void WorkerMailbox::stop() {
  const std::lock_guard<std::mutex> lock(mutex_);
  stop_ = true;
  notify();
}

void WorkerMailbox::notify() {
  if (pace_ != nullptr) pace_->wake();
  else posted_.notify_one();
}

// Until notify(), or for so long, or for no reason. REQUIRES: the lock is held
void WorkerMailbox::sleep(std::unique_lock<std::mutex>* lock, double limit_ms) {
  if (pace_ != nullptr) {  // what is posted from here on wakes it all the same
    lock->unlock();
    pace_->wait(limit_ms);
    lock->lock();
  } else if (limit_ms == PaceClock::kForever) {
    posted_.wait(*lock);
  } else {
    posted_.wait_for(*lock, std::chrono::duration<double, std::milli>(limit_ms));
  }
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
