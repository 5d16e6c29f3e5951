// What an engine's threads say to a worker process, and ask of it; its own thread passes that on (process_worker.cpp).
#include <unistd.h>

#include <utility>

#include "runtime/process_worker.h"

namespace otr {

void ProcessWorker::wake() {
  const uint64_t one = 1;
  (void)!write(wake_.get(), &one, sizeof one);  // it fails only when it is full of such
}

void ProcessWorker::hear_wake() {
  uint64_t ignored;
  (void)!read(wake_.get(), &ignored, sizeof ignored);
}

void ProcessWorker::start(std::unique_ptr<Sequence> s) {
  const std::lock_guard<std::mutex> lock(mutex_);
  orders_.starts.push(std::move(s));
  wake();
}

void ProcessWorker::cancel(uint64_t group) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (state_ == State::kGone) return;
  orders_.cancels.push_back(group);
  wake();
}

void ProcessWorker::give(const Move& move) {
  const std::lock_guard<std::mutex> lock(mutex_);
  orders_.move = move;
  wake();
}

void ProcessWorker::end_step() {
  const std::lock_guard<std::mutex> lock(mutex_);
  orders_.end_step = true;
  wake();
}

void ProcessWorker::set_roles(const DraftRoles& roles) {
  const std::lock_guard<std::mutex> lock(mutex_);
  orders_.roles = roles;
  wake();
}

void ProcessWorker::lend(const Lend& lend) {
  const std::lock_guard<std::mutex> lock(mutex_);
  orders_.lend = lend;
  wake();
}

void ProcessWorker::set_history(OwnedFd file) {
  const std::lock_guard<std::mutex> lock(mutex_);
  history_ = std::move(file);
  history_due_ = history_.get() >= 0;
  wake();
}

// Of a link the last time counts.
void ProcessWorker::relink(const Relink& relink) {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::erase_if(orders_.relinks, [&relink](const Relink& r) { return r.link == relink.link; });
  orders_.relinks.push_back(relink);
  wake();
}

void ProcessWorker::hand_on(WireType type, WireView payload) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (state_ == State::kGone) return;
  orders_.handed_on.emplace_back(type, WireBytes(payload.begin(), payload.end()));
  wake();
}

void ProcessWorker::pause() {
  const std::lock_guard<std::mutex> lock(mutex_);
  paused_ = true;
  wake();
}

void ProcessWorker::resume() {
  const std::lock_guard<std::mutex> lock(mutex_);
  paused_ = false;
  wake();
}

void ProcessWorker::weights_changed() {
  const std::lock_guard<std::mutex> lock(mutex_);
  orders_.weights = true;
  wake();
}

void ProcessWorker::withdraw() {
  const std::lock_guard<std::mutex> lock(mutex_);
  orders_.withdraw = true;
  wake();
}

void ProcessWorker::stop() {
  const std::lock_guard<std::mutex> lock(mutex_);
  stop_ = true;
  stopped_.notify_all();
  wake();
}

bool ProcessWorker::at_rest() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return rests();
}

bool ProcessWorker::rests() const {
  if (state_ == State::kGone) return true;
  return state_ == State::kReady && orders_.empty() && paused_ == pause_sent_ && rested_after_ == last_order_;
}

// What a process that has not begun hears first is the pause.
bool ProcessWorker::rests_in_pause() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return state_ == State::kStarting ? paused_ : rests();
}

void ProcessWorker::discard_orders() {
  const std::lock_guard<std::mutex> lock(mutex_);
  orders_.discard();
}

void ProcessWorker::discard_starts() {
  SequenceQueue discarded;
  const std::lock_guard<std::mutex> lock(mutex_);
  discarded.append(&orders_.starts);
}

bool ProcessWorker::stopping() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return stop_;
}

bool ProcessWorker::has_orders() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return stop_ || !orders_.empty() || history_due_ || paused_ != pause_sent_;
}

}  // namespace otr
