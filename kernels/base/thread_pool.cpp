#include "kernels/base/thread_pool.h"

#include <immintrin.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <new>

#include "kernels/base/affinity.h"
#include "kernels/base/cgroup.h"
#include "kernels/base/fp_env.h"

namespace otr {
namespace {

// Some hundred us, by how long a pause takes: longer than the gap between two launches of a tick, or two ticks, shorter than a
// scheduling quantum.
constexpr int kSpins = 16000;

constexpr size_t kHugePage = size_t{2} << 20;

char* make_scratch(size_t bytes) {
  bytes = (bytes + kHugePage - 1) / kHugePage * kHugePage;
  void* data = std::aligned_alloc(kHugePage, bytes);
  if (data == nullptr) throw std::bad_alloc();
  madvise(data, bytes, MADV_HUGEPAGE);  // advice: refusal costs speed only
  return static_cast<char*>(data);
}

}  // namespace

void ThreadPool::Freed::operator()(char* p) const { std::free(p); }

// Not in the header, which kernel files of one instruction set include: it is made of library templates.
void* ThreadPool::scratch(int thread) const { return scratch_.get() + static_cast<size_t>(thread) * kScratchBytes; }

// A container's quota is no part of the mask: with more threads than it pays for all are stopped for the rest of each period.
int ThreadPool::default_threads() {
  const int cpus = std::max(1, static_cast<int>(cpu_affinity().size()));
  return std::min(cpus, cpu_quota("/").value_or(cpus));
}

ThreadPool::ThreadPool(int num_threads, bool pin) : num_threads_(num_threads > 0 ? num_threads : default_threads()) {
  if (pin) cpus_ = cpu_affinity();
  threads_.reserve(static_cast<size_t>(num_threads_ - 1));
  try {
    for (int i = 1; i < num_threads_; ++i) threads_.emplace_back([this, i] { worker_loop(i); });
    scratch_.reset(make_scratch(static_cast<size_t>(num_threads_) *
                                kScratchBytes));  // after the threads: too many of them are named as such
  } catch (...) {  // no thread or memory is to be had: the threads that run must end before what they wait on does
    join_all();
    throw;
  }
}

ThreadPool::~ThreadPool() { join_all(); }

void ThreadPool::join_all() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stop_.store(true);
  }
  wake_.notify_all();
  for (std::thread& t : threads_) t.join();
}

void ThreadPool::pin_thread(int thread) const {
  if (!cpus_.empty()) (void)set_cpu_affinity({&cpus_[static_cast<size_t>(thread) % cpus_.size()], 1});
}

void ThreadPool::run(int num_tasks, Task task, const void* context) {
  if (num_tasks <= 0) return;
  if (num_threads_ == 1 || num_tasks == 1) {
    for (int i = 0; i < num_tasks; ++i) task(context, i, 0);
    return;
  }
  task_ = task;
  context_ = context;
  done_.store(0, std::memory_order_relaxed);
  launch_.store(static_cast<uint64_t>(num_tasks) << kCountBits);  // ordered against a worker's check before it sleeps
  bool any_asleep;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    any_asleep = sleeping_ > 0;
  }
  if (any_asleep) wake_.notify_all();
  work(0);
  for (int spins = 0; done_.load(std::memory_order_acquire) != num_tasks; ++spins) {
    if (spins < kSpins) _mm_pause();
    else std::this_thread::yield();
  }
}

void ThreadPool::work(int thread) {
  uint64_t launch = launch_.load(std::memory_order_acquire);
  while (has_task(launch)) {
    if (!launch_.compare_exchange_weak(launch, launch + 1, std::memory_order_acq_rel)) continue;
    task_(context_, static_cast<int>(launch & kNextMask), thread);
    done_.fetch_add(1, std::memory_order_release);
    launch = launch_.load(std::memory_order_acquire);
  }
}

void ThreadPool::worker_loop(int thread) {
  pin_fp_environment();
  pin_thread(thread);
  for (;;) {
    for (int spins = 0; !has_task(launch_.load(std::memory_order_acquire)) && spins < kSpins; ++spins) _mm_pause();
    if (!has_task(launch_.load())) {
      std::unique_lock<std::mutex> lock(mutex_);
      ++sleeping_;
      wake_.wait(lock, [&] { return stop_.load() || has_task(launch_.load()); });
      --sleeping_;
      if (stop_.load()) return;
    }
    work(thread);
  }
}

}  // namespace otr
