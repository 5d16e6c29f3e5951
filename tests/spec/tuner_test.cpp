#include "spec/tuner.h"

#include <gtest/gtest.h>

#include <array>
#include <random>

namespace otr {
namespace {

using Arms = std::array<Tuner::Arm, 3>;

TEST(Tuner, TrustsTheModelFirst) {
  Tuner tuner;
  const Arms arms = {{{1.0, 1.0, 0}, {1.2, 1.3, 5}, {1.1, 1.2, 5}}};
  EXPECT_EQ(tuner.choose(4, arms, 10), 1);
  EXPECT_FALSE(tuner.explored());
  EXPECT_EQ(tuner.factor(4, 1), 1.0);
}

// The model holds arm 1 for 10 % better than arm 2; in truth it is 20 % worse.
TEST(Tuner, LearnsWhatTheModelGetsWrong) {
  Tuner tuner;
  const Arms arms = {{{1.0, 1.0, 0}, {1.32, 1.4, 1}, {1.2, 1.4, 1}}};
  std::mt19937 random(1);
  std::normal_distribution<double> noise(1, 0.3);
  int last_hundred_right = 0;
  for (int tick = 0; tick < 600; ++tick) {
    const int arm = tuner.choose(4, arms, 10);
    const double tokens = 10 * arms[static_cast<size_t>(arm)].value, truth = arm == 1 ? 0.72 : 1.0;
    tuner.observe(4, arm, tokens, 10, tokens * truth * std::max(0.0, noise(random)), 10);
    last_hundred_right += tick >= 500 && arm == 2;
  }
  EXPECT_GE(last_hundred_right, 95);
  EXPECT_LT(tuner.factor(4, 1), 0.85);
  EXPECT_EQ(tuner.factor(64, 1), 1.0);  // of other batches it has learnt nothing
}

// Looking at arms that are worth little costs no more than its share of the time, and what is hopeless is never looked at.
TEST(Tuner, ExploresWithinItsAccount) {
  Tuner tuner;
  const Arms arms = {{{1.0, 1.0, 0}, {0, 1.5, 20}, {0, 0.9, 0.1}}};
  double spent = 0, time = 0;
  int explored = 0;
  for (int tick = 0; tick < 20000; ++tick) {
    const int arm = tuner.choose(1, arms, 10);
    ASSERT_NE(arm, 2);
    EXPECT_EQ(tuner.explored(), arm == 1);
    time += 10;
    if (arm == 1) ++explored, spent += 20;
    tuner.observe(1, arm, 10, 10, 10, 10);
    ASSERT_LE(spent, Tuner::kExploring * time + 2 * 10 + 1e-6) << tick;
  }
  EXPECT_GT(explored, 50);
}

// What costs next to nothing is looked at although nothing is hoped of it now, each tick until it is known; but never on
// credit.
TEST(Tuner, LooksAtWhatItIsCuriousAbout) {
  Tuner tuner;
  const auto arms = [](bool curious, double extra_ms) {
    return Arms{{{1.0, 1.0, 0}, {0, 0, extra_ms, curious}, {0, 0.9, 0.1}}};
  };
  for (int tick = 0; tick < 5; ++tick) {
    EXPECT_EQ(tuner.choose(1, arms(false, 1), 10), 0);
    EXPECT_EQ(tuner.choose(1, arms(true, 1), 10), 1);
    EXPECT_TRUE(tuner.explored());
  }
  EXPECT_EQ(tuner.choose(1, arms(true, 100), 10), 0);
}

// What a long good phase has not spent is not there for a bad one.
TEST(Tuner, DoesNotSaveForLong) {
  Tuner tuner;
  const Arms nothing_new = {{{1.0, 1.0, 0}, {0, 0.5, 1}, {0, 0.9, 0.1}}},
             curious = {{{1.0, 1.0, 0}, {0, 0, 1, true}, {0, 0.9, 0.1}}};
  for (int tick = 0; tick < 50'000; ++tick) ASSERT_EQ(tuner.choose(1, nothing_new, 10), 0);
  int looks = 0;
  for (int tick = 0; tick < 1000; ++tick) looks += tuner.choose(1, curious, 10) == 1;
  EXPECT_GT(looks, 40);
  EXPECT_LE(looks * 1, Tuner::kExploring * 1000 * 10 + 5 * 10);  // milliseconds: four ticks' saving, and what comes in
}

// Told to trust the model, it neither corrects it nor looks at what it holds for worse.
TEST(Tuner, OffTheModelsWordCounts) {
  Tuner tuner(false);
  const Arms arms = {{{1.0, 1.0, 0}, {1.2, 9.0, 0}, {1.1, 9.0, 0, true}}};
  for (int tick = 0; tick < 300; ++tick) {
    ASSERT_EQ(tuner.choose(4, arms, 10), 1);
    ASSERT_FALSE(tuner.explored());
    tuner.observe(4, 1, 10, 10, 1, 10);
    ASSERT_EQ(tuner.factor(4, 1), 1.0);
  }
}

// A hoped-for arm is looked at when it was never seen, and 64 ticks after each look.
TEST(Tuner, LooksAgainAtWhatIsStale) {
  Tuner tuner;
  const Arms arms = {{{1.0, 1.0, 0}, {0, 1.5, 0}, {0, 0.5, 0}}};
  for (int tick = 0; tick < 200; ++tick) ASSERT_EQ(tuner.choose(4, arms, 10), tick % 64 == 0 ? 1 : 0) << tick;
}

// Of two it looks at the one that it has not seen for longer.
TEST(Tuner, LooksAtTheOldestFirst) {
  Tuner tuner;
  const Arms arms = {{{1.0, 1.0, 0}, {0, 0, 0, true}, {0, 0, 0, true}}};
  for (int tick = 0; tick < 10; ++tick) ASSERT_EQ(tuner.choose(4, arms, 10), 1 + tick % 2) << tick;
}

// Some fifty ticks count: what was wrong long before is forgotten.
TEST(Tuner, FollowsWhatHasChanged) {
  Tuner tuner;
  for (int tick = 0; tick < 300; ++tick) tuner.observe(4, 1, 10, 10, 6, 10);
  EXPECT_LT(tuner.factor(4, 1), 0.7);
  for (int tick = 0; tick < 300; ++tick) tuner.observe(4, 1, 10, 10, 10, 10);
  EXPECT_NEAR(tuner.factor(4, 1), 1, 0.01);
}

// However wrong the model was, it is held for wrong by a factor of 2 at most.
TEST(Tuner, CorrectsByTwoAtMost) {
  Tuner tuner;
  for (int tick = 0; tick < 500; ++tick) {
    tuner.observe(4, 1, 10, 10, 0, 10);
    tuner.observe(4, 2, 10, 10, 1000, 10);
    tuner.observe(4, 0, 10, 10, 10, 0);  // no time was measured: no record
  }
  EXPECT_EQ(tuner.factor(4, 1), 0.5);
  EXPECT_EQ(tuner.factor(4, 2), 2.0);
  EXPECT_EQ(tuner.factor(4, 0), 1.0);
  EXPECT_EQ(tuner.factor(1e9, 2), 1.0);  // more rows than any pass has
}

// One tick in which the machine did something else does not make an arm bad.
TEST(Tuner, OutliersCountLittle) {
  Tuner tuner;
  for (int tick = 0; tick < 50; ++tick) tuner.observe(4, 1, 10, 10, 10, 10);
  tuner.observe(4, 1, 10, 10, 10, 5000);
  EXPECT_GT(tuner.factor(4, 1), 0.9);
  tuner.observe(4, 1, 0, 0, 10, 10);  // nothing was foretold
  EXPECT_GT(tuner.factor(4, 1), 0.9);
}

}  // namespace
}  // namespace otr
