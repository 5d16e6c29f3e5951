// Times of synthetic passes, and costs fitted to a few of them: how many passes, on which pages; never how long they take.

#include "runtime/pass_timer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <optional>
#include <vector>

#include "runtime/cost_calibration.h"
#include "runtime/device.h"
#include "tests/runtime/tiny_model.h"

namespace otr {
namespace {

constexpr ProgramBucket kBucket = {.max_rows = 64, .max_logit_rows = 64};

std::unique_ptr<Device> device_of(const TinyModel& model, int32_t num_pages, ProgramBucket bucket = kBucket) {
  DeviceOptions options;
  options.num_threads = 1;
  options.target = {.path = model.path(), .num_pages = num_pages, .bucket = bucket};
  Result<std::unique_ptr<Device>> device = Device::create(options);
  EXPECT_TRUE(device.ok()) << device.status().message();
  return std::move(device.value());
}

TimedProgram target_of(Device& device) { return {&device.target(), &device.target().program()}; }

TimedProgram self_of(Device& device) {
  EXPECT_TRUE(device.target().add_quantized(kBucket).ok());
  return {&device.target(), &device.target().quantized_program()};
}

void expect_all_pages_free(Device& device) {
  const PagePool& pool = device.target().page_pool();
  EXPECT_EQ(pool.num_free(), pool.num_pages());
  EXPECT_TRUE(pool.check(std::vector<int32_t>(static_cast<size_t>(pool.num_pages()), 0)).ok());
}

TEST(PassTimer, TimesEveryRoleAndGivesThePagesBack) {
  const TinyModel model;
  const auto device = device_of(model, 200);
  const TimedProgram target = target_of(*device), self = self_of(*device);
  {
    PassTimer timer;
    int64_t passes = 0;
    for (const CostRole role : {CostRole::kTarget, CostRole::kVerify, CostRole::kDraft}) {
      const TimedProgram& timed = role == CostRole::kDraft ? self : target;
      for (const PassShape pass : {PassShape{1, 1, 0}, {3, 3, 63}, {7, 18, 64}, {16, 64, 500}, {1, 40, 130}}) {
        if (role == CostRole::kTarget && pass.rows != pass.batch) continue;
        ASSERT_TRUE(timer.fits(timed, role, pass));
        const double ms = timer.time_ms(timed, role, pass, 3);
        EXPECT_TRUE(std::isfinite(ms) && ms > 0) << ms;
        passes += 3;
      }
    }
    EXPECT_EQ(timer.num_passes(), passes);
    EXPECT_GT(device->target().page_pool().num_in_use(), 0);
  }
  expect_all_pages_free(*device);
}

// The passes are real ones: no row of them has a key, value or logit that is not finite, and what stands on the pages is not
// zero.
TEST(PassTimer, RunsOnFiniteKeysAndValues) {
  const TinyModel model;
  const auto device = device_of(model, 100);
  PassTimer timer;
  timer.time_ms(target_of(*device), CostRole::kVerify, {4, 32, 200}, 1);
  const ForwardProgram& program = device->target().program();
  for (int row = 0; row < 32; ++row) {
    EXPECT_EQ(program.fault()[row], 0);
    for (int v = 0; v < model.shape().vocab_size; ++v)
      ASSERT_TRUE(std::isfinite(program.logits()[row * model.shape().vocab_size + v]));
  }
  // Context matters: the same tokens, at other positions behind other keys, have other logits.
  const std::vector<float> with_context(program.logits(), program.logits() + model.shape().vocab_size);
  timer.time_ms(target_of(*device), CostRole::kVerify, {4, 32, 0}, 1);
  EXPECT_NE(std::vector<float>(program.logits(), program.logits() + model.shape().vocab_size), with_context);
}

TEST(PassTimer, KnowsWhatFits) {
  const TinyModel model;  // 1024 positions
  const auto device = device_of(model, 10);
  const TimedProgram target = target_of(*device);
  PassTimer timer;
  EXPECT_TRUE(timer.fits(target, CostRole::kTarget, {9, 9, 0}));
  EXPECT_FALSE(timer.fits(target, CostRole::kTarget, {10, 10, 0})) << "a page for each, and one to read";
  EXPECT_TRUE(timer.fits(target, CostRole::kTarget, {1, 1, 1023}));
  EXPECT_FALSE(timer.fits(target, CostRole::kTarget, {1, 1, 1024}));
  EXPECT_FALSE(timer.fits(target, CostRole::kVerify, {1, 2, 1023}));
  EXPECT_TRUE(timer.fits(target, CostRole::kVerify, {1, 64, 60}));
  EXPECT_FALSE(timer.fits(target, CostRole::kVerify, {1, 65, 60})) << "more rows than the program has";
  EXPECT_FALSE(timer.fits(target, CostRole::kVerify, {2, 1, 60}));
  EXPECT_FALSE(timer.fits(target, CostRole::kDraft, {1, 10, 60})) << "siblings have pages of their own";
  // All pages, by turns read and written.
  timer.time_ms(target, CostRole::kTarget, {1, 1, 900}, 2);
  EXPECT_EQ(device->target().page_pool().num_free(), 0);
  EXPECT_TRUE(timer.fits(target, CostRole::kTarget, {9, 9, 70}));
  timer.time_ms(target, CostRole::kTarget, {9, 9, 70}, 2);
  timer.time_ms(target, CostRole::kTarget, {1, 1, 900}, 2);
}

// ---- Calibration -----------------------------------------------------------------------------------------------------------

void expect_sane(const CostModel& model, bool drafts) {
  for (const CostRole role : {CostRole::kTarget, CostRole::kVerify, CostRole::kDraft}) {
    if (role == CostRole::kDraft && !drafts) {
      EXPECT_EQ(model.draft_ms(8, 100), 0);
      continue;
    }
    const PassShape base{2, 4, 100};
    const double ms = model.time_ms(role, base);
    EXPECT_TRUE(std::isfinite(ms) && ms > 0) << ms;
    for (const PassShape more : {PassShape{4, 4, 100}, {2, 8, 100}, {2, 4, 1000}}) EXPECT_GE(model.time_ms(role, more), ms);
  }
}

TEST(CostCalibration, OneModelADrafterWithTheSameTarget) {
  const TinyModel model;
  const auto device = device_of(model, 300);
  const TimedProgram target = target_of(*device);
  const std::vector<std::optional<TimedProgram>> drafters = {std::nullopt, self_of(*device)};
  {
    PassTimer timer;
    const auto costs = calibrate_costs(target, drafters, {.max_batch = 32, .seconds = 1e9}, &timer);
    ASSERT_TRUE(costs.ok()) << costs.status().message();
    ASSERT_EQ(costs.value().size(), 2u);
    EXPECT_EQ(timer.num_passes(), 12 + 8 + 20);
    expect_sane(costs.value()[0], false);
    expect_sane(costs.value()[1], true);
    const TinyShape& s = model.shape();
    const double layer = s.hidden_size * (2.0 * (s.num_heads + s.num_kv_heads) * s.head_dim + 3 * s.intermediate_size);
    const double share = s.hidden_size * s.vocab_size / (s.num_layers * layer + s.hidden_size * s.vocab_size);
    for (const CostRole role : {CostRole::kTarget, CostRole::kVerify, CostRole::kDraft}) {
      EXPECT_DOUBLE_EQ(costs.value()[1].role(role).shares.logits, share);
    }
    EXPECT_EQ(costs.value()[0].role(CostRole::kDraft).shares.logits, 0);
    for (const PassShape pass : {PassShape{1, 1, 10}, {16, 48, 700}}) {
      EXPECT_EQ(costs.value()[0].time_ms(CostRole::kVerify, pass), costs.value()[1].time_ms(CostRole::kVerify, pass));
    }
  }
  expect_all_pages_free(*device);
}

TEST(CostCalibration, SlowModelsGetMoreTime) {
  const CalibrationOptions options = {.max_batch = 1, .seconds = 2};
  EXPECT_DOUBLE_EQ(calibration_seconds(options, 0.001), 2);
  EXPECT_DOUBLE_EQ(calibration_seconds(options, 0.08), 2);
  EXPECT_DOUBLE_EQ(calibration_seconds(options, 0.4), 10) << "25 rows";
  EXPECT_DOUBLE_EQ(calibration_seconds(options, 3), 20) << "ten times what was asked";
  EXPECT_DOUBLE_EQ(calibration_seconds({.max_batch = 1, .seconds = 0}, 3), 0);
}

TEST(CostCalibration, MediansOfEveryShape) {
  const auto pass = [](int32_t drafter, double rows, double ms) {
    return TimedPass{drafter, {CostRole::kDraft, {1, rows, 0}, ms}};
  };
  const std::vector<TimedPass> passes = {pass(0, 1, 5), pass(1, 1, 7),  pass(0, 1, 4),
                                         pass(0, 2, 9), pass(0, 1, 99), pass(1, 1, 6)};
  const std::vector<TimedPass> medians = medians_of(passes);
  ASSERT_EQ(medians.size(), 3u);
  EXPECT_EQ(medians[0].point.ms, 5);
  EXPECT_EQ(medians[1].point.ms, 6);
  EXPECT_EQ(medians[2].point.ms, 9);
}

// Without time every shape runs once; without room shapes shrink until they fit.
TEST(CostCalibration, MakesDoWithLittle) {
  const TinyModel model;
  for (const int32_t num_pages : {2, 3, 9}) {
    const auto device = device_of(model, num_pages, {.max_rows = 3, .max_logit_rows = 2});
    PassTimer timer;
    const auto costs = calibrate_costs(target_of(*device), {}, {.max_batch = 1, .seconds = 0}, &timer);
    ASSERT_TRUE(costs.ok()) << costs.status().message();
    ASSERT_EQ(costs.value().size(), 1u);
    EXPECT_EQ(timer.num_passes(), 12);
    expect_sane(costs.value()[0], false);
  }
  const auto device = device_of(model, 1);
  PassTimer timer;
  const auto costs = calibrate_costs(target_of(*device), {}, {}, &timer);
  ASSERT_FALSE(costs.ok());
  EXPECT_EQ(costs.status().code(), StatusCode::kNeverFits);
}

}  // namespace
}  // namespace otr
