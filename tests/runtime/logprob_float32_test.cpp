// Raw log-probs of the float32 build of the scalar path (weights, activations and KV in float32) against transformers in
// float32: with no rounding left to hide behind, every operation must be the reference's.
//
// Linked with outrider_f32 instead of the library, hence a program of its own.

#include <gtest/gtest.h>

#include <cstdio>

#include "tests/runtime/golden.h"

namespace {

constexpr double kMaxError = 1e-4;  // the reference itself is within 2e-5 of float64

// Slow path: tinymath is cut to its first sequences, the longest among them, which make up this many positions; the random
// models have fewer.
constexpr size_t kPositions = 2100;

TEST(LogprobFloat32, EveryLogprobIsTheReferences) {
  std::printf("%-22s %9s   %9s %9s %9s\n", "cpu-scalar, float32", "positions", "mean", "p99.9", "max");
  for (const char* name : golden::kModels) {
    SCOPED_TRACE(name);
    golden::Model model = golden::load(name);
    golden::keep_positions(&model, kPositions);
    const golden::Scores scores = golden::score(model, "cpu-scalar");
    ASSERT_EQ(scores.status, OTR_OK) << scores.message;
    EXPECT_EQ(scores.message, "");
    const golden::Error error = golden::error_of(model, scores.raw_logprobs);
    std::printf("%-22s %9zu   %9.2e %9.2e %9.2e\n", name, error.positions, error.mean, error.p999, error.max);
    EXPECT_GE(error.positions, 2000u);
    EXPECT_LE(error.max, kMaxError) << golden::worst(model, error, scores.raw_logprobs);
  }
}

// The limit sees what bf16 would hide: an epsilon that is a tenth too large.
TEST(LogprobFloat32Inverse, SlightlyWrongEpsilonIsFound) {
  golden::Model model = golden::load("qwen2-group1-tied");
  const golden::EditedCheckpoint edited(model, "\"rms_norm_eps\": 1e-05", "\"rms_norm_eps\": 1.1e-05");
  model.folder = edited.folder();
  const golden::Scores scores = golden::score(model, "cpu-scalar");
  ASSERT_EQ(scores.status, OTR_OK) << scores.message;
  EXPECT_GT(golden::error_of(model, scores.raw_logprobs).max, 100 * kMaxError);
}

}  // namespace
