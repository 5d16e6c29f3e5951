#include "kernels/dispatch.h"

#include <gtest/gtest.h>

#include <string>

namespace otr {
namespace {

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

TEST(Dispatch, UnknownNamesAreRefusedWithTheKnownOnes) {
  for (const char* name : {"", "avx2", "cpu-avx", "CPU-SCALAR", "cpu-scalar "}) {
    const Result<const KernelTable*> unknown = select_kernels(name);
    ASSERT_FALSE(unknown.ok()) << name;
    EXPECT_EQ(unknown.status().code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(unknown.status().message(),
              "unknown path '" + std::string(name) + "': expected auto, cpu-amx, cpu-avx512, cpu-avx2, cpu-scalar");
  }
}

TEST(Dispatch, ListsEveryPathBestFirst) {
  const std::vector<PathInfo> paths = list_paths();
  ASSERT_EQ(paths.size(), 4u);
  EXPECT_STREQ(paths[0].table->path, "cpu-amx");
  EXPECT_STREQ(paths[1].table->path, "cpu-avx512");
  EXPECT_STREQ(paths[2].table->path, "cpu-avx2");
  EXPECT_STREQ(paths[3].table->path, "cpu-scalar");
  EXPECT_TRUE(paths[3].available);
  for (size_t i = 0; i + 1 < paths.size(); ++i) {  // each path needs what the next one needs
    EXPECT_TRUE(!paths[i].available || paths[i + 1].available) << paths[i].table->path;
  }
}

TEST(Dispatch, EveryTableIsComplete) {
  for (const PathInfo& path : list_paths()) {
    const KernelTable& t = *path.table;
    EXPECT_TRUE(t.embed && t.rmsnorm && t.linear && t.linear_w4 && t.quantize_w4 && t.rope_table && t.rope_append &&
                t.attention && t.silu_mul && t.sample && t.page_copy && t.page_zero)
        << t.path;
  }
}

}  // namespace
}  // namespace otr
