#include "spec/cost_correction.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace otr {
namespace {

TEST(CostCorrection, SaysNothingBeforeItHasLearnt) {
  CostCorrection correction;
  EXPECT_EQ(correction.factor(1), 1.0);
  correction.learn(0, 1, 1);
  correction.learn(8, 0, 1);
  correction.learn(8, 1, 0);
  correction.learn(8, 1, std::nan(""));
  EXPECT_EQ(correction.factor(8), 1.0);
}

TEST(CostCorrection, InterpolatesBetweenWhatWasSeen) {
  CostCorrection correction;
  for (int i = 0; i < 200; ++i) correction.learn(4, 10, 10), correction.learn(64, 10, 40);
  EXPECT_NEAR(correction.factor(4), 1, 0.02);
  EXPECT_NEAR(correction.factor(1), 1, 0.02);
  EXPECT_NEAR(correction.factor(64), 4, 0.3);
  EXPECT_NEAR(correction.factor(1000), 4, 0.3);
  EXPECT_NEAR(correction.factor(16), 2, 0.15);  // half of the way, in logarithms of both
  for (double rows = 1; rows < 100; rows *= 1.1) EXPECT_LE(correction.factor(rows), correction.factor(1.1 * rows) + 1e-12);
}

// A third of the passes takes ten times as long: the others are what is foretold.
TEST(CostCorrection, FollowsTheMedian) {
  CostCorrection correction;
  std::mt19937 random(1);
  std::normal_distribution<double> noise(0, 0.1);
  for (int i = 0; i < 300; ++i) correction.learn(8, 10, 15 * std::exp(noise(random)) * (random() % 3 == 0 ? 10 : 1));
  EXPECT_NEAR(correction.factor(8), 15 / 10.0 * std::exp(0.07), 0.15);  // the median of two thirds and a tail lies above theirs
  for (int i = 0; i < 300; ++i) correction.learn(8, 10, 10);
  EXPECT_NEAR(correction.factor(8), 1, 0.05);  // and what has changed is followed
}

// A hint holds where nothing else was seen, and there alone.
TEST(CostCorrection, HintsGiveWayToWhatWasSeen) {
  CostCorrection correction;
  for (int i = 0; i < 100; ++i) correction.learn(256, 10, 20), correction.hint(64, 10, 10);
  EXPECT_NEAR(correction.factor(256), 2, 0.1);
  EXPECT_NEAR(correction.factor(64), 1, 0.02);
  EXPECT_NEAR(correction.factor(128), std::sqrt(2.0), 0.1);
  for (int i = 0; i < 100; ++i) correction.hint(256, 10, 10);
  EXPECT_NEAR(correction.factor(256), 2, 0.1);
  for (int i = 0; i < 3; ++i) correction.learn(64, 10, 30);  // the hundred hints do not count any more
  EXPECT_GT(correction.factor(64), 2.3);
}

// Where no pass of this kind was seen for long, as at first.
TEST(CostCorrection, HintsCountAgainAfterALongTime) {
  CostCorrection correction;
  for (int i = 0; i < 10; ++i) correction.learn(64, 10, 10);
  for (int i = 0; i < 8; ++i) correction.hint(64, 10, 20, true);
  EXPECT_GT(correction.factor(64), 1.15);
  EXPECT_LT(correction.factor(64), 1.6);  // no more than as many passes
  const double before = correction.factor(64);
  correction.hint(64, 10, 40);
  EXPECT_EQ(correction.factor(64), before);
}

// What is wrong of few and of many rows is so of those between, until enough of them were seen.
TEST(CostCorrection, ItsNeighboursCountWhereLittleWasSeen) {
  CostCorrection correction;
  for (int i = 0; i < 20; ++i) correction.learn(64, 10, 20), correction.learn(256, 10, 20);
  EXPECT_NEAR(correction.factor(128), 2, 0.01);
  correction.learn(128, 10, 10);
  EXPECT_NEAR(correction.factor(128), std::pow(2, 1 / 3.0), 0.01);
  correction.learn(128, 10, 10);
  EXPECT_NEAR(correction.factor(128), 1, 0.1);
  correction.learn(4096, 10, 10);
  EXPECT_NEAR(correction.factor(4096), std::pow(2, 1 / 3.0), 0.01);
}

TEST(CostCorrection, IsBounded) {
  CostCorrection correction;
  for (int i = 0; i < 100; ++i) correction.learn(1, 1e-6, 1e6), correction.learn(1024, 1e6, 1e-6);
  EXPECT_LE(correction.factor(1), CostCorrection::kMost);
  EXPECT_GE(correction.factor(1024), 1 / CostCorrection::kMost);
}

}  // namespace
}  // namespace otr
