// Memory that an engine does without between two rollouts. The workers are at rest while it goes and comes, and as long as some
// of it is away, so the callers' threads may see to it.
#include <new>
#include <utility>

#include "runtime/engine.h"

namespace otr {

// ---- A worker's ----------------------------------------------------------------------------------------------------------

template <typename Visit>
Status Worker::for_each_model(const Visit& visit) {
  OTR_RETURN_IF_ERROR(visit(target()));
  for (ModelRunner* model : speculator_->own_models()) OTR_RETURN_IF_ERROR(visit(*model));
  return server_ != nullptr ? visit(server_->model()) : Status();
}

Status Worker::sleep_pages() {
  rebuild_.reclaim();
  if (server_ != nullptr) server_->forget();  // of requests whose end it has not heard of yet
  if (device_->programs() != nullptr) device_->programs()->release();
  return for_each_model([](ModelRunner& model) { return model.sleep_pages(); });
}

Status Worker::wake_pages() {
  Status status = for_each_model([](ModelRunner& model) { return model.wake_pages(); });
  if (status.ok() && device_->programs() != nullptr) status = device_->programs()->capture();
  if (!status.ok()) (void)sleep_pages();
  return status;
}

// ---- The engine's --------------------------------------------------------------------------------------------------------

// Returns when nothing is left to run, or what is left is not to run now. REQUIRES: `lock` holds mutex_.
Status Engine::wait_until_done(std::unique_lock<std::mutex>* lock) {
  // A tick publishes its last samples before it ends; and whoever sees those may submit again while this waits.
  at_rest_changed_.wait(*lock, [this] { return stop_ || !unfinished_.empty() || at_rest(); });
  if (stop_) return Status(StatusCode::kInvalidHandle, "the engine was destroyed");
  if (unfinished_.empty() || paused_ || asleep_ != 0 || weights_lost_) return {};
  return Status(StatusCode::kBusy, "samples of " + std::to_string(unfinished_.size()) +
                                       " groups are unfinished: wait for them, cancel them, or pause the engine first");
}

// Keeps the workers from ticking until resume_workers(). REQUIRES: likewise; enqueue() refuses.
Status Engine::stop_workers(std::unique_lock<std::mutex>* lock) {
  for (WorkerPort* port : ports_) port->pause();
  // Who drafts for others may have been woken since.
  at_rest_changed_.wait(*lock, [this] { return stop_ || at_rest(); });
  return stop_ ? Status(StatusCode::kInvalidHandle, "the engine was destroyed") : Status();
}

// kBusy, with what is to be done, where memory that samples need is away. REQUIRES: mutex_ is held.
Status Engine::check_awake(uint32_t needed) const {
  if ((asleep_ & needed & OTR_MEMORY_WEIGHTS) != 0)
    return Status(StatusCode::kBusy, "the weights are asleep: wake them and put them first");
  if ((asleep_ & needed & OTR_MEMORY_KV) != 0) return Status(StatusCode::kBusy, "the KV pages are asleep: wake them first");
  if (weights_lost_ && (needed & OTR_MEMORY_WEIGHTS) != 0)
    return Status(StatusCode::kBusy, "the weights were lost in sleep: put and commit them first");
  return {};
}

Status Engine::sleep(uint32_t what) {
  const std::lock_guard<std::mutex> weights(weights_mutex_);
  OTR_RETURN_IF_ERROR(check_not_updating());
  if (options_.worker_processes) return unsupported("worker processes do not sleep");
  {
    std::unique_lock<std::mutex> lock(mutex_);
    OTR_RETURN_IF_ERROR(wait_until_done(&lock));
    const uint32_t before = std::exchange(asleep_, asleep_ | what);
    what &= ~before;
    OTR_RETURN_IF_ERROR(stop_workers(&lock));
    try {
      requeue_unfinished();
    } catch (const std::bad_alloc&) {
      asleep_ = before;
      resume_workers();
      throw;
    }
    weights_lost_ |= (what & OTR_MEMORY_WEIGHTS) != 0;
    if ((what & OTR_MEMORY_WEIGHTS) != 0) weights_digest_.reset();
  }
  const Status status = give_memory(what), awake = status.ok() ? Status() : take_memory(what);
  const std::lock_guard<std::mutex> lock(mutex_);
  captures_ = count_captures();
  if (status.ok()) return {};
  if (awake.ok()) asleep_ &= ~what;
  weights_lost_ = !first_worker().target().missing_weights().empty();
  resume_workers();
  return status;
}

Status Engine::give_memory(uint32_t what) {
  for (const auto& worker : workers_) {
    if ((what & OTR_MEMORY_WEIGHTS) != 0) OTR_RETURN_IF_ERROR(worker->target().sleep_weights());
    if ((what & OTR_MEMORY_KV) != 0) OTR_RETURN_IF_ERROR(worker->sleep_pages());
  }
  return {};
}

Status Engine::wake(uint32_t what) {
  const std::lock_guard<std::mutex> weights(weights_mutex_);
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    what &= asleep_;
  }
  if (const Status status = take_memory(what); !status.ok()) {
    (void)give_memory(what);
    return status;
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  captures_ = count_captures();
  asleep_ &= ~what;
  resume_workers();
  return {};
}

Status Engine::take_memory(uint32_t what) {
  for (const auto& worker : workers_) {
    if ((what & OTR_MEMORY_WEIGHTS) != 0) OTR_RETURN_IF_ERROR(worker->target().wake_weights());
    if ((what & OTR_MEMORY_KV) != 0) OTR_RETURN_IF_ERROR(worker->wake_pages());
  }
  return {};
}

}  // namespace otr
