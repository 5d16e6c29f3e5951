#include "spec/length_hazard.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

namespace otr {
namespace {

TEST(LengthHazard, BelievesInAsManyAgainBeforeAnythingIsSeen) {
  LengthHazard hazard;
  hazard.see_running({});
  EXPECT_DOUBLE_EQ(hazard.remaining(1), 1);
  EXPECT_DOUBLE_EQ(hazard.remaining(300), 300);
}

// Lengths without a memory have the same mean left at every length; what still runs must not be taken for ended.
TEST(LengthHazard, FindsTheRateOfExponentialLengths) {
  std::mt19937 random(1);
  std::exponential_distribution<double> length(1.0 / 200);
  LengthHazard hazard;
  std::vector<int32_t> running;
  for (int i = 0; i < 20000; ++i) {
    const int32_t l = 1 + static_cast<int32_t>(length(random));
    if (l > 400) running.push_back(400);  // seen only so far
    else hazard.note_end(l);
  }
  hazard.see_running(running);
  for (const int32_t at : {1, 50, 100, 200}) EXPECT_NEAR(hazard.remaining(at), 200, 16) << at;
}

// Short ones and a few long ones: who has outlived the short ones is a long one.
TEST(LengthHazard, ALongTailHasMoreToCome) {
  LengthHazard hazard;
  for (int i = 0; i < 90; ++i) hazard.note_end(40 + i % 20);
  for (int i = 0; i < 10; ++i) hazard.note_end(1000);
  hazard.see_running({});
  const double fresh = 0.9 * 49 + 0.1 * 999;
  EXPECT_NEAR(hazard.remaining(1), fresh, 0.1 * fresh);
  EXPECT_NEAR(hazard.remaining(100), 900 * 10 / 11.0, 90);
  EXPECT_GT(hazard.remaining(100), 5 * hazard.remaining(1));
}

TEST(LengthHazard, LetsOldStepsFade) {
  LengthHazard hazard;
  for (int i = 0; i < 1000; ++i) hazard.note_end(1000);
  for (int step = 0; step < 8; ++step) hazard.end_step();
  for (int i = 0; i < 1000; ++i) hazard.note_end(100);
  hazard.see_running({});
  EXPECT_NEAR(hazard.remaining(1), 100, 10);
}

TEST(LengthHazard, TakesAnyLength) {
  LengthHazard hazard;
  for (const int32_t length : {0, 1, 2147483647}) hazard.note_end(length);
  hazard.see_running(std::vector<int32_t>{0, 5, 2147483647});
  for (const int32_t length : {0, 1, 1000, 2147483647}) {
    EXPECT_TRUE(std::isfinite(hazard.remaining(length)));
    EXPECT_GT(hazard.remaining(length), 0);
  }
}

TEST(LengthHazard, TheShortestAndTheLongestLengths) {
  LengthHazard hazard;
  hazard.see_running({});
  EXPECT_DOUBLE_EQ(hazard.remaining(0), 1);
  for (int i = 0; i < 100; ++i) hazard.note_end(0);
  hazard.see_running({});
  EXPECT_DOUBLE_EQ(hazard.remaining(1000), 1000);  // nobody came so far
  for (int i = 0; i < 100; ++i) hazard.note_end(2147483647);
  hazard.see_running({});
  EXPECT_GT(hazard.remaining(1000), 1e7);  // where the last bucket begins, 2^24
}

TEST(LengthHazard, RunningOnesCountAsTheyAre) {
  LengthHazard once, twice;
  once.note_end(50);
  twice.note_end(50);
  const std::vector<int32_t> running(10, 400);
  once.see_running(running);
  twice.see_running(running);
  twice.see_running(running);
  EXPECT_EQ(twice.remaining(1), once.remaining(1));
  EXPECT_GT(once.remaining(1), 1500);  // 10 times 400 tokens, and one end
}

// Of the last step's ends two are worth one of this step's.
TEST(LengthHazard, AStepAgoCountsHalf) {
  LengthHazard hazard;
  for (int i = 0; i < 2000; ++i) hazard.note_end(1000);
  hazard.end_step();
  for (int i = 0; i < 1000; ++i) hazard.note_end(100);
  hazard.see_running({});
  EXPECT_NEAR(hazard.remaining(1), 550, 30);
}

}  // namespace
}  // namespace otr
