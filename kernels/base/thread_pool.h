// A fixed set of threads that run the tasks of one launch at a time.
//
// Results never depend on the number of threads: a task computes whole output elements, or parts that are merged in an order of
// their own. Tasks are claimed in ascending order, so one may wait for what an earlier one does.
// A launch is over when its tasks are done, whether or not every thread has noticed it: a thread that the system has put aside
// holds nobody up unless it holds a task.
// Threads spin briefly between launches (a tick is a chain of a few hundred short ones) and then sleep. They inherit the
// creating thread's affinity, and every one of them runs with the pinned floating-point environment.
//
// Thread safety: run() is called by one thread at a time, which works along. A task must not call run().
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "kernels/base/macros.h"

namespace otr {

class ThreadPool {
 public:
  // `num_threads` counts the thread that will call run(); 0 means default_threads(). `pin`: each thread gets one CPU of
  // the creating thread's affinity for its own, as far as they go round; where the system refuses, it is left alone.
  // Throws std::bad_alloc, and std::system_error where no thread is to be had.
  explicit ThreadPool(int num_threads, bool pin = false);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  OTR_INLINE_MEMBER int num_threads() const { return num_threads_; }
  // Pins the calling thread, which is to be the one that calls run(), if the others are.
  void pin_caller() const { pin_thread(0); }

  using Task = void (*)(const void* context, int task, int thread);
  // Runs task 0 … num_tasks - 1, each exactly once, on any thread (0 <= thread < num_threads()); returns when all are done.
  void run(int num_tasks, Task task, const void* context);

  // `body(task, thread)` for every task.
  template <typename Body>
  void parallel_for(int num_tasks, const Body& body) {
    run(
        num_tasks, [](const void* c, int task, int thread) { (*static_cast<const Body*>(c))(task, thread); }, &body);
  }

  // kScratchBytes of a thread's own, aligned to as much, for what a task keeps in its core's cache; what is there means nothing
  // to the next launch. Made with the pool, so no task allocates.
  static constexpr size_t kScratchBytes = size_t{1} << 20;
  void* scratch(int thread) const;

  // One per CPU the calling thread may run on, but no more than the container's quota of processor time pays for.
  static int default_threads();

 private:
  // The launch as one word, so that a task is claimed against exactly the launch it belongs to: whoever claims one keeps run()
  // from returning, and may then read task_ and context_.
  static constexpr int kCountBits = 32;
  static constexpr uint64_t kNextMask = (uint64_t{1} << kCountBits) - 1;
  static bool has_task(uint64_t launch) { return (launch & kNextMask) < launch >> kCountBits; }

  void join_all();
  void pin_thread(int thread) const;
  void worker_loop(int thread);
  void work(int thread);

  struct Freed {
    void operator()(char* p) const;
  };

  const int num_threads_;
  std::unique_ptr<char, Freed> scratch_;
  std::vector<int> cpus_;  // to pin to; empty: threads go where the system puts them
  std::vector<std::thread> threads_;

  Task task_ = nullptr;                          // written by run() while no task can be claimed
  const void* context_ = nullptr;                // likewise
  alignas(64) std::atomic<uint64_t> launch_{0};  // number of tasks << 32 | next task
  alignas(64) std::atomic<int> done_{0};         // tasks finished

  std::mutex mutex_;
  std::condition_variable wake_;
  int sleeping_ = 0;  // guarded by mutex_
  std::atomic<bool> stop_{false};
};

}  // namespace otr
