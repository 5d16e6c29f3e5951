#include "spec/cost_fit.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

namespace otr {
namespace {

// An A100-like model; what the target and its verification share is the same.
CostModel truth(double overlap) {
  CostModel model;
  model.roles[static_cast<size_t>(CostRole::kTarget)] = {9.5, 1.2e-5, 0.058, 1.8e-6, 0.03, 1e-4, overlap};
  model.roles[static_cast<size_t>(CostRole::kDraft)] = {4.3, 1.0e-5, 0.090, 0, 0.02, 1e-4, overlap};
  model.roles[static_cast<size_t>(CostRole::kVerify)] = {9.5, 1.2e-5, 0.058, 1.8e-6, 0.03, 6e-4, overlap};
  return model;
}

// 7 batches x 4 contexts: the target once, a level and a verification at each of these depths.
std::vector<CostPoint> points_of(const CostModel& model, const std::vector<int>& depths) {
  std::vector<CostPoint> points;
  const auto add = [&](CostRole role, const PassShape& pass) { points.push_back({role, pass, model.time_ms(role, pass)}); };
  for (const double batch : {1, 2, 4, 8, 16, 32, 64}) {
    for (const double context : {256, 1024, 2048, 4096}) {
      add(CostRole::kTarget, {batch, batch, context});
      for (const int depth : depths) {
        add(CostRole::kDraft, {batch, batch, context});
        add(CostRole::kVerify, {batch, batch * (depth + 1), context});
      }
    }
  }
  return points;
}

double worst_of(const CostModel& model, const std::vector<CostPoint>& points) {
  double worst = 0;
  for (const Goodness& goodness : goodness_of(model, points)) worst = std::max(worst, goodness.worst_error);
  return worst;
}

// 3 % noise, and one point in 20 that is half or twice what it should be.
void disturb(uint32_t seed, std::vector<CostPoint>* points) {
  std::mt19937 random(seed);
  std::normal_distribution<double> noise(0, 0.03);
  for (size_t i = 0; i < points->size(); ++i) {
    (*points)[i].ms *= std::exp(noise(random));
    if (random() % 20 == 0) (*points)[i].ms *= random() % 2 == 0 ? 0.5 : 2;
  }
}

TEST(CostFit, FindsTheModelOfPointsWithoutNoise) {
  for (const double overlap : {0.0, 0.5, 1.0}) {
    const CostModel model = truth(overlap);
    const auto fit = fit_cost_model(points_of(model, {3, 15}));
    ASSERT_TRUE(fit.ok()) << fit.status().message();
    EXPECT_LT(worst_of(fit.value().model, points_of(model, {1, 3, 7, 11, 15, 23})), 1e-4) << overlap;
    for (const Goodness& goodness : fit.value().goodness) EXPECT_GT(goodness.r2, 0.999999);
    for (const double residual : fit.value().residuals) EXPECT_LT(std::abs(residual), 1e-4);
    const RoleCost &found = fit.value().model.role(CostRole::kVerify), &known = model.role(CostRole::kVerify);
    EXPECT_NEAR(found.weights_ms / known.weights_ms, 1, 0.001);
    EXPECT_NEAR(found.kv_ms / known.kv_ms, 1, 0.05);
    EXPECT_NEAR(found.row_ms / known.row_ms, 1, 0.001);
    EXPECT_NEAR(found.attention_ms / known.attention_ms, 1, 0.01);
    EXPECT_NEAR(found.sample_ms / known.sample_ms, 1, 0.02);
    EXPECT_NEAR(found.context_ms / known.context_ms, 1, 0.01);
    EXPECT_NEAR(found.overlap, known.overlap, 1e-9);
  }
}

// Of mixtures, whose passes read more the more rows they have. Fitted as dense models, they are far off.
TEST(CostFit, FindsMixtures) {
  for (const double overlap : {0.0, 0.5, 1.0}) {
    CostModel model = truth(overlap);
    const FitShares shares{{.logits = 0.1, .experts = 0.9, .passed_by = 0.9},
                           {.logits = 0.3, .experts = 0.5, .passed_by = 0.5}};
    for (RoleCost& role : model.roles) role.shares = shares.target;
    model.roles[static_cast<size_t>(CostRole::kDraft)].shares = shares.drafter;
    const std::vector<CostPoint> points = points_of(model, {3, 15});
    const auto fit = fit_cost_model(points, 0, shares), dense = fit_cost_model(points);
    ASSERT_TRUE(fit.ok()) << fit.status().message();
    EXPECT_LT(worst_of(fit.value().model, points_of(model, {1, 3, 7, 11, 15, 23})), 2e-4) << overlap;
    EXPECT_GT(worst_of(dense.value().model, points), 0.1) << overlap;
    const RoleCost &found = fit.value().model.role(CostRole::kVerify), &known = model.role(CostRole::kVerify);
    EXPECT_NEAR(found.weights_ms / known.weights_ms, 1, 0.002);
    EXPECT_NEAR(found.row_ms / known.row_ms, 1, 0.002);
    EXPECT_EQ(found.shares.passed_by, 0.9);
    EXPECT_EQ(fit.value().model.role(CostRole::kDraft).shares.experts, 0.5);
  }
}

TEST(CostFit, RecoversTheModelFromNoiseAndOutliers) {
  for (const double overlap : {0.5, 1.0}) {
    for (const uint32_t seed : {1u, 2u, 3u}) {
      const CostModel model = truth(overlap);
      std::vector<CostPoint> points = points_of(model, {3, 7, 15});
      disturb(seed, &points);
      const auto fit = fit_cost_model(points);
      ASSERT_TRUE(fit.ok()) << fit.status().message();
      const RoleCost &found = fit.value().model.role(CostRole::kVerify), &known = model.role(CostRole::kVerify);
      EXPECT_NEAR(found.weights_ms / known.weights_ms, 1, 0.03);
      EXPECT_NEAR(found.row_ms / known.row_ms, 1, 0.05);
      EXPECT_NEAR(found.context_ms / known.context_ms, 1, 0.15);
      EXPECT_NEAR(found.overlap, known.overlap, 0.2);
      // Without the noise, at depths that were not measured too: better than any one measurement.
      for (const Goodness& goodness : goodness_of(fit.value().model, points_of(model, {3, 5, 7, 11, 15}))) {
        EXPECT_LT(goodness.median_error, 0.02);
        EXPECT_LT(goodness.worst_error, 0.05);
      }
    }
  }
}

// SpecActor: times that are affine in the batch are fitted as such.
TEST(CostFit, AffineTimes) {
  std::vector<CostPoint> points;
  for (const double batch : {1, 2, 4, 8, 16, 32, 64}) {
    points.push_back({CostRole::kTarget, {batch, batch, 500}, 11 + 0.2 * batch});
    points.push_back({CostRole::kVerify, {batch, 6 * batch, 500}, 11 + 0.3 * batch});
    points.push_back({CostRole::kDraft, {batch, batch, 500}, 2 + 0.1 * batch});
  }
  const auto fit = fit_cost_model(points);
  ASSERT_TRUE(fit.ok()) << fit.status().message();
  for (const double batch : {3.0, 24.0, 48.0}) {
    EXPECT_NEAR(fit.value().model.target_ms(batch, 500), 11 + 0.2 * batch, 0.01);
    EXPECT_NEAR(fit.value().model.verify_ms(batch, 6 * batch, 500), 11 + 0.3 * batch, 0.01);
    EXPECT_NEAR(fit.value().model.draft_ms(batch, 500), 2 + 0.1 * batch, 0.01);
  }
}

// Of passes that were measured at half and at twice their time as often, the model says neither.
TEST(CostFit, TakesTwiceTooLongLikeTwiceTooShort) {
  CostModel model;
  for (RoleCost& role : model.roles) role.weights_ms = 8;
  std::vector<CostPoint> points = points_of(model, {3, 7});
  const std::vector<CostPoint> truth = points;
  for (CostPoint& point : points) {
    const int half = (std::ilogb(point.pass.batch) + std::ilogb(point.pass.context)) % 2;
    point.ms *= half == 0 ? 2 : 0.5;
  }
  const auto fit = fit_cost_model(points);
  ASSERT_TRUE(fit.ok()) << fit.status().message();
  double sum = 0;
  for (const CostPoint& point : truth) sum += std::log(fit.value().model.time_ms(point.role, point.pass) / point.ms);
  EXPECT_LT(std::abs(sum / static_cast<double>(truth.size())), 0.1);
}

// Whatever is measured, here times that fall with batch and context, the model never falls.
TEST(CostFit, NeverFallsInBatchOrContext) {
  std::vector<CostPoint> points = points_of(truth(0.5), {3, 7});
  for (CostPoint& point : points) point.ms = 30 - 0.2 * point.pass.batch - 1e-3 * point.pass.context;
  const auto fit = fit_cost_model(points);
  ASSERT_TRUE(fit.ok()) << fit.status().message();
  const CostModel& model = fit.value().model;
  for (const double batch : {1, 8, 64, 500}) {
    for (const double context : {0, 1000, 30000}) {
      for (const CostRole role : {CostRole::kTarget, CostRole::kDraft, CostRole::kVerify}) {
        const double time = model.time_ms(role, {batch, 4 * batch, context});
        EXPECT_GT(time, 0);
        EXPECT_GE(model.time_ms(role, {2 * batch, 8 * batch, context}), time - 1e-9);
        EXPECT_GE(model.time_ms(role, {batch, 4 * batch, context + 500}), time - 1e-9);
      }
    }
  }
}

TEST(CostFit, CommunicationIsGivenAndTheDrafterMayLack) {
  CostModel model = truth(1);
  model.comm_ms = 2;
  std::vector<CostPoint> points = points_of(model, {3, 15});
  std::erase_if(points, [](const CostPoint& point) { return point.role == CostRole::kDraft; });
  const auto fit = fit_cost_model(points, 2);
  ASSERT_TRUE(fit.ok()) << fit.status().message();
  EXPECT_EQ(fit.value().model.comm_ms, 2);
  EXPECT_NEAR(fit.value().model.role(CostRole::kTarget).weights_ms, 9.5, 0.01);
  EXPECT_EQ(fit.value().model.draft_ms(8, 1000), 2);
  EXPECT_EQ(fit.value().goodness[static_cast<size_t>(CostRole::kDraft)].points, 0);
}

TEST(CostFit, IsDeterministic) {
  std::vector<CostPoint> points = points_of(truth(0.5), {3, 7});
  disturb(7, &points);
  const auto one = fit_cost_model(points), other = fit_cost_model(points);
  ASSERT_TRUE(one.ok() && other.ok());
  EXPECT_EQ(std::memcmp(&one.value().model, &other.value().model, sizeof(CostModel)), 0);
}

// Errors of +10, -10 and 0 % of 10, 20 and 30 ms: squares 1 + 4 + 0 against 200 around the mean.
TEST(CostFit, GoodnessByHand) {
  CostModel model;
  model.roles[static_cast<size_t>(CostRole::kTarget)] = {0, 0, 0, 0, 1, 0, 1};
  const std::vector<CostPoint> points = {
      {CostRole::kTarget, {11, 11, 0}, 10}, {CostRole::kTarget, {18, 18, 0}, 20}, {CostRole::kTarget, {30, 30, 0}, 30}};
  const Goodness goodness = goodness_of(model, points)[static_cast<size_t>(CostRole::kTarget)];
  EXPECT_EQ(goodness.points, 3);
  EXPECT_NEAR(goodness.r2, 1 - 5.0 / 200, 1e-12);
  EXPECT_NEAR(goodness.median_error, 0.1, 1e-12);
  EXPECT_NEAR(goodness.worst_error, 0.1, 1e-12);
}

TEST(CostFit, RefusesBadPoints) {
  const std::vector<CostPoint> good = points_of(truth(0.5), {3});
  const auto refused = [&](auto change, double comm_ms = 0) {
    std::vector<CostPoint> points = good;
    change(&points);
    const auto fit = fit_cost_model(points, comm_ms);
    return !fit.ok() && fit.status().code() == StatusCode::kInvalidArgument;
  };
  using Points = std::vector<CostPoint>;
  const double nan = std::numeric_limits<double>::quiet_NaN(), infinity = std::numeric_limits<double>::infinity();
  EXPECT_FALSE(refused([](Points*) {}));
  EXPECT_TRUE(refused([](Points* p) { p->clear(); }));
  EXPECT_TRUE(refused([](Points* p) { std::erase_if(*p, [](const CostPoint& c) { return c.role == CostRole::kVerify; }); }));
  EXPECT_TRUE(refused([](Points* p) { std::erase_if(*p, [](const CostPoint& c) { return c.role == CostRole::kTarget; }); }));
  EXPECT_TRUE(refused(
      [](Points* p) { std::erase_if(*p, [](const CostPoint& c) { return c.role == CostRole::kDraft && c.pass.batch > 1; }); }));
  EXPECT_TRUE(refused([&](Points* p) { (*p)[5].ms = nan; }));
  EXPECT_TRUE(refused([&](Points* p) { (*p)[5].ms = infinity; }));
  EXPECT_TRUE(refused([](Points* p) { (*p)[5].ms = 0; }));
  EXPECT_TRUE(refused([](Points* p) { (*p)[5].ms = -3; }));
  EXPECT_TRUE(refused([](Points* p) { (*p)[5].ms = 1e300; }));
  EXPECT_TRUE(refused([&](Points* p) { (*p)[5].pass.context = nan; }));
  EXPECT_TRUE(refused([](Points* p) { (*p)[5].pass.context = -1; }));
  EXPECT_TRUE(refused([](Points* p) { (*p)[5].pass.batch = 0; }));
  EXPECT_TRUE(refused([](Points* p) { (*p)[5].pass.rows = (*p)[5].pass.batch - 1; }));
  EXPECT_TRUE(refused([](Points* p) { (*p)[5].role = static_cast<CostRole>(3); }));
  EXPECT_TRUE(refused([](Points*) {}, -1));
  EXPECT_TRUE(refused([](Points*) {}, nan));
  EXPECT_TRUE(refused([](Points*) {}, 5));  // a drafter's pass takes 4.3 ms
}

}  // namespace
}  // namespace otr
