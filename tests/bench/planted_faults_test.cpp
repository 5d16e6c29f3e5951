// What the cases' verification finds: faults planted into the kernels of every path, at places drawn by seeds.
#include "tests/bench/planted_faults.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "bench/suite.h"

namespace otr::bench {
namespace {

// A suite on a table that can be changed while it lives.
class Verification : public ::testing::TestWithParam<std::string> {
 protected:
  Verification() : kernels(*select_kernels(GetParam()).value()), suite(kernels, 2) {
    add_linear_cases(suite);
    add_linear_w4_cases(suite);
    add_attention_cases(suite);
    add_row_cases(suite);
    add_sample_cases(suite);
  }
  ~Verification() override { benchmark::ClearRegisteredBenchmarks(); }

  std::string verdict(const std::string& name) {
    const std::function<Work()> make = suite.work_of(name);
    if (make == nullptr) return "no such case";
    const Work work = make();
    work.spoil();
    work.run(0);
    return work.verify();
  }

  KernelTable kernels;
  Suite suite;
};

std::vector<std::string> available_paths() {
  std::vector<std::string> names;
  for (const PathInfo& path : list_paths()) {
    if (path.available) names.push_back(path.table->path);
  }
  return names;
}

std::string name_of(const ::testing::TestParamInfo<std::string>& info) {
  std::string name = info.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Paths, Verification, ::testing::ValuesIn(available_paths()), name_of);

// A cross section of small cases; no fault, no error.
constexpr const char* kSound[] = {"linear/qwen2.5-0.5b/o/rows:17",
                                  "linear/qwen2.5-0.5b/qkv/rows:1",
                                  "linear/qwen2.5-0.5b/gate_up/rows:4",
                                  "linear_w4/qwen2.5-0.5b/o/rows:17",
                                  "linear_w4/qwen2.5-0.5b/gate_up/rows:4",
                                  "quantize_w4/qwen2.5-0.5b/o",
                                  "attention/qwen2.5-0.5b/decode/rows:16/context:128",
                                  "attention/qwen2.5-7b/decode/rows:1/context:8192",
                                  "attention/qwen2.5-0.5b/group/rows:8/context:4160",
                                  "attention/qwen3-8b/verify/rows:17/context:1041",
                                  "attention/qwen2.5-0.5b/paths/rows:20/context:1030",
                                  "attention/qwen2.5-7b-quarter/paths/rows:20/context:1030",
                                  "embed/qwen2.5-0.5b/rows:17",
                                  "rmsnorm/qwen2.5-0.5b/rows:17",
                                  "rope_table/qwen2.5-0.5b/rows:17",
                                  "rope_append/qwen3-8b/rows:17",
                                  "route/qwen3-30b-a3b/rows:17",
                                  "page_copy/qwen2.5-0.5b/pages:1",
                                  "page_zero/qwen2.5-0.5b/pages:1",
                                  "page_gather/qwen2.5-0.5b/pages:1",
                                  "page_scatter/qwen2.5-0.5b/pages:1",
                                  "sample/plain/rows:1",
                                  "sample/penalties:1024/rows:1",
                                  "sample/candidates:8/rows:1"};

TEST_P(Verification, PassesTheKernels) {
  for (const char* name : kSound) EXPECT_EQ(verdict(name), "") << name;
}

constexpr const char* kPlanted[] = {"linear/qwen2.5-0.5b/o/rows:64",
                                    "linear/qwen2.5-0.5b/gate_up/rows:1",
                                    "linear_w4/qwen2.5-0.5b/down/rows:16",
                                    "linear_w4/qwen2.5-0.5b/gate_up/rows:4",
                                    "attention/qwen2.5-0.5b/decode/rows:16/context:128",
                                    "attention/qwen2.5-0.5b/verify/rows:8/context:1024",
                                    "sample/plain/rows:16",
                                    "rope_append/qwen3-8b/rows:256",
                                    "sample/candidates:8/rows:1"};

TEST_P(Verification, FindsAWrongOutputWhereverItIs) {
  plant_wrong(kernels);
  for (const std::string name : kPlanted) {
    plant_gated_alone = name.find("gate_up") != std::string::npos;
    for (plant_seed = 0; plant_seed < 3; ++plant_seed) EXPECT_NE(verdict(name), "") << name << ", seed " << plant_seed;
  }
}

TEST_P(Verification, FindsABlockThatIsSlightlyWrong) {
  unplanted = kernels;
  kernels.linear = wrong_block;
  for (const char* name : {"linear/qwen2.5-0.5b/o/rows:1", "linear/qwen2.5-0.5b/o/rows:64"}) {
    for (plant_seed = 0; plant_seed < 5; ++plant_seed) EXPECT_NE(verdict(name), "") << name << ", seed " << plant_seed;
  }
}

// Attention over other keys than it was asked for.
struct Moved {
  int keys;         // that a row sees more or less; 0: instead of one page its neighbour is taken
  bool first_call;  // in the first call alone, or in all others alone
  int calls = 0;
} moved;

void moved_attention(const AttentionParams& p, const LaunchContext& on) {
  if ((moved.calls++ == 0) != moved.first_call) return unplanted.attention(p, on);
  RowBatch batch = *p.rows;
  int32_t pages = 0;
  for (int32_t i = 0; i < batch.num_segments; ++i) {
    const RowSegment& s = batch.segments[i];
    pages = std::max(pages, s.first_page + batch.positions[s.first_row + s.num_rows - 1] / kPageTokens + 1);
  }
  std::vector<int32_t> positions(batch.positions, batch.positions + batch.num_rows);
  std::vector<PageId> tables(batch.page_tables, batch.page_tables + pages);
  for (int32_t& position : positions) position += moved.keys;
  if (moved.keys == 0) tables[static_cast<size_t>(pages / 2)] = tables[static_cast<size_t>(pages / 2 + 1)];
  batch.positions = positions.data();
  batch.page_tables = tables.data();
  AttentionParams changed = p;
  changed.rows = &batch;
  unplanted.attention(changed, on);
}

class MovedKeys : public Verification {
 protected:
  MovedKeys() {
    unplanted = kernels;
    kernels.attention = moved_attention;
  }
  void expect_found(int keys, bool first_call, const std::string& name) {
    if (GetParam() == "cpu-scalar" && name.find("32768") != std::string::npos) return;  // seconds
    moved = {keys, first_call};
    EXPECT_NE(verdict(name), "") << name << ", " << keys;
  }
};
INSTANTIATE_TEST_SUITE_P(Paths, MovedKeys, ::testing::ValuesIn(available_paths()), name_of);

constexpr const char* kLong[] = {
    "attention/qwen2.5-0.5b/decode/rows:1/context:4160", "attention/qwen2.5-7b/decode/rows:1/context:8192",
    "attention/qwen2.5-7b-quarter/decode/rows:1/context:8192", "attention/qwen2.5-7b/decode/rows:1/context:32768"};

TEST_P(MovedKeys, AreFoundByQueriesAimedAtThem) {
  for (const char* name : kLong) expect_found(-1, false, name);
  for (const char* name :
       {"attention/qwen2.5-0.5b/paths/rows:20/context:1030", "attention/qwen2.5-7b/verify/rows:17/context:1041"})
    expect_found(1, false, name);
}

TEST_P(MovedKeys, AreMoreThanTheToleranceWhereAPageIsTaken) {
  for (const char* name : kLong) expect_found(0, true, name);
}

TEST_P(Verification, CeilingsLeaveOutWhatIsInCache) {
  const Work product = suite.work_of("linear_w4/qwen2.5-0.5b/o/rows:64")();
  EXPECT_EQ(product.bytes - product.cached_bytes, w4_cpu_packed_bytes(896, 896));
  EXPECT_EQ(product.cached_bytes, 64 * 896 * (2.0 + 4 + 4));
  const Work norm = suite.work_of("rmsnorm/qwen2.5-7b/rows:1")();
  EXPECT_EQ(norm.bytes - norm.cached_bytes, 3584 * (4.0 + 2));
  const Work group = suite.work_of("attention/qwen2.5-0.5b/group/rows:8/context:4160")();
  EXPECT_EQ(group.bytes - group.cached_bytes, (4096 + 8 * 64) * 2.0 * 2 * 64 * 2);
}

}  // namespace
}  // namespace otr::bench
