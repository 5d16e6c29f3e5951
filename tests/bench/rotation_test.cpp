// Copies of operands: how many bytes are addressed before the first ones come again. Kernels note addresses here, and do
// nothing.
#include <gtest/gtest.h>

#include <functional>
#include <set>
#include <string>
#include <utility>

#include "bench/suite.h"

namespace otr::bench {
namespace {

// Where the last call wrote, or read what is rotated.
std::pair<int64_t, int64_t> noted;

class Rotation : public ::testing::Test {
 protected:
  Rotation() {
    kernels.rope_table = [](const RopeTableParams& p, const LaunchContext&) { noted.first = reinterpret_cast<int64_t>(p.cos); };
    kernels.rope_append = [](const RopeAppendParams& p, const LaunchContext&) { noted = {p.rows->page_tables[0], p.layer}; };
    kernels.attention = [](const AttentionParams& p, const LaunchContext&) { noted = {p.rows->page_tables[0], p.layer}; };
    kernels.page_zero = [](const PageZeroParams& p, const LaunchContext&) { noted.first = p.ids[0]; };
    kernels.page_gather = [](const PageGatherParams& p, const LaunchContext&) { noted.first = p.ids[0]; };
    add_attention_cases(suite);
    add_row_cases(suite);
  }
  ~Rotation() override { benchmark::ClearRegisteredBenchmarks(); }

  // Copies of `bytes` each.
  void expect_rotated(const std::string& name, int64_t bytes) {
    const Work work = suite.work_of(name)();
    std::set<std::pair<int64_t, int64_t>> copies;
    noted = {};
    for (int64_t call = 0;; ++call) {
      work.run(call);
      if (!copies.insert(noted).second) break;
    }
    EXPECT_GE(static_cast<int64_t>(copies.size()) * bytes, kRotationBytes) << name;
  }

  KernelTable kernels = *select_kernels("cpu-scalar").value();
  Suite suite{kernels, 1};
};

TEST_F(Rotation, GoesOverAllOfTheBytes) {
  constexpr int64_t kLayerPage = 2 * 64 * 2 * 64 * 2;  // of qwen2.5-0.5b
  expect_rotated("rope_table/qwen2.5-0.5b/rows:256", 256 * 32 * 2 * 4);
  expect_rotated("rope_append/qwen2.5-0.5b/rows:16", kLayerPage);
  expect_rotated("attention/qwen2.5-0.5b/group/rows:8/context:4160", (64 + 8) * kLayerPage);
  expect_rotated("attention/qwen2.5-0.5b/decode/rows:16/context:128", 32 * kLayerPage);
  expect_rotated("page_zero/qwen2.5-0.5b/pages:16", 16 * 24 * kLayerPage);
  expect_rotated("page_gather/qwen2.5-0.5b/pages:16", 2 * 16 * 24 * kLayerPage);
}

}  // namespace
}  // namespace otr::bench
