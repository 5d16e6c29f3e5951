// Limits of containers, in folders that pretend to be / with the files of cgroup v1, v2 and both.
#include "kernels/base/cgroup.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "tests/kernels/temp_folder.h"

namespace otr {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

std::string mib(uint64_t count) { return std::to_string(count * kMiB) + "\n"; }

class Cgroup : public ::testing::Test {
 protected:
  Cgroup() { put("proc/meminfo", "MemTotal:       16777216 kB\nMemFree:          102400 kB\nMemAvailable:    8388608 kB\n"); }

  void put(const std::string& name, const std::string& text) const {
    const std::filesystem::path path = root_ + "/" + name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }

  // The process is in `group` of v2; what is mounted is its part `mounted`.
  void v2(const std::string& group, const std::string& mounted = "/") const {
    put("proc/self/cgroup", "0::" + group + "\n");
    put("proc/self/mountinfo", "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/root rw\n35 24 0:30 " + mounted +
                                   " /sys/fs/cgroup rw,nosuid shared:9 master:2 - cgroup2 cgroup2 rw,nsdelegate\n");
  }

  // Likewise of v1, whose cpu and cpuacct are one hierarchy.
  void v1(const std::string& group, const std::string& mounted = "/") const {
    put("proc/self/cgroup", "12:cpuacct,cpu:" + group + "\n4:memory:" + group + "\n3:cpuset:/\n1:name=systemd:/elsewhere\n");
    put("proc/self/mountinfo",
        "31 24 0:28 / /sys/fs/cgroup ro - tmpfs tmpfs ro,mode=755\n32 31 0:29 / /sys/fs/cgroup/systemd rw - cgroup cgroup "
        "rw,name=systemd\n33 31 0:30 " +
            mounted + " /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n34 31 0:31 " + mounted +
            " /sys/fs/cgroup/memory rw,relatime shared:7 - cgroup cgroup rw,memory\n");
  }

  // What is free in MiB, the system's 8192 if no group has less; -1: not known.
  int64_t free() const {
    const std::optional<uint64_t> bytes = free_memory(root_);
    return bytes ? static_cast<int64_t>(*bytes / kMiB) : -1;
  }
  int cpus() const { return cpu_quota(root_).value_or(0); }

