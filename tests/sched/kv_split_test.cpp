#include "sched/kv_split.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

namespace otr {
namespace {

TEST(KvSplit, MeetsInTheMiddleByTheRates) {
  EXPECT_EQ(tokens_from_front(0, 4096, 64, {1000, 1000}), 2048);
  EXPECT_EQ(tokens_from_front(0, 4096, 64, {3000, 1000}), 3072);
  EXPECT_EQ(tokens_from_front(0, 4096, 64, {1000, 3000}), 1024);
  EXPECT_EQ(tokens_from_front(1024, 4096, 64, {1000, 1000}), 1536);
}

TEST(KvSplit, WithOneEndTheOtherDoesAll) {
  EXPECT_EQ(tokens_from_front(0, 4096, 64, {1000, 0}), 4096);
  EXPECT_EQ(tokens_from_front(0, 4096, 64, {1000, 1e9}), 0);
  EXPECT_EQ(tokens_from_front(0, 4096, 64, {1e9, 1}), 4096);
  EXPECT_EQ(tokens_from_front(0, 4096, 64, {0, 0}), 4096);
}

TEST(KvSplit, AnUnknownComputeRateTakesAPage) {
  EXPECT_EQ(tokens_from_front(0, 4096, 64, {0, 12345}), 64);
  EXPECT_EQ(tokens_from_front(100, 4096, 64, {0, 12345}), 28);
  EXPECT_EQ(tokens_from_front(100, 110, 64, {0, 12345}), 10);
}

TEST(KvSplit, ABegunPageIsComputedToItsEnd) {
  EXPECT_EQ(tokens_from_front(100, 4096, 64, {1, 1e9}), 28);
  EXPECT_EQ(tokens_from_front(100, 110, 64, {1, 1e9}), 10);
}

// A tick takes 10 ms: what arrives sooner is not worth one; and of what does not, a tick may well compute what it has time for.
TEST(KvSplit, ATickIsNotBegunForWhatArrivesSooner) {
  EXPECT_EQ(tokens_from_front(0, 4096, 64, {.computed = 20'000, .copied = 500'000, .least_tick = 0.010}), 0);
  EXPECT_EQ(tokens_from_front(0, 4096, 64, {.computed = 20'000, .copied = 500'000}), 128);
  EXPECT_EQ(tokens_from_front(0, 4096, 64, {.computed = 20'000, .copied = 40'000, .least_tick = 0.010}), 1344);
  EXPECT_EQ(tokens_from_front(30, 4096, 64, {.computed = 20'000, .copied = 500'000, .least_tick = 0.010}), 34);  // the begun page
}

TEST(KvSplit, NothingIsLeft) {
  EXPECT_EQ(tokens_from_front(64, 64, 64, {1, 1}), 0);
  EXPECT_EQ(rebuild_seconds(0, 0, {0, 0}), 0);
}

// Against all that it may choose from: up to the end of a page, or all.
TEST(KvSplit, IsTheBestOfAll) {
  std::mt19937 random(7);
  const auto rate = [&] { return std::exp2(static_cast<double>(random() % 2400) / 100.0); };
  for (int i = 0; i < 20'000; ++i) {
    const int32_t page = 1 << (random() % 7);
    const int32_t begin = static_cast<int32_t>(random() % 500), end = begin + static_cast<int32_t>(random() % 1500);
    const RebuildRates rates{rate(), rate(), random() % 2 == 0 ? 0 : 1 / rate()};
    const int32_t x = tokens_from_front(begin, end, page, rates);
    ASSERT_TRUE(begin + x == end || (begin + x) % page == 0) << begin << " + " << x << " of " << end << ", page " << page;
    double best = rebuild_seconds(end - begin, end - begin, rates);
    for (int32_t at = (begin + page - 1) / page * page; at < end; at += page) {
      best = std::min(best, rebuild_seconds(at - begin, end - begin, rates));
    }
    ASSERT_LE(rebuild_seconds(x, end - begin, rates), best) << begin << " … " << end << ", page " << page << ", rates "
                                                            << rates.computed << " " << rates.copied;
  }
}

}  // namespace
}  // namespace otr
