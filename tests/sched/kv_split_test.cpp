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
  EXPECT_EQ(tokens_from_front(30, 4096, 64, {.computed = 20'000, .copied = 500'000, .least_tick = 0.010}),
            34);  // the begun page
}

// The newest rows' tick of 5 ms is saved where nothing is copied, and not once something is.
TEST(KvSplit, TheTickBehindTheGapCounts) {
  RebuildRates rates{.computed = 20'000, .copied = 2'000, .least_tick = 0.005};
  EXPECT_EQ(tokens_from_front(0, 1500, 64, rates), 1500);
  rates.any_copied = true;
  EXPECT_EQ(tokens_from_front(0, 1500, 64, rates), 1408);
  EXPECT_DOUBLE_EQ(rebuild_seconds(1408, 1500, 64, rates), 1408 / 20'000.0 + 0.005);
  EXPECT_DOUBLE_EQ(rebuild_seconds(1344, 1500, 64, rates), 192 / 2'000.0 + 0.005);
  // Beside 28 layers of that tick there is time for more copies.
  rates.num_layers = 28;
  EXPECT_DOUBLE_EQ(rebuild_seconds(1344, 1500, 64, rates), 192 / 2'000.0 + 0.005 / 28);
  rates.any_copied = false;
  EXPECT_EQ(tokens_from_front(0, 4000, 64, rates), 3712);
  EXPECT_DOUBLE_EQ(rebuild_seconds(3712, 4000, 64, rates), 3712 / 20'000.0 + 0.005);
}

// Of 400 tokens a tick of 300 is a full one and one of 100, which takes as long as a tick takes.
TEST(KvSplit, TheFrontIsMadeInTicks) {
  const RebuildRates rates{.computed = 10'000, .copied = 1, .least_tick = 0.02, .chunk = 300};
  EXPECT_DOUBLE_EQ(rebuild_seconds(400, 400, 64, rates), 0.03 + 0.02);
  EXPECT_DOUBLE_EQ(rebuild_seconds(600, 600, 64, rates), 0.06);
}

TEST(KvSplit, WhatHasArrivedIsNotWaitedFor) {
  RebuildRates rates{.computed = 1, .copied = 100, .arrived = 64};
  EXPECT_DOUBLE_EQ(rebuild_seconds(0, 128, 64, rates), 0.64);
  EXPECT_DOUBLE_EQ(rebuild_seconds(0, 100, 64, rates), 0.64);  // a page that is begun comes whole
  EXPECT_DOUBLE_EQ(rebuild_seconds(64, 128, 64, rates), 64);
}

TEST(KvSplit, ATickBeginsEarlyWhereItGainsMoreThanOthersLose) {
  EXPECT_TRUE(may_begin_early({.first_layer = 0.01 / 24, .all = 0.01}, 0.01, 1));
  EXPECT_FALSE(may_begin_early({.first_layer = 0.011 / 24, .all = 0.011}, 0.01, 1));  // the last layers would be waited for too
  EXPECT_TRUE(may_begin_early({.first_layer = 0.01 / 24, .all = 0.01}, 0.01, 23));
  EXPECT_FALSE(may_begin_early({.first_layer = 0.01 / 24, .all = 0.01}, 0.01, 25));
  EXPECT_TRUE(may_begin_early({.first_layer = 1, .all = 4}, 4, 4));
  EXPECT_TRUE(may_begin_early({.first_layer = 0, .all = 0.01}, 0.01, 1000));
  EXPECT_FALSE(may_begin_early({.first_layer = 0, .all = 1e-9}, 0, 1));  // how long a tick takes is not known
}

// With 100 tokens a second, 2 layers, 50 of 300 tokens there: the first layer is another 100 away, all 250.
TEST(KvSplit, WhenCopiesCome) {
  const ComingCopies coming = coming_copies(300, 50, 100, 2);
  EXPECT_DOUBLE_EQ(coming.first_layer, 1);
  EXPECT_DOUBLE_EQ(coming.all, 2.5);
  EXPECT_DOUBLE_EQ(seconds_until_early(coming, 2), 0.5);
  EXPECT_TRUE(std::isinf(seconds_until_early(coming, 2.5)));
  EXPECT_EQ(coming_copies(300, 400, 100, 2).all, 0);
}

// What has arrived needs no link any more.
TEST(KvSplit, WhatHasArrivedIsThere) {
  const RebuildRates rates{.computed = 100, .copied = 0, .least_tick = 0.25, .arrived = 64};
  EXPECT_DOUBLE_EQ(rebuild_seconds(64, 128, 64, rates), 0.64 + 0.25);
  EXPECT_TRUE(std::isinf(rebuild_seconds(0, 128, 64, rates)));
}

// The newest row goes along with the last of the front, and only where nothing is copied: it reads what is not there yet
// otherwise.
TEST(KvSplit, TheNewestRowGoesAlongWhereAllIsComputed) {
  const RebuildStep all = rebuild_step(100, 300, 64, {.computed = 1e9, .copied = 1});
  EXPECT_EQ(all.rows, 200);
  EXPECT_TRUE(all.takes_newest);
  const RebuildStep behind_copies = rebuild_step(100, 256, 64, {.computed = 1e9, .copied = 1, .any_copied = true});
  EXPECT_EQ(behind_copies.rows, 156);
  EXPECT_FALSE(behind_copies.takes_newest);
  EXPECT_FALSE(rebuild_step(100, 300, 64, {.computed = 1, .copied = 1e9}).takes_newest);
}

TEST(KvSplit, NothingIsLeft) {
  EXPECT_EQ(tokens_from_front(64, 64, 64, {1, 1}), 0);
  EXPECT_EQ(rebuild_seconds(0, 0, 64, {0, 0}), 0);
}

// Against all that it may choose from: up to the end of a page, or all.
TEST(KvSplit, IsTheBestOfAll) {
  std::mt19937 random(7);
  const auto rate = [&] { return std::exp2(static_cast<double>(random() % 2400) / 100.0); };
  for (int i = 0; i < 20'000; ++i) {
    const int32_t page = 1 << (random() % 7);
    const int32_t begin = static_cast<int32_t>(random() % 500), end = begin + static_cast<int32_t>(random() % 1500);
    const RebuildRates rates{.computed = rate(),
                             .copied = rate(),
                             .least_tick = random() % 2 == 0 ? 0 : 1 / rate(),
                             .chunk = 1 + static_cast<int32_t>(random() % 600),
                             .arrived = static_cast<double>(random() % 90),
                             .num_layers = 1 + static_cast<int32_t>(random() % 30),
                             .any_copied = random() % 2 == 0};
    const int32_t x = tokens_from_front(begin, end, page, rates);
    ASSERT_TRUE(begin + x == end || (begin + x) % page == 0) << begin << " + " << x << " of " << end << ", page " << page;
    double best = rebuild_seconds(end - begin, end - begin, page, rates);
    for (int32_t at = (begin + page - 1) / page * page; at < end; at += page) {
      best = std::min(best, rebuild_seconds(at - begin, end - begin, page, rates));
    }
    ASSERT_EQ(rebuild_seconds(x, end - begin, page, rates), best)
        << begin << " … " << end << ", page " << page << ", rates " << rates.computed << " " << rates.copied;
  }
}

// ---- By a clock -----------------------------------------------------------------------------------------------------------

// A worker that ticks by these costs, and goes on with a sequence of `gap` tokens and one behind them. What it does next it
// asks as KvRebuild does.
class ModelledWorker {
 public:
  static constexpr int32_t kPage = 64, kChunk = 512;
  static constexpr double kRow = 50e-6;
  enum class Way { kRecompute, kTransfer, kBothEnds };

  ModelledWorker(double least_tick, double share, int32_t num_layers)
      : least_tick_(least_tick), link_(share / kRow), num_layers_(num_layers) {}

  double seconds(int32_t gap, Way way) {
    end_ = gap;
    at_ = 0;
    seconds_ = seen_ = arrived_ = 0;
    num_pages_ = first_copied_ = (gap + kPage - 1) / kPage;
    if (way == Way::kRecompute) {
      for (int32_t left = gap + 1; left > 0; left -= kChunk) seconds_ += tick(std::min(left, kChunk));
      return seconds_;
    }
    while (advance(way == Way::kTransfer)) {
    }
    return seconds_;
  }

 private:
  double tick(int32_t rows) const { return std::max(least_tick_, rows * kRow); }
  RebuildRates rates(bool all) const {
    const double computed = kChunk / tick(kChunk);
    return {.computed = all ? 1e-9 * link_ : computed,
            .copied = link_,
            .least_tick = least_tick_,
            .chunk = kChunk,
            .arrived = arrived_,
            .num_layers = num_layers_,
            .any_copied = first_copied_ < num_pages_};
  }
  int32_t gap_end() const { return std::min(end_, first_copied_ * kPage); }
  RebuildStep step(bool all) const { return rebuild_step(at_, gap_end(), kPage, rates(all)); }

  // False: the rows behind the gap are through.
  bool advance(bool all) {
    arrived_ += (seconds_ - seen_) * link_;
    seen_ = seconds_;
    for (const bool left_out = step(all).takes_newest; !left_out && arrived_ >= kPage && at_ < gap_end(); arrived_ -= kPage)
      --first_copied_;
    if (at_ >= gap_end()) return run(0, true);
    if (const RebuildStep next = step(all); next.rows > 0) return run(next.rows, next.takes_newest);
    const double tokens = (first_copied_ - at_ / kPage) * kPage;
    const ComingCopies coming = coming_copies(tokens, arrived_, link_, num_layers_);
    if (num_layers_ > 1 && may_begin_early(coming, least_tick_, 1)) {
      seconds_ += late_pass(tokens);
      return false;
    }
    const double page_in = std::max(1e-9, (kPage - arrived_) / link_);
    seconds_ += num_layers_ > 1 ? std::min(page_in, seconds_until_early(coming, least_tick_) + 1e-9) : page_in;
    return true;
  }

  // So many rows of the front, of which a tick takes a chunk; with the newest one where all fit.
  bool run(int32_t rows, bool newest) {
    const int32_t now = std::min(rows + newest, kChunk);
    seconds_ += tick(now);
    at_ += std::min(rows, now);
    return !(newest && rows < kChunk);
  }

  double late_pass(double tokens) const {
    double done = 0;
    for (int32_t layer = 1; layer <= num_layers_; ++layer)
      done = std::max(done, (tokens * layer / num_layers_ - arrived_) / link_) + tick(1) / num_layers_;
    return done;
  }

  const double least_tick_, link_;  // tokens a second
  const int32_t num_layers_;
  int32_t end_ = 0, at_ = 0, num_pages_ = 0, first_copied_ = 0;
  double seconds_ = 0, seen_ = 0, arrived_ = 0;
};

// Whatever the gap, the link, the ticks and the layers, both ends together are as quick as the better one of them.
TEST(KvSplit, BothEndsAreNeverSlowerThanTheBetterOne) {
  using Way = ModelledWorker::Way;
  double most_gained = 0, overlap_gained = 0;
  for (const int32_t gap : {100, 200, 300, 500, 800, 1500, 2500, 4000, 8000}) {
    for (const double least_tick : {0.0, 0.2e-3, 1e-3, 5e-3, 20e-3, 50e-3}) {
      for (const double share : {0.05, 0.1, 0.2, 0.4, 0.7, 1.0, 1.5, 2.0, 4.0, 8.0, 15.0, 30.0}) {
        double whole_pages = 0;
        for (const int32_t num_layers : {1, 2, 28}) {
          ModelledWorker worker(least_tick, share, num_layers);
          const double recompute = worker.seconds(gap, Way::kRecompute), transfer = worker.seconds(gap, Way::kTransfer);
          const double both = worker.seconds(gap, Way::kBothEnds), better = std::min(recompute, transfer);
          ASSERT_LE(both, better + 1e-4) << gap << " tokens, ticks of " << least_tick << ", link " << share << ", layers "
                                         << num_layers;
          most_gained = std::max(most_gained, better / both);
          if (num_layers == 1) whole_pages = both;
          // One page more or less may stand in the way of the tick before.
          ASSERT_LE(both, whole_pages + ModelledWorker::kPage * ModelledWorker::kRow * (1 + 1 / share));
          overlap_gained = std::max(overlap_gained, whole_pages / both);
        }
      }
    }
  }
  EXPECT_GT(most_gained, 1.8);
  EXPECT_GT(overlap_gained, 1.5);
}

}  // namespace
}  // namespace otr
