#include "kernels/base/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "kernels/base/affinity.h"
#include "kernels/base/fp_env.h"

namespace otr {
namespace {

constexpr unsigned kFlushToZero = 0x8040;  // FTZ and DAZ

TEST(ThreadPool, RunsEveryTaskOnce) {
  for (int threads = 1; threads <= 4; ++threads) {
    ThreadPool pool(threads);
    ASSERT_EQ(pool.num_threads(), threads);
    for (const int tasks : {0, 1, threads - 1, threads, threads + 1, 2 * threads + 1, 100}) {
      std::vector<std::atomic<int>> runs(static_cast<size_t>(tasks));
      std::atomic<int> bad_thread{0};
      pool.parallel_for(tasks, [&](int task, int thread) {
        runs[static_cast<size_t>(task)].fetch_add(1);
        if (thread < 0 || thread >= threads) bad_thread.fetch_add(1);
      });
      for (const std::atomic<int>& r : runs) EXPECT_EQ(r.load(), 1) << threads << " threads, " << tasks << " tasks";
      EXPECT_EQ(bad_thread.load(), 0);
    }
  }
}

// A thread index is never used by two tasks at once: kernels keep their workspaces by it.
TEST(ThreadPool, AThreadIndexBelongsToOneTaskAtATime) {
  constexpr int kThreads = 4;
  ThreadPool pool(kThreads);
  std::atomic<int> users[kThreads] = {};
  std::atomic<int> clashes{0};
  for (int launch = 0; launch < 50; ++launch) {
    pool.parallel_for(64, [&](int, int thread) {
      if (users[thread].fetch_add(1) != 0) clashes.fetch_add(1);
      std::this_thread::yield();
      users[thread].fetch_sub(1);
    });
  }
  EXPECT_EQ(clashes.load(), 0);
}

TEST(ThreadPool, ManyLaunchesSeeTheirOwnData) {
  for (int threads = 2; threads <= 4; ++threads) {
    ThreadPool pool(threads);
    std::vector<int> plain(8, 0);  // not atomic: a launch happens before the next one
    for (int launch = 0; launch < 2000; ++launch) {
      const int tasks = 1 + launch % 8;
      pool.parallel_for(tasks, [&](int task, int) { plain[static_cast<size_t>(task)] += launch; });
    }
    for (int task = 0; task < 8; ++task) {
      int expected = 0;
      for (int launch = 0; launch < 2000; ++launch) expected += task < 1 + launch % 8 ? launch : 0;
      EXPECT_EQ(plain[static_cast<size_t>(task)], expected) << threads << " threads, task " << task;
    }
  }
}

TEST(ThreadPool, WakesThreadsThatSleep) {
  ThreadPool pool(3);
  for (int launch = 0; launch < 5; ++launch) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // far longer than the spinning
    std::atomic<int> runs{0};
    pool.parallel_for(30, [&](int, int) { runs.fetch_add(1); });
    EXPECT_EQ(runs.load(), 30);
  }
}

TEST(ThreadPool, ZeroMeansTheDefault) {
  ThreadPool pool(0);
  EXPECT_EQ(pool.num_threads(), ThreadPool::default_threads());
  EXPECT_GE(pool.num_threads(), 1);
  EXPECT_LE(static_cast<size_t>(pool.num_threads()), cpu_affinity().size());
}

// Pinned, thread i runs on the i-th CPU of the mask, and round again; the caller only if it asks. Unpinned, on any.
TEST(ThreadPool, PinsEachThreadToOneCpu) {
  const std::vector<int> cpus = cpu_affinity();
  ASSERT_FALSE(cpus.empty());
  std::thread([&] {  // not the test's own thread: it would stay pinned
    for (const bool pin : {false, true}) {
      ThreadPool pool(3, pin);
      std::vector<int> allowed[3];
      std::atomic<int> seen{0};
      pool.pin_caller();
      for (int launch = 0; launch < 1000 && seen.load() != 7; ++launch) {
        pool.parallel_for(64, [&](int, int thread) {
          allowed[thread] = cpu_affinity();
          seen.fetch_or(1 << thread);
          std::this_thread::yield();
        });
      }
      ASSERT_EQ(seen.load(), 7);
      for (size_t thread = 0; thread < 3; ++thread) {
        EXPECT_EQ(allowed[thread], pin ? std::vector<int>{cpus[thread % cpus.size()]} : cpus);
      }
    }
  })
      .join();
}

TEST(ThreadPool, PoolThreadsHaveThePinnedEnvironment) {
  const unsigned saved = _mm_getcsr();
  _mm_setcsr(kPinnedMxcsr | kFlushToZero);  // new threads would inherit it
  ThreadPool pool(3);
  _mm_setcsr(saved);
  std::atomic<int> wrong{0}, on_pool_threads{0};
  for (int launch = 0; launch < 1000 && on_pool_threads.load() == 0; ++launch) {
    pool.parallel_for(64, [&](int, int thread) {
      if (thread == 0) return std::this_thread::yield();
      on_pool_threads.fetch_add(1);
      if ((_mm_getcsr() & ~0x3fu) != kPinnedMxcsr) wrong.fetch_add(1);  // the low six bits are sticky exception flags
    });
  }
  EXPECT_GT(on_pool_threads.load(), 0);
  EXPECT_EQ(wrong.load(), 0);
}

TEST(FpEnvGuard, PinsAndRestores) {
  const unsigned saved = _mm_getcsr();
  const unsigned foreign = kPinnedMxcsr | kFlushToZero | 0x2000;  // flushes, rounds down
  _mm_setcsr(foreign);
  volatile float denormal = 1e-40f, flushed = denormal + denormal, kept;  // volatile: computed here, not by the compiler
  {
    const FpEnvGuard guard;
    EXPECT_EQ(_mm_getcsr(), kPinnedMxcsr);
    kept = denormal + denormal;
  }
  EXPECT_EQ(_mm_getcsr() & ~0x3fu, foreign);
  _mm_setcsr(saved);
  EXPECT_EQ(flushed, 0.0f);
  EXPECT_GT(kept, 0.0f);
}

}  // namespace
}  // namespace otr
