#include "runtime/pace.h"

#include <gtest/gtest.h>

#include <chrono>
#include <latch>
#include <thread>

#include "runtime/worker_mailbox.h"

namespace otr {
namespace {

void compute_ms(double ms) { std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(ms)); }

// Two workers, one of which needs far longer to compute than its passes take: time waits for it.
TEST(Pace, TimeStandsStillWhileAnybodyComputes) {
  PaceClock clock(0, 2);
  Pace quick(&clock), slow(&clock);
  std::vector<double> seen;
  std::latch begun(2);
  clock.enter();  // until both have begun
  std::thread other([&] {
    slow.begin();
    begun.count_down();
    for (int i = 0; i < 3; ++i) {
      compute_ms(5);
      slow.hold(2);
    }
    slow.end();
  });
  std::thread one([&] {
    quick.begin();
    begun.count_down();
    for (int i = 0; i < 6; ++i) {
      quick.hold(1);
      seen.push_back(quick.now_ms());
    }
    quick.end();
  });
  begun.wait();
  compute_ms(20);
  EXPECT_EQ(clock.now_ms(), 0);
  clock.leave();
  one.join();
  other.join();
  EXPECT_EQ(seen, (std::vector<double>{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(clock.now_ms(), 6);
  EXPECT_EQ(quick.stats().passes + slow.stats().passes, 9);
  EXPECT_EQ(slow.stats().late, 0);
  EXPECT_EQ(slow.stats().modelled_ms, 6);
}

// Who waits for a message goes on when it comes, at the sender's time; who waits in vain, at its limit.
TEST(Pace, AMessageWakesAtItsTime) {
  PaceClock clock(0, 2);
  Pace a(&clock), b(&clock);
  WorkerMailbox mailbox;
  mailbox.set_pace(&b);
  double woken = 0, in_vain = 0;
  std::latch begun(2);
  clock.enter();
  std::thread waiter([&] {
    b.begin();
    begun.count_down();
    WorkerOrders orders;
    ASSERT_TRUE(mailbox.take(false, &orders, [] {}));
    woken = b.now_ms();
    mailbox.await(10);
    in_vain = b.now_ms();
    b.end();
  });
  std::thread sender([&] {
    a.begin();
    begun.count_down();
    a.hold(3);
    mailbox.ring();
    a.hold(30);
    a.end();
  });
  begun.wait();
  compute_ms(5);
  clock.leave();
  waiter.join();
  sender.join();
  EXPECT_EQ(woken, 3);
  EXPECT_EQ(in_vain, 13);
}

// By the wall: a pass of 2 ms at scale 5 takes 10, however little it needs.
TEST(Pace, PassesTakeTheirTime) {
  PaceClock clock(5, 1);
  Pace pace(&clock);
  pace.begin();
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < 5; ++i) pace.hold(2);
  const double wall_ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
  pace.end();
  EXPECT_GE(wall_ms, 49);
  EXPECT_EQ(pace.stats().passes, 5);
  EXPECT_EQ(pace.stats().modelled_ms, 10);
}

// A pass of 1 ms that needs at least 4 is late, and so is every one after it: each says by how much.
TEST(Pace, WhatIsLateIsCounted) {
  PaceClock clock(1, 1);
  Pace pace(&clock);
  pace.begin();
  for (int i = 0; i < 4; ++i) {
    compute_ms(4);
    pace.hold(1);
  }
  pace.end();
  EXPECT_EQ(pace.stats().late, 4);
  EXPECT_EQ(pace.stats().late_share(), 1);
  EXPECT_GE(pace.stats().worst_late_ms, 3);
  EXPECT_GE(pace.stats().stretch(0.05), 4);
}

TEST(PaceStats, StretchLeavesOutAShare) {
  PaceStats stats;
  for (int i = 0; i < 98; ++i) stats.add_pass(10, 5);
  for (int i = 0; i < 2; ++i) stats.add_pass(10, 80);
  EXPECT_DOUBLE_EQ(stats.stretch(0.02), 0.5);
  EXPECT_DOUBLE_EQ(stats.stretch(0.01), 8);
  PaceStats sum;
  sum.add(stats);
  sum.add(stats);
  EXPECT_EQ(sum.passes, 200);
  EXPECT_DOUBLE_EQ(sum.modelled_ms, 2000);
}

TEST(Pace, RowsMakeAPass) {
  const int32_t positions[] = {10, 11, 30};
  RowBatch rows{};
  rows.num_rows = 3;
  rows.num_logit_rows = 1;
  rows.positions = positions;
  const PassShape pass = pass_shape(2, rows);
  EXPECT_EQ(pass.batch, 2);
  EXPECT_EQ(pass.rows, 3);
  EXPECT_EQ(pass.context, 17);
  EXPECT_EQ(pass.silent, 2);
}

}  // namespace
}  // namespace otr
