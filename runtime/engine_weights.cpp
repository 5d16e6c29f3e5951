// New weights for a live engine. The workers are at rest from begin to commit, so the callers' threads may write what they
// read, and use the first one's thread pool. What is unfinished waits in their mailboxes, as tokens alone.
#include <new>

#include "runtime/engine.h"

namespace otr {

Status Engine::check_updating() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return updating_ ? Status() : invalid_argument("no update of the weights has begun");
}

Status Engine::check_not_updating() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return updating_ ? Status(StatusCode::kBusy, "the weights are being replaced: commit them first") : Status();
}

Status Engine::begin_weights(uint64_t version) {
  std::lock_guard<std::mutex> weights(weights_mutex_);
  std::unique_lock<std::mutex> lock(mutex_);
  if (updating_) {  // begun again
    next_weight_version_ = version;
    return {};
  }
  if ((asleep_ & OTR_MEMORY_WEIGHTS) != 0) return Status(StatusCode::kBusy, "the weights are asleep: wake them first");
  OTR_RETURN_IF_ERROR(wait_until_done(&lock));
  updating_ = true;
  OTR_RETURN_IF_ERROR(stop_workers(&lock));
  try {
    requeue_unfinished();
  } catch (const std::bad_alloc&) {
    updating_ = false;
    resume_workers();
    throw;
  }
  OTR_RETURN_IF_ERROR(stop_workers(&lock));  // processes have heard of it
  next_weight_version_ = version;
  weights_digest_.reset();
  return {};
}

Status Engine::expect_all_weights() {
  std::lock_guard<std::mutex> weights(weights_mutex_);
  OTR_RETURN_IF_ERROR(check_updating());
  for (const auto& worker : workers_) {
    if (worker->target().owns_weights()) worker->target().expect_all_weights();
  }
  return {};
}

Status Engine::put_weight(const HostTensor& tensor) {
  std::lock_guard<std::mutex> weights(weights_mutex_);
  OTR_RETURN_IF_ERROR(check_updating());
  HostTensor on_host = tensor;
  std::vector<std::byte> copy;
  for (const auto& worker : workers_) {
    ModelRunner& target = worker->target();
    if (!target.owns_weights()) continue;
    // Processes take it from the host's memory, and so do workers on another GPU than the tensor's.
    const bool lies_there = !on_gpu_processes() && target.can_copy(tensor.data);
    if (!lies_there && copy.empty()) {
      size_t bytes = static_cast<size_t>(dtype_size(tensor.dtype));
      for (const int64_t size : tensor.shape) bytes *= static_cast<size_t>(size);
      OTR_RETURN_IF_ERROR(fetch_from_gpu(tensor.data, bytes, &copy));
      if (!copy.empty()) on_host.data = copy.data();
    }
    OTR_RETURN_IF_ERROR(target.put_weight(lies_there ? tensor : on_host));
  }
  return {};
}

Status Engine::commit_weights() {
  std::lock_guard<std::mutex> weights(weights_mutex_);
  OTR_RETURN_IF_ERROR(check_updating());
  for (const auto& worker : workers_) {
    const auto& missing = worker->target().missing_weights();
    if (missing.empty()) continue;
    return invalid_argument(std::to_string(missing.size()) + " tensors are missing, '" + *missing.begin() +
                            "' among them: put them, then commit");
  }
  for (const auto& worker : workers_) worker->target().weights_changed();  // owners come before those who share
  for (const auto& process : processes_) process->weights_changed();       // which they have seen change
  std::lock_guard<std::mutex> lock(mutex_);
  quantize_seconds_ = first_worker().target().quantize_seconds();
  weight_version_ = next_weight_version_;
  ledger_.change_weights(weight_version_);
  for (const auto& worker : workers_) {
    worker->for_each_sequence([this](Sequence& s) {
      const size_t num_drawn = s.group->is_score ? 0 : static_cast<size_t>(s.num_tokens() - s.num_prompt());
      add_weight_span(num_drawn, weight_version_, &s.weight_spans);
    });
  }
  updating_ = weights_lost_ = false;
  resume_workers();
  return {};
}

}  // namespace otr
