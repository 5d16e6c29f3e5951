#include "kernels/base/affinity.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <thread>
#include <vector>

namespace {

// CPUs of a machine that pretends; 0: the real one.
thread_local size_t pretended_cpus = 0;

}  // namespace

// The library's, for the whole program: a machine of more than 1,024 CPUs cannot be had for a test. Like the system, it refuses
// sets that are too small; all but the last CPU are somebody else's.
extern "C" int sched_getaffinity(pid_t thread, size_t bytes, cpu_set_t* set) noexcept {
  if (pretended_cpus == 0) {
    const long written = syscall(SYS_sched_getaffinity, thread, bytes, set);
    if (written < 0) return -1;
    std::memset(reinterpret_cast<char*>(set) + written, 0, bytes - static_cast<size_t>(written));
    return 0;
  }
  if (bytes * 8 < pretended_cpus) {
    errno = EINVAL;
    return -1;
  }
  CPU_ZERO_S(bytes, set);
  CPU_SET_S(pretended_cpus - 1, bytes, set);
  return 0;
}

namespace otr {
namespace {

TEST(Affinity, IsWhatWasSet) {
  std::thread([] {  // not the test's own thread
    const std::vector<int> before = cpu_affinity();
    ASSERT_FALSE(before.empty());
    ASSERT_TRUE(set_cpu_affinity({&before.back(), 1}));
    EXPECT_EQ(cpu_affinity(), std::vector<int>{before.back()});
    EXPECT_EQ(sched_getcpu(), before.back());
    EXPECT_EQ(cpu_affinity(getpid()), before);
    EXPECT_FALSE(set_cpu_affinity({}));
    const int none = 1 << 19;
    EXPECT_FALSE(set_cpu_affinity({&none, 1}));
    EXPECT_EQ(cpu_affinity(), std::vector<int>{before.back()});
    ASSERT_TRUE(set_cpu_affinity(before));
    EXPECT_EQ(cpu_affinity(), before);
  })
      .join();
}

TEST(Affinity, OfAnyNumberOfCpus) {
  for (const size_t cpus : {1, 1024, 1025, 8192, 100000}) {
    pretended_cpus = cpus;
    EXPECT_EQ(cpu_affinity(), std::vector<int>{static_cast<int>(cpus) - 1});
  }
  pretended_cpus = size_t{1} << 40;  // ends, where no set is large enough
  EXPECT_TRUE(cpu_affinity().empty());
  pretended_cpus = 0;
}

TEST(Affinity, OfNoThreadIsEmpty) { EXPECT_TRUE(cpu_affinity(-1).empty()); }

}  // namespace
}  // namespace otr