  const TempFolder folder_;
  const std::string root_ = folder_.path();
};

TEST_F(Cgroup, WithoutGroupsTheSystemsMemoryCounts) {
  EXPECT_EQ(free(), 8192);
  EXPECT_EQ(cpus(), 0);
  std::filesystem::remove_all(root_ + "/proc");
  EXPECT_EQ(free(), -1);
  EXPECT_EQ(cpus(), 0);
}

TEST_F(Cgroup, AGroupOfV2LeavesItsLimitLessWhatItUses) {
  v2("/pod");
  put("sys/fs/cgroup/pod/memory.max", mib(1000));
  put("sys/fs/cgroup/pod/cpu.max", "400000 100000\n");
  EXPECT_EQ(free(), 1000);
  EXPECT_EQ(cpus(), 4);
  put("sys/fs/cgroup/pod/memory.current", mib(700));
  EXPECT_EQ(free(), 300);
  put("sys/fs/cgroup/pod/memory.stat", "anon 5\nactive_file " + mib(50) + "inactive_file " + mib(200) + "slab 7\n");
  EXPECT_EQ(free(), 500);
  put("sys/fs/cgroup/pod/memory.current", mib(1300));  // the limit was lowered
  EXPECT_EQ(free(), 0);
  put("sys/fs/cgroup/pod/memory.current", mib(100));  // the files are not read at one moment
  EXPECT_EQ(free(), 1000);
  put("sys/fs/cgroup/pod/memory.max", mib(9000));
  EXPECT_EQ(free(), 8192);
  std::filesystem::remove(root_ + "/proc/meminfo");
  EXPECT_EQ(free(), 9000);
}

TEST_F(Cgroup, AncestorsLimitToo) {
  v2("/a/b/c");
  put("sys/fs/cgroup/a/memory.max", mib(2000));
  put("sys/fs/cgroup/a/memory.current", mib(1900));
  put("sys/fs/cgroup/a/cpu.max", "max 100000\n");
  put("sys/fs/cgroup/a/b/memory.max", "max\n");
  put("sys/fs/cgroup/a/b/cpu.max", "250000 100000\n");
  put("sys/fs/cgroup/a/b/c/memory.max", mib(500));
  put("sys/fs/cgroup/a/b/c/cpu.max", "800000 100000\n");
  put("sys/fs/cgroup/a/other/memory.max", mib(1));
  put("sys/fs/cgroup/a/other/cpu.max", "1000 100000\n");
  EXPECT_EQ(free(), 100);
  EXPECT_EQ(cpus(), 3);
}

// Inside a container the path may be "/", one that only the host knows, or one beside the namespace; what is mounted is its
// own.
TEST_F(Cgroup, AContainersOwnGroupIsTheMountedOne) {
  put("sys/fs/cgroup/memory.max", mib(600));
  put("sys/fs/cgroup/cpu.max", "150000 100000\n");
  put("sys/fs/memory.max", mib(1));
  put("sys/fs/cgroupdef/memory.max", mib(1));
  const struct {
    const char *group, *mounted;
  } cases[] = {{"/", "/"},
               {"/docker/abc", "/docker/abc"},
               {"/docker/abc", "/"},
               {"/", "/docker/abc"},
               {"/docker/abcdef", "/docker/abc"},
               {"/..", "/"},
               {"/../other", "/"},
               {"/a/../../..", "/"},
               {"/gone (deleted)", "/"}};
  for (const auto& c : cases) {
    v2(c.group, c.mounted);
    EXPECT_EQ(free(), 600) << c.group << " in " << c.mounted;
    EXPECT_EQ(cpus(), 2) << c.group << " in " << c.mounted;
  }
  v2("/docker/abc/inner", "/docker/abc");
  put("sys/fs/cgroup/inner/memory.max", mib(70));
  EXPECT_EQ(free(), 70);
  EXPECT_EQ(cpus(), 2);
}

// A host's tree that a container mounts for its own purposes is not mistaken for its own.
TEST_F(Cgroup, OfSeveralMountsTheOneThatHoldsTheGroupCounts) {
  v2("/");
  put("proc/self/mountinfo",
      "40 24 0:30 /../.. /host/cgroup ro - cgroup2 cgroup2 rw\n41 24 0:30 / /sys/fs/cgroup ro - cgroup2 cgroup2 rw\n");
  put("host/cgroup/memory.max", mib(100));
  put("sys/fs/cgroup/memory.max", mib(200));
  EXPECT_EQ(free(), 200);
}

TEST_F(Cgroup, AGroupOfV1LeavesItsLimitLessWhatItUses) {
  v1("/a/b");
  put("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  put("sys/fs/cgroup/memory/a/memory.limit_in_bytes", mib(3000));
  put("sys/fs/cgroup/memory/a/memory.usage_in_bytes", mib(2900));
  put("sys/fs/cgroup/memory/a/memory.stat", "inactive_file 0\ntotal_inactive_file " + mib(400));
  put("sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "9223372036854771712\n");
  put("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
  put("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
  put("sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us", "50000\n");
  put("sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us", "20000\n");
  put("sys/fs/cgroup/cpu,cpuacct/a/b/cpu.cfs_quota_us", "-1\n");
  put("sys/fs/cgroup/cpu,cpuacct/a/b/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(free(), 500);
  EXPECT_EQ(cpus(), 3);
  std::filesystem::remove(root_ + "/proc/meminfo");
  put("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_EQ(free(), -1);
}

TEST_F(Cgroup, AContainersOwnGroupOfV1IsTheMountedOne) {
  put("sys/fs/cgroup/memory/memory.limit_in_bytes", mib(640));
  put("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "10000\n");
  put("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
  for (const char* mounted : {"/docker/abc", "/", "/kubepods/other"}) {
    v1("/docker/abc", mounted);
    EXPECT_EQ(free(), 640) << mounted;
    EXPECT_EQ(cpus(), 1) << mounted;
  }
}

TEST_F(Cgroup, OfBothVersionsTheLeastCounts) {
  put("proc/self/cgroup", "4:memory:/m\n1:cpu:/\n0::/u\n");
  put("proc/self/mountinfo",
      "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup "
      "rw,memory\n41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n");
  put("sys/fs/cgroup/memory/m/memory.limit_in_bytes", mib(300));
  put("sys/fs/cgroup/unified/u/cpu.max", "700000 100000\n");
  EXPECT_EQ(free(), 300);
  EXPECT_EQ(cpus(), 7);
  put("sys/fs/cgroup/unified/u/memory.max", mib(200));
  put("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "600000\n");
  put("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(free(), 200);
  EXPECT_EQ(cpus(), 6);
}

TEST_F(Cgroup, WhatIsNoLimitLimitsNothing) {
  v2("/pod");
  for (const char* text : {"", "\n", "max", "max\n", "-1\n", "12x\n", "x12\n", "1e3\n", "99999999999999999999999\n"}) {
    put("sys/fs/cgroup/pod/memory.max", text);
    EXPECT_EQ(free(), 8192) << text;
  }
  for (const char* text :
       {"", "\n", "max", "max 100000\n", "400000\n", "400000 0\n", "400000 max\n", "-1 100000\n", "4,1 2\n"}) {
    put("sys/fs/cgroup/pod/cpu.max", text);
    EXPECT_EQ(cpus(), 0) << text;
  }
  put("sys/fs/cgroup/memory.max", mib(200));
  put("sys/fs/cgroup/pod/memory.max", mib(100));
  for (const char* text : {"", "\n", ":\n", "0:\n", "0", "0\n:", "\n\n", "4:memory", "4:memory:/pod\n"}) {
    put("proc/self/cgroup", text);
    EXPECT_EQ(free(), 8192) << text;
  }
  v2("/pod");
  for (const char* text : {"", "\n", "-\n", "- cgroup2 x y\n", "1 2 3 / /sys/fs/cgroup - cgroup2 x y\n",
                           "1 2 3 / /sys/fs/cgroup rw - cgroup2\n", "1 2 3 / /sys/fs/cgroup rw cgroup2 cgroup2 rw\n"}) {
    put("proc/self/mountinfo", text);
    EXPECT_EQ(free(), 8192) << text;
  }
  v2("/pod");
  EXPECT_EQ(free(), 100);
  std::filesystem::remove(root_ + "/sys/fs/cgroup/pod/memory.max");
  std::filesystem::create_directory(root_ + "/sys/fs/cgroup/pod/memory.max");
  EXPECT_EQ(free(), 200);
}

TEST_F(Cgroup, QuotasAreRoundedUp) {
  v2("/");
  const struct {
    const char* text;
    int cpus;
  } cases[] = {{"1 100000", 1},      {"100000 100000", 1}, {"100001 100000", 2},
               {"250000 100000", 3}, {"0 100000", 1},      {"18446744073709551615 1", 2147483647}};
  for (const auto& c : cases) {
    put("sys/fs/cgroup/cpu.max", c.text);
    EXPECT_EQ(cpus(), c.cpus) << c.text;
  }
}

// The machine's own files are read without fault, whatever they say.
TEST(CgroupOfThisMachine, LeavesSomeMemory) {
  EXPECT_GT(free_memory("/").value_or(1), 0u);
  EXPECT_GE(cpu_quota("/").value_or(1), 1);
}

}  // namespace
}  // namespace otr
