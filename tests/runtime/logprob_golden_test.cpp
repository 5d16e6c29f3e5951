// Raw log-probs of every path against transformers: the error from a float32 reference must be about that of transformers in
// bf16, or smaller.

#include <gtest/gtest.h>

#include <cstdio>
#include <string>

#include "tests/runtime/every_path.h"
#include "tests/runtime/golden.h"

namespace {

constexpr double kMeanRatio = 1.1;  // of transformers' own error in bf16
constexpr double kP999Ratio = 2.0;

// The scalar path is many times slower than the others: there, tinymath is cut to its first sequences, the longest among them,
// which make up this many positions. The random models have fewer than that and are scored in full.
constexpr size_t kScalarPositions = 2100;

class LogprobGolden : public testing::TestWithParam<const char*> {};

TEST_P(LogprobGolden, IsAsCloseToFloat32AsTransformersInBf16) {
  const std::string isa = GetParam();
  std::printf("%-22s %9s   %8s %8s %5s   %8s %8s %5s   %8s %8s\n", isa.c_str(), "positions", "mean", "(hf)", "ratio", "p99.9",
              "(hf)", "ratio", "max", "(hf)");
  for (const char* name : golden::kModels) {
    SCOPED_TRACE(name);
    golden::Model model = golden::load(name);
    if (isa == "cpu-scalar") golden::keep_positions(&model, kScalarPositions);
    const golden::Scores scores = golden::score(model, isa.c_str());
    // Only the first model may say so: afterwards, and on the path that every machine has, it would hide a refused checkpoint.
    if (scores.status == OTR_UNSUPPORTED && name == golden::kModels[0] && isa != "cpu-scalar") GTEST_SKIP() << scores.message;
    ASSERT_EQ(scores.status, OTR_OK) << scores.message;
    EXPECT_EQ(scores.message, "");
    const golden::Error ours = golden::error_of(model, scores.raw_logprobs), theirs = golden::error_of(model, model.bfloat16);
    std::printf("%-22s %9zu   %8.5f %8.5f %5.2f   %8.4f %8.4f %5.2f   %8.4f %8.4f\n", name, ours.positions, ours.mean,
                theirs.mean, ours.mean / theirs.mean, ours.p999, theirs.p999, ours.p999 / theirs.p999, ours.max, theirs.max);
    EXPECT_GE(ours.positions, 2000u);
    EXPECT_LE(ours.mean, kMeanRatio * theirs.mean) << golden::worst(model, ours, scores.raw_logprobs);
    EXPECT_LE(ours.p999, kP999Ratio * theirs.p999) << golden::worst(model, ours, scores.raw_logprobs);
  }
}

std::string path_name(const testing::TestParamInfo<const char*>& info) {
  return std::string(info.param).substr(std::string("cpu-").size());
}

INSTANTIATE_TEST_SUITE_P(Path, LogprobGolden, testing::Values("cpu-amx", "cpu-avx512", "cpu-avx2", "cpu-scalar"), path_name);

// The limits tell a wrong model from rounding: frequencies off by at most half a percent exceed both.
TEST(LogprobGoldenInverse, SlightlyWrongRopeThetaIsFound) {
  golden::Model model = golden::load("qwen2-group1-tied");
  const golden::EditedCheckpoint edited(model, "\"rope_theta\": 10000.0", "\"rope_theta\": 10050.0");
  model.folder = edited.folder();
  const golden::Scores scores = golden::score(model, "auto");
  ASSERT_EQ(scores.status, OTR_OK) << scores.message;
  const golden::Error ours = golden::error_of(model, scores.raw_logprobs), theirs = golden::error_of(model, model.bfloat16);
  EXPECT_GT(ours.mean, kMeanRatio * theirs.mean);
  EXPECT_GT(ours.p999, kP999Ratio * theirs.p999);
}

}  // namespace
