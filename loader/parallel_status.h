// parallel_status: tasks that may fail, on a thread pool.
//
// Thread safety: as ThreadPool::run.
#pragma once

#include <atomic>
#include <mutex>
#include <new>
#include <string>
#include <utility>

#include "kernels/base/status.h"
#include "kernels/base/thread_pool.h"

namespace otr {

// `body(task, thread)` gives a Status. Returns the error of the lowest task that fails, whatever the threads do: tasks after a
// failed one may be left out, those before it are not. Running out of memory is an error like others: an exception must not
// meet the pool.
template <typename Body>
Status parallel_status(ThreadPool& pool, int num_tasks, const Body& body) {
  std::atomic<int> first_failed{num_tasks};
  std::mutex mutex;
  Status first_error;  // guarded by mutex
  pool.parallel_for(num_tasks, [&](int task, int thread) noexcept {
    if (task > first_failed.load(std::memory_order_relaxed)) return;
    Status status;
    try {
      status = body(task, thread);
    } catch (const std::bad_alloc&) {
      status = Status(StatusCode::kOutOfMemory, std::string("out of memory"));  // 13 bytes: inside the string
    }
    if (status.ok()) return;
    const std::lock_guard<std::mutex> lock(mutex);
    if (task >= first_failed.load(std::memory_order_relaxed)) return;
    first_failed.store(task, std::memory_order_relaxed);
    first_error = std::move(status);
  });
  return first_error;
}

}  // namespace otr
