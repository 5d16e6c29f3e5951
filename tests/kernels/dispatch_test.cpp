#include "kernels/dispatch.h"

#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <iterator>
#include <string>

#include "kernels/base/cpu_features.h"

namespace otr::dispatch_test {
namespace {

// From here on the system answers every request for a state component's permission with EACCES. False: no filters here.
bool refuse_tile_permission() {
  constexpr int kArchReqXcompPerm = 0x1023;
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_arch_prctl, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, kArchReqXcompPerm, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EACCES),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog filter = {std::size(program), program};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

// In a child, since a filter stays: the message names the cause, AMX is off the list, and `auto` takes the next path.
TEST(Dispatch, ARefusedTilePermissionLeavesTheNextPathAndSaysWhy) {
  constexpr int kNoFilters = 77;
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    if (!refuse_tile_permission()) _exit(kNoFilters);
    std::string why;
    if (request_tile_permission(&why)) _exit(1);
    if (why != "the system refused the process permission for AMX tile data (Permission denied)") _exit(2);
    const bool has_avx512 = cpu_has_avx512(&why);
#if !defined(OUTRIDER_SOFT_TILES)
    const PathInfo amx = list_paths().front();
    if (amx.available || amx.reason.empty()) _exit(3);
    const Result<const KernelTable*> forced = select_kernels("cpu-amx");
    if (forced.ok() || forced.status().message().find(amx.reason) == std::string::npos) _exit(4);
    const Result<const KernelTable*> chosen = select_kernels("auto");
    if (!chosen.ok() || (has_avx512 && std::strcmp(chosen.value()->path, "cpu-avx512") != 0)) _exit(5);
#else
    if (select_kernels("cpu-amx").ok() != has_avx512) _exit(6);                            // software tiles ask for nothing
#endif
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == kNoFilters) GTEST_SKIP() << "this system lets no process filter its calls";
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(Dispatch, AutoTakesTheBestPathOfThisMachine) {
  const Result<const KernelTable*> chosen = select_kernels("auto");
  ASSERT_TRUE(chosen.ok());
  for (const PathInfo& path : list_paths()) {
    if (!path.available) continue;
    EXPECT_STREQ(chosen.value()->path, path.table->path);
    break;
  }
}

TEST(Dispatch, AForcedPathIsThatPathOrAnErrorWithTheReason) {
  for (const PathInfo& path : list_paths()) {
    const Result<const KernelTable*> forced = select_kernels(path.table->path);
    if (path.available) {
      ASSERT_TRUE(forced.ok());
      EXPECT_EQ(forced.value(), path.table);
      EXPECT_EQ(path.reason, "");
    } else {
      EXPECT_EQ(forced.status().code(), StatusCode::kUnsupported);
      ASSERT_NE(path.reason, "");
      EXPECT_NE(forced.status().message().find(path.table->path), std::string::npos);
      EXPECT_NE(forced.status().message().find(path.reason), std::string::npos);
    }
  }
}

#if !defined(OUTRIDER_SOFT_TILES)
constexpr const char* kBestFirst[] = {"cpu-amx", "cpu-avx512", "cpu-avx2", "cpu-scalar"};
#else
constexpr const char* kBestFirst[] = {"cpu-avx512", "cpu-avx2", "cpu-amx", "cpu-scalar"};  // software tiles are slow
#endif

TEST(Dispatch, UnknownNamesAreRefusedWithTheKnownOnes) {
  std::string known;
  for (const char* path : kBestFirst) known += std::string(path) + ", ";
  for (const char* name : {"", "avx2", "cpu-avx", "CPU-SCALAR", "cpu-scalar "}) {
    const Result<const KernelTable*> unknown = select_kernels(name);
    ASSERT_FALSE(unknown.ok()) << name;
    EXPECT_EQ(unknown.status().code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(unknown.status().message(), "unknown path '" + std::string(name) + "': expected auto, " + known + "cuda-sm90a");
  }
}

TEST(Dispatch, ListsEveryPathBestFirst) {
  const std::vector<PathInfo> paths = list_paths();
  ASSERT_EQ(paths.size(), std::size(kBestFirst));
  for (size_t i = 0; i < paths.size(); ++i) EXPECT_STREQ(paths[i].table->path, kBestFirst[i]);
  EXPECT_TRUE(paths.back().available);
#if !defined(OUTRIDER_SOFT_TILES)
  for (size_t i = 0; i + 1 < paths.size(); ++i) {  // each path needs what the next one needs
    EXPECT_TRUE(!paths[i].available || paths[i + 1].available) << paths[i].table->path;
  }
#endif
}

TEST(Dispatch, EveryTableIsComplete) {
  for (const PathInfo& path : list_paths()) {
    const KernelTable& t = *path.table;
    EXPECT_TRUE(t.embed && t.rmsnorm && t.linear && t.linear_w4 && t.quantize_w4 && t.rope_table && t.rope_append &&
                t.attention && t.sample && t.candidates && t.page_copy && t.page_zero && t.clear && t.attention_tile_rows &&
                t.w4_packed_bytes && t.device == nullptr)
        << t.path;
  }
}

}  // namespace
}  // namespace otr::dispatch_test
