// What is learnt from observed against predicted times: right in the end, whatever single passes do, and never wild.

#include "spec/cost_correction.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

namespace otr {
namespace {

constexpr CostRole kRoles[] = {CostRole::kTarget, CostRole::kDraft, CostRole::kVerify};

TEST(CostCorrection, SaysNothingBeforeThreePasses) {
  CostCorrection c;
  for (const CostRole role : kRoles) EXPECT_EQ(c.factor(role, 8), 1);
  c.observe(CostRole::kTarget, 8, 10, 20);
  c.observe(CostRole::kTarget, 8, 10, 20);
  EXPECT_EQ(c.factor(CostRole::kTarget, 8), 1);
  c.observe(CostRole::kTarget, 8, 10, 20);
  EXPECT_NEAR(c.factor(CostRole::kTarget, 8), 2, 1e-6);
}

// With noise of 10 %: within 6 %, for every role and bucket by itself.
TEST(CostCorrection, FindsTheFactorOfEveryBucket) {
  std::mt19937 random(1);
  std::normal_distribution<double> noise(0, 0.1);
  CostCorrection c;
  const auto truth = [](CostRole role, double rows) { return 0.7 + 0.2 * static_cast<double>(role) + 0.1 * std::log2(rows); };
  for (int pass = 0; pass < 400; ++pass) {
    for (const CostRole role : kRoles) {
      for (double rows = 1; rows <= 512; rows *= 2)
        c.observe(role, rows * 1.4, 5, 5 * truth(role, rows) * std::exp(noise(random)));
    }
  }
  for (const CostRole role : kRoles) {
    for (double rows = 1; rows <= 512; rows *= 2) {
      EXPECT_NEAR(c.factor(role, rows) / truth(role, rows), 1, 0.06);
      EXPECT_EQ(c.factor(role, rows), c.factor(role, std::floor(rows * 1.99))) << "one bucket";
    }
  }
}

// Whatever two of five passes take, the factor is that of the others.
TEST(CostCorrection, OutliersChangeNothing) {
  std::mt19937 random(2);
  for (const double outlier : {1e-6, 0.1, 3.0, 1e9}) {
    CostCorrection calm, disturbed;
    for (int pass = 0; pass < 200; ++pass) {
      const double observed = 12 * std::exp(0.02 * (static_cast<double>(random() % 100) / 50 - 1));
      calm.observe(CostRole::kVerify, 100, 10, observed);
      disturbed.observe(CostRole::kVerify, 100, 10, pass % 5 == 1 || pass % 5 == 3 ? 12 * outlier : observed);
      if (pass >= 4) {
        EXPECT_NEAR(disturbed.factor(CostRole::kVerify, 100) / calm.factor(CostRole::kVerify, 100), 1, 0.03) << pass;
      }
    }
  }
}

// A machine that slows down for good: half way after 16 passes at the latest, all the way in the end.
TEST(CostCorrection, FollowsWhatLasts) {
  CostCorrection c;
  for (int pass = 0; pass < 1000; ++pass) c.observe(CostRole::kDraft, 3, 1, 1);
  EXPECT_NEAR(c.factor(CostRole::kDraft, 3), 1, 1e-6);
  for (int pass = 0; pass < 16; ++pass) c.observe(CostRole::kDraft, 3, 1, 2);
  EXPECT_GT(c.factor(CostRole::kDraft, 3), std::sqrt(2.0));
  double before = 0;
  for (int pass = 0; pass < 200; ++pass) {
    EXPECT_GE(c.factor(CostRole::kDraft, 3), before) << "step by step, never back";
    before = c.factor(CostRole::kDraft, 3);
    c.observe(CostRole::kDraft, 3, 1, 2);
  }
  EXPECT_NEAR(before, 2, 0.001);
}

TEST(CostCorrection, BucketsWithoutPassesFollowTheirRole) {
  CostCorrection c;
  for (int pass = 0; pass < 50; ++pass) c.observe(CostRole::kTarget, 4, 10, 15);
  EXPECT_NEAR(c.factor(CostRole::kTarget, 300), 1.5, 1e-6);
  EXPECT_EQ(c.factor(CostRole::kDraft, 4), 1) << "no other role";
}

TEST(CostCorrection, IsBoundedWhateverItSees) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity(), kNan = std::numeric_limits<double>::quiet_NaN();
  const double odd[] = {0, -1, kNan, kInfinity, -kInfinity, 1e-308, 1e308, 5e-324, 1, 1e9};
  std::mt19937 random(3);
  CostCorrection c;
  for (int pass = 0; pass < 20'000; ++pass) {
    const auto any = [&] { return odd[random() % std::size(odd)]; };
    const CostRole role = kRoles[random() % 3];
    c.observe(role, any(), any(), any());
    const double factor = c.factor(role, any());
    ASSERT_TRUE(factor >= 1 / CostCorrection::kMost - 1e-6 && factor <= CostCorrection::kMost + 1e-6) << factor;
  }
  CostCorrection untouched;
  for (const double ms : {0.0, -1.0, kNan, kInfinity}) {
    for (int pass = 0; pass < 9; ++pass) {
      untouched.observe(CostRole::kTarget, 1, 10, ms);
      untouched.observe(CostRole::kTarget, 1, ms, 10);
    }
  }
  EXPECT_EQ(untouched.factor(CostRole::kTarget, 1), 1);
}

}  // namespace
}  // namespace otr
