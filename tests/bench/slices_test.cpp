#include "bench/slices.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <thread>
#include <vector>

#include "bench/repetition.h"
#include "kernels/base/affinity.h"
#include "kernels/base/clock.h"

namespace otr::bench {
namespace {

TEST(Slices, CountsTheFastestTenthAndTheMedianOfTheUndisturbed) {
  double best = 0;
  Slices slices(&best);
  EXPECT_EQ(slices.fast_tenth(), 0);
  for (int i = 20; i > 0; --i) slices.add(i, 2.0);
  slices.add(0.5, 1.0);  // fast, but another program had a core
  EXPECT_EQ(slices.count(), 21);
  EXPECT_EQ(slices.undisturbed(), 20);
  EXPECT_EQ(slices.fast_tenth(), 3);
  EXPECT_EQ(slices.median(), 11);
}

TEST(Slices, AFirstSliceIsJudgedByThoseThatFollow) {
  double best = 0;
  Slices slices(&best);
  slices.add(1, 1.0);
  EXPECT_EQ(slices.undisturbed(), 1);
  slices.add(2, 2.0);
  EXPECT_EQ(slices.undisturbed(), 1);
  EXPECT_EQ(slices.fast_tenth(), 2);
}

TEST(Slices, WithoutUndisturbedOnesAllCountAndItShows) {
  double best = 2.0;  // of an earlier repetition
  Slices slices(&best);
  slices.add(3, 1.0);
  slices.add(4, 1.1);
  EXPECT_EQ(slices.undisturbed(), 0);
  EXPECT_EQ(slices.fast_tenth(), 3);
}

// Two threads spin on as many cores or fewer, and are put aside at any moment, between the clock's readings too.
TEST(Slices, NoShareIsLargerThanTheThreads) {
  std::atomic<bool> stop{false};
  std::vector<std::thread> spinning;
  for (int i = 0; i < 3; ++i) {
    spinning.emplace_back([&] {
      while (!stop) {
      }
    });
  }
  const ThreadClocks threads;
  double greatest = 0;
  // A quota is a share of each tenth of a second, not of a slice.
  const double cores = std::min(4.0, static_cast<double>(cpu_affinity().size()));
  for (int i = 0; i < 2000; ++i) {
    SliceClock clock(threads);
    clock.start();
    for (const Stopwatch watch; watch.seconds() < 1e-4;) {
    }
    greatest = std::max(greatest, clock.stop().share);
  }
  stop = true;
  for (std::thread& t : spinning) t.join();
  EXPECT_LE(greatest, 1.02 * cores);
}

// A ceiling that says what it is told: bytes per second of each bound, and the share of processor time.
struct Told {
  double rates[kNumBounds] = {};
  double share = 2;
  int asked[kNumBounds] = {};

  std::function<Ceiling::Rate(Bound)> ceiling() {
    return [this](Bound bound) {
      ++asked[static_cast<int>(bound)];
      return Ceiling::Rate{rates[static_cast<int>(bound)], share};
    };
  }
};

class RepetitionTest : public ::testing::Test {
 protected:
  RepetitionTest() {
    work.bytes = 1200;
    work.cached_bytes = 200;
    work.flops = 1000;
  }
  Work work;
  Told told;
  double best[3] = {};
  Repetition repetition{work, told.ceiling(), Slices(&best[0]), Slices(&best[1]), Slices(&best[2])};
  int read = static_cast<int>(Bound::kRead), matrix = static_cast<int>(Bound::kMatrix);
};

TEST_F(RepetitionTest, CachedBytesAreNoneOfMemorys) {
  told.rates[read] = 1000;
  told.rates[matrix] = 2000;
  repetition.add({kSliceSeconds, 2.0}, 4);
  EXPECT_EQ(repetition.times.fast_tenth(), kSliceSeconds / 4);
  EXPECT_EQ(repetition.bytes.fast_tenth(), 1.0);
  EXPECT_EQ(repetition.flops.fast_tenth(), 0.5);
  EXPECT_FALSE(repetition.flops_bind());
}

TEST_F(RepetitionTest, ANegligibleBoundIsMeasuredSeldom) {
  told.rates[read] = 1000;
  told.rates[matrix] = 10000;
  for (int i = 0; i < 17; ++i) repetition.add({kSliceSeconds, 2.0}, 1);
  EXPECT_EQ(told.asked[read], 17);
  EXPECT_EQ(told.asked[matrix], 3);
}

// The first slices of both ceilings are disturbed: memory seems as slow as never again, and the multipliers seem negligible.
TEST_F(RepetitionTest, ADisturbedFirstSliceDecidesNothing) {
  told.share = 1;
  told.rates[read] = 100;
  told.rates[matrix] = 1000;
  repetition.add({kSliceSeconds, 2.0}, 1);
  EXPECT_FALSE(repetition.flops_bind());
  told.share = 2;
  told.rates[read] = 5000;
  for (int i = 0; i < 15; ++i) repetition.add({kSliceSeconds, 2.0}, 1);
  EXPECT_TRUE(repetition.flops_bind());
  EXPECT_EQ(repetition.bound().fast_tenth(), 1.0);
  EXPECT_GE(repetition.bound().undisturbed(), 14);
}

TEST_F(RepetitionTest, ALongSliceIsFollowedByMoreOfItsCeiling) {
  told.rates[read] = told.rates[matrix] = 1000;
  repetition.add({40 * kSliceSeconds, 2.0}, 1);
  EXPECT_EQ(told.asked[read], 10);
}

}  // namespace
}  // namespace otr::bench
