#include "sched/leapfrog.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <limits>
#include <random>
#include <vector>

#include "sched/window.h"

namespace otr {
namespace {

using Tokens = std::vector<int32_t>;

Tokens taken(Leapfrog* l, int32_t replica) {
  const auto certain = l->take(replica);
  return {certain.begin(), certain.end()};
}

TEST(Leapfrog, TheLeadersTokensAreCertainForTheRest) {
  Leapfrog l(10, 100, 2);
  ASSERT_TRUE(l.publish(0, 10, Tokens{1, 2, 3}, false).ok());
  EXPECT_EQ(taken(&l, 0), Tokens{});
  EXPECT_EQ(taken(&l, 1), (Tokens{1, 2, 3}));
  EXPECT_EQ(l.length(1), 13);
  ASSERT_TRUE(l.publish(1, 13, Tokens{4, 5}, false).ok());
  ASSERT_TRUE(l.publish(0, 13, Tokens{4}, false).ok());  // later, and less
  EXPECT_EQ(l.length(0), 14);
  EXPECT_EQ(taken(&l, 0), Tokens{5});
  EXPECT_EQ(l.num_first(0), 3);
  EXPECT_EQ(l.num_first(1), 2);
}

TEST(Leapfrog, RepeatedAndEarlyTokensAreHarmless) {
  Leapfrog l(0, 100, 2);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(l.publish(0, 0, Tokens{1, 2}, false).ok());
  ASSERT_TRUE(l.publish(1, 5, Tokens{6}, false).ok());
  EXPECT_EQ(l.length(), 2);
  ASSERT_TRUE(l.publish(1, 1, Tokens{2, 3, 4}, true).ok());
  EXPECT_EQ(l.length(), 4);
  EXPECT_TRUE(l.ended());
  ASSERT_TRUE(l.publish(0, 0, Tokens{1, 2, 3, 4}, true).ok());
}

TEST(Leapfrog, WhatIsKnownStaysKnown) {
  Leapfrog l(10, 100, 2);
  ASSERT_TRUE(l.publish(0, 9, Tokens{7, 1}, false).ok());  // of the prompt
  EXPECT_EQ(l.length(), 10);
  ASSERT_TRUE(l.publish(0, 10, Tokens{1, 2, 3}, true).ok());
  ASSERT_TRUE(l.publish(0, 10, Tokens{1}, false).ok());
  EXPECT_EQ(l.length(0), 13);
  ASSERT_TRUE(l.publish(1, 10, Tokens{1, 2}, false).ok());  // it has not come to the end yet
  EXPECT_TRUE(l.ended());
  EXPECT_EQ(l.length(1), 12);
  EXPECT_EQ(taken(&l, 1), Tokens{3});
  const Status other = l.publish(1, 11, Tokens{9}, false);
  EXPECT_NE(other.message().find("position 11"), std::string::npos);
}

TEST(Leapfrog, OtherTokensAreAnError) {
  Leapfrog l(0, 100, 2);
  ASSERT_TRUE(l.publish(0, 0, Tokens{1, 2, 3}, false).ok());
  EXPECT_EQ(l.publish(1, 0, Tokens{1, 9}, false).code(), StatusCode::kInternal);
  EXPECT_EQ(l.publish(1, 0, Tokens{1, 2}, true).code(), StatusCode::kInternal);  // an end where the other went on
  ASSERT_TRUE(l.publish(0, 3, Tokens{4}, true).ok());
  EXPECT_EQ(l.publish(1, 3, Tokens{4, 5}, false).code(), StatusCode::kInternal);
  EXPECT_EQ(l.length(), 4);
}

// ---- Against racing --------------------------------------------------------------------------------------------------------

// Two drafters that complement each other: one is right with `good` where the other is with `bad`, by turns of 32 tokens on
// average.
struct Complementary {
  Complementary(double good, double bad, int32_t num_tokens) {
    std::mt19937 rng(1);
    const auto unit = [&rng] { return static_cast<double>(rng()) / 4294967296.0; };
    for (size_t turn = 0; right[0].size() < static_cast<size_t>(num_tokens); turn ^= 1) {
      for (double left = std::ceil(-32 * std::log(1 - unit())); left > 0; --left) {
        right[turn].push_back(unit() < good);
        right[turn ^ 1].push_back(unit() < bad);
      }
    }
  }
  std::array<std::vector<bool>, 2> right;
};

// One replica: a drafter and a verifier in turns. The target's token at a position is the position.
struct Replica {
  Replica(const std::vector<bool>* tokens, int32_t limit, int32_t window)
      : right(tokens), drafter(1, 0, limit, {window, DraftMode::kCoupled}), verifier(1, 0, limit) {}
  VerdictMessage tick() {
    while (drafter.may_draft()) drafter.add((*right)[static_cast<size_t>(drafter.next())] ? drafter.next() : -1);
    for (DraftMessage m; drafter.send(&m);) verifier.offer(m);
    Tokens own;
    for (int32_t i = 0; i < VerifyWindow::rows(*verifier.next()); ++i) own.push_back(verifier.length() + i);
    const VerdictMessage verdict = verifier.judge(own, std::numeric_limits<int32_t>::max());
    drafter.judge(verdict);
    return verdict;
  }
  const std::vector<bool>* right;
  DraftWindow drafter;
  VerifyWindow verifier;
};

// Tokens a verification if the replicas exchange what they found `late` verifications ago or earlier; -1: they race.
double tokens_a_verify(const Complementary& drafters, int32_t window, int32_t limit, int32_t late) {
  Leapfrog leapfrog(0, limit, 2);
  std::array<Replica, 2> replicas = {Replica(&drafters.right[0], limit, window), Replica(&drafters.right[1], limit, window)};
  std::vector<std::array<VerdictMessage, 2>> found;  // by tick
  int32_t ticks = 0;
  while (true) {
    found.emplace_back();
    ++ticks;
    for (size_t r = 0; r < 2; ++r) {
      found.back()[r] = replicas[r].tick();
      if (replicas[r].verifier.ended()) {
        for (int32_t i = 0; i < limit; ++i) EXPECT_EQ(replicas[r].verifier.response()[static_cast<size_t>(i)], i);
        return static_cast<double>(limit) / ticks;
      }
    }
    if (late < 0 || static_cast<int32_t>(found.size()) <= late) continue;
    for (size_t r = 0; r < 2; ++r) {
      const VerdictMessage& v = found[found.size() - 1 - static_cast<size_t>(late)][r];
      EXPECT_TRUE(leapfrog.publish(static_cast<int32_t>(r), v.begin, v.view(), v.ended).ok());
    }
    for (size_t r = 0; r < 2; ++r) {
      Replica& replica = replicas[r];
      const auto certain = leapfrog.take(static_cast<int32_t>(r));
      const int32_t ahead = leapfrog.length() - replica.verifier.length();
      if (ahead <= 0) continue;  // it has gone on by itself meanwhile
      const int32_t begin = replica.verifier.length();
      replica.verifier.grow(certain.last(static_cast<size_t>(ahead)), false);
      replica.drafter.judge(replica.verifier.since(begin));
    }
  }
}

TEST(Leapfrog, WinsEveryBlock) {
  const int32_t limit = 30000, window = 8;
  const Complementary drafters(0.9, 0.7, limit + 2 * window);
  const double race = tokens_a_verify(drafters, window, limit, -1), at_once = tokens_a_verify(drafters, window, limit, 0),
               late = tokens_a_verify(drafters, window, limit, 1);
  std::printf("tokens a verification: racing %.2f, leapfrog %.2f, with tokens that come one verification late %.2f\n", race,
              at_once, late);
  EXPECT_NEAR(race, 4.2, 0.1);
  EXPECT_NEAR(at_once, 6.5, 0.2);
  EXPECT_GT(late, 1.1 * race);
  EXPECT_LT(late, at_once);
}

TEST(Leapfrog, TheFormulaIsWhatHappens) {
  // Where drafters err independently: p = 0.9 and 0.7 everywhere.
  const int32_t limit = 60000;
  Complementary drafters(0.9, 0.7, 1);
  std::mt19937 rng(9);
  for (size_t d = 0; d < 2; ++d) {
    drafters.right[d].clear();
    for (int32_t i = 0; i < limit + 16; ++i)
      drafters.right[d].push_back(static_cast<double>(rng()) < (d == 0 ? 0.9 : 0.7) * 4294967296.0);
  }
  const std::vector<double> p = {0.9, 0.7};
  const std::vector<int32_t> windows = {8, 8};
  EXPECT_NEAR(tokens_a_verify(drafters, 8, limit, 0) / leapfrog_tokens(p, windows, 0), 1, 0.02);
  drafters.right[1] = drafters.right[0];
  EXPECT_NEAR(tokens_a_verify(drafters, 8, limit, 0) / leapfrog_tokens(p, windows, 1), 1, 0.02);
  // 1 + (1 - 1/2 * 1/2) + 1/4 by hand, windows of 2 and 1.
  EXPECT_DOUBLE_EQ(leapfrog_tokens(std::vector<double>{0.5, 0.5}, std::vector<int32_t>{2, 1}, 0), 2);
  EXPECT_DOUBLE_EQ(leapfrog_tokens(std::vector<double>{0.5, 0.5}, std::vector<int32_t>{2, 1}, 1), 1.75);
}

}  // namespace
}  // namespace otr
