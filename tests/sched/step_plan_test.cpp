#include "sched/step_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <random>

namespace otr {
namespace {

using Ints = std::vector<int32_t>;
using Groups = std::vector<Ints>;
constexpr double kForever = std::numeric_limits<double>::infinity();

// ---- Tier 1 -----------------------------------------------------------------------------------------------------------------

TEST(StepPlan, Median) {
  EXPECT_EQ(median_tokens(Ints{7}), 7);
  EXPECT_EQ(median_tokens(Ints{9, 1, 5}), 5);
  EXPECT_EQ(median_tokens(Ints{9, 1, 5, 2}), 3.5);
  EXPECT_EQ(median_tokens(Ints{2147483647, 2147483647}), 2147483647);
}

TEST(StepPlan, RankingGroups) {
  const std::vector<double> history = {5, 1, 5, 0, 9};
  EXPECT_EQ(ranking_groups(5, history, 2), (Groups{{3, 1, 0}, {2, 4}}));  // ties by index
  EXPECT_EQ(ranking_groups(5, history, 5), (Groups{{3}, {1}, {0}, {2}, {4}}));
  EXPECT_EQ(ranking_groups(5, {}, 2), (Groups{{0, 1, 2}, {3, 4}}));  // the first epoch: as given
  for (size_t prompts = 1; prompts < 40; ++prompts) {
    for (int32_t n = 1; n <= static_cast<int32_t>(prompts); ++n) {
      Ints all;
      for (const Ints& group : ranking_groups(prompts, {}, n)) {
        EXPECT_NEAR(static_cast<double>(group.size()), static_cast<double>(prompts) / n, 1 - 1e-9);
        all.insert(all.end(), group.begin(), group.end());
      }
      Ints expected(prompts);
      std::iota(expected.begin(), expected.end(), 0);
      EXPECT_EQ(all, expected);
    }
  }
}

TEST(StepPlan, GroupsGoUpOnOddStepsAndDownOnEvenOnes) {
  EXPECT_EQ(groups_of_workers(Ints{1, 2, 3}, 1), (Ints{0, 1, 1, 2, 2, 2}));
  EXPECT_EQ(groups_of_workers(Ints{1, 2, 3}, 2), (Ints{2, 2, 2, 1, 1, 0}));
  EXPECT_EQ(groups_of_workers(Ints{1, 2, 3}, 3), groups_of_workers(Ints{1, 2, 3}, 1));
}

// Four samples by length: 1 2 3 4, so the real groups are 0 0 1 1.
TEST(StepPlan, RankingAccuracy) {
  const Ints tokens = {4, 1, 3, 2};
  const RankingAccuracy right = ranking_accuracy(Ints{1, 0, 1, 0}, tokens, 2);
  EXPECT_EQ(right.held, 1);
  EXPECT_EQ(right.near, 0);
  const RankingAccuracy shorter = ranking_accuracy(Ints{1, 1, 1, 1}, tokens, 2);  // whoever is shorter than foretold holds
  EXPECT_EQ(shorter.held, 1);
  const RankingAccuracy longer = ranking_accuracy(Ints{0, 0, 0, 0}, tokens, 2);  // 3 is in the upper group's shorter half
  EXPECT_EQ(longer.held, 0.5);
  EXPECT_EQ(longer.near, 0.25);
  const RankingAccuracy far = ranking_accuracy(Ints{0, 0, 0, 0}, tokens, 4);  // of 2, 3 and 4 one rises by one group
  EXPECT_EQ(far.held, 0.25);
  EXPECT_EQ(far.near, 0.25);
}

// ---- Tier 2 -----------------------------------------------------------------------------------------------------------------

// Times by group and workers; a group's length is its index.
struct Table {
  std::vector<std::vector<double>> ms;  // [groups][workers - 1]
  GroupTime tau() const {
    return [this](double tokens, int32_t k) { return ms[static_cast<size_t>(tokens)][static_cast<size_t>(k - 1)]; };
  }
  AllocationQuestion question(int32_t workers) const {
    AllocationQuestion q;
    for (size_t g = 0; g < ms.size(); ++g) q.tokens.push_back(static_cast<double>(g));
    q.workers = workers;
    q.most = static_cast<int32_t>(ms[0].size());
    return q;
  }
};

Allocation allocate(const AllocationQuestion& q, const Table& table) {
  const Result<Allocation> result = allocate_workers(q, table.tau());
  EXPECT_TRUE(result.ok()) << result.status().message();
  return result.ok() ? result.value() : Allocation{};
}

// Calls `fn` with all numbers of workers from `least` to `most` whose sum is at most `workers`.
template <typename Fn>
void for_all(size_t groups, int32_t least, int32_t most, int32_t workers, Ints* numbers, const Fn& fn) {
  if (numbers->size() == groups) return fn(*numbers);
  for (int32_t k = least; k <= std::min(most, workers); ++k) {
    numbers->push_back(k);
    for_all(groups, least, most, workers - k, numbers, fn);
    numbers->pop_back();
  }
}

std::optional<double> least_gradient(const AllocationQuestion& q, const Table& table) {
  const double t0 = std::max(table.ms[0][static_cast<size_t>((q.first == 0 ? q.most : q.first) - 1)], q.train_ms);
  std::optional<double> best;
  if (!std::isfinite(t0)) return best;
  Ints numbers;
  for_all(q.tokens.size(), q.least, q.most, q.workers, &numbers, [&](const Ints& one) {
    double d = table.ms[0][static_cast<size_t>(one[0] - 1)] <= t0 ? 0 : kForever;
    for (size_t i = 1; i < one.size(); ++i) {
      d = std::max(d, (table.ms[i][static_cast<size_t>(one[i] - 1)] - t0) / static_cast<double>(i));
    }
    if (std::isfinite(d) && (!best || d < *best)) best = d;
  });
  return best;
}

Table random_table(std::mt19937* rng, size_t groups, size_t most) {
  Table table;
  for (size_t g = 0; g < groups; ++g) {
    std::vector<double>& row = table.ms.emplace_back();
    for (size_t k = 0; k < most; ++k) {  // neither falling in the workers nor rising in the length
      row.push_back((*rng)() % 12 == 0 ? kForever
                                       : static_cast<double>((*rng)() % 1000) / static_cast<double>(1 + (*rng)() % 4));
    }
  }
  return table;
}

TEST(StepPlan, TheGradientIsTheLeastOfAllAllocations) {
  std::mt19937 rng(1);
  int feasible = 0;
  for (int i = 0; i < 600; ++i) {
    const Table table = random_table(&rng, 1 + rng() % 4, 1 + rng() % 5);
    AllocationQuestion q = table.question(static_cast<int32_t>(1 + rng() % 14));
    q.least = static_cast<int32_t>(1 + rng() % static_cast<uint32_t>(q.most));
    q.first = rng() % 2 == 0 ? 0 : q.least;
    q.train_ms = rng() % 2 == 0 ? 0 : static_cast<double>(rng() % 500);
    const Allocation plan = allocate(q, table);
    const std::optional<double> least = least_gradient(q, table);
    ASSERT_EQ(plan.infeasible.empty(), least.has_value()) << plan.infeasible;
    if (!least) continue;
    ++feasible;
    ASSERT_NEAR(plan.gradient_ms, *least, 1e-9);
    ASSERT_EQ(std::accumulate(plan.workers.begin(), plan.workers.end(), plan.idle), q.workers);
    for (size_t g = 0; g < plan.workers.size(); ++g) {
      ASSERT_TRUE(plan.workers[g] >= q.least && plan.workers[g] <= q.most);
      ASSERT_LE(plan.ms[g], plan.first_ms + static_cast<double>(g) * plan.gradient_ms + 1e-9);
      ASSERT_EQ(plan.ms[g], table.ms[g][static_cast<size_t>(plan.workers[g] - 1)]);
    }
  }
  EXPECT_GT(feasible, 200);
  EXPECT_LT(feasible, 500);
}

// Figure 12 as it is printed, with the precision p = 1.
Ints printed(const AllocationQuestion& q, const Table& table) {
  const auto tau = table.tau();
  const double t0 = std::max(tau(q.tokens[0], q.most), q.train_ms);
  double low = 0, high = (tau(q.tokens.back(), q.least) - t0) / static_cast<double>(q.tokens.size() - 1);
  Ints best;
  while (high - low > 1) {
    const double d = (high + low) / 2;
    Ints plan;
    int32_t sum = 0;
    for (size_t i = 0; i < q.tokens.size(); ++i) {
      int32_t k = q.least;
      while (k <= q.most && tau(q.tokens[i], k) > t0 + static_cast<double>(i) * d) ++k;
      sum = k > q.most ? 1 << 20 : sum + k;
      plan.push_back(k);
    }
    if (sum > q.workers) {
      low = d;
    } else {
      best = plan;
      high = d;
    }
  }
  return best;
}

// The group in the middle takes as long as the last: with the d_max of the last, 45, it would need two workers.
TEST(StepPlan, AGradientBeyondThePapersLargest) {
  const Table table{{{10, 10}, {95, 10}, {100, 10}}};
  EXPECT_TRUE(printed(table.question(3), table).empty());
  const Allocation plan = allocate(table.question(3), table);
  EXPECT_EQ(plan.workers, (Ints{1, 1, 1}));
  EXPECT_EQ(plan.gradient_ms, 85);
  EXPECT_TRUE(printed(table.question(4), table).empty());  // which never tries d_max itself
  EXPECT_EQ(allocate(table.question(4), table).workers, (Ints{1, 2, 1}));
  EXPECT_EQ(printed(table.question(5), table), (Ints{1, 2, 2}));
  EXPECT_EQ(allocate(table.question(5), table).workers, (Ints{1, 2, 2}));
}

// 120 samples a group, a worker's batch b takes b + 5 ms a token.
TEST(StepPlan, AsThePaperHasIt) {
  Table table;
  for (const double tokens : {100, 150, 230, 350, 800}) {
    std::vector<double>& row = table.ms.emplace_back();
    for (int32_t k = 1; k <= 12; ++k) row.push_back(tokens * (5 + 120.0 / k));
  }
  AllocationQuestion q = table.question(20);
  q.train_ms = 6000;
  const Allocation plan = allocate(q, table);
  EXPECT_EQ(std::accumulate(plan.workers.begin(), plan.workers.end(), 0), 20);
  EXPECT_TRUE(std::is_sorted(plan.ms.begin(), plan.ms.end()));
  Ints fewest = printed(q, table);
  ASSERT_EQ(fewest.size(), 5u);
  EXPECT_EQ(std::accumulate(fewest.begin(), fewest.end(), plan.left_over), 20);  // but for those that are left over
}

TEST(StepPlan, OneGroup) {
  const Table table{{{100, 50, 40, 45}}};
  AllocationQuestion q = table.question(3);
  EXPECT_EQ(allocate(q, table).workers, Ints{3});  // t0 = 45
  EXPECT_EQ(allocate(q, table).ms, std::vector<double>{40});
  q.train_ms = 60;
  const Allocation plan = allocate(q, table);  // two would do, the third makes it quicker
  EXPECT_EQ(plan.workers, Ints{3});
  EXPECT_EQ(plan.left_over, 1);
  q.workers = 9;
  EXPECT_EQ(allocate(q, table).idle, 6);
}

TEST(StepPlan, WorkersThatAreLeftOverGoToTheLongest) {
  const Table table{{{10, 9, 8}, {20, 10, 9}, {30, 20, 30}}};
  AllocationQuestion q = table.question(7);
  q.train_ms = 10;
  q.first = 1;
  const Allocation plan = allocate(q, table);
  EXPECT_EQ(plan.gradient_ms, 5);            // 2 workers for 15 ms, 2 for 20
  EXPECT_EQ(plan.workers, (Ints{2, 3, 2}));  // a third would slow the longest down; the others have 10 ms both
  EXPECT_EQ(plan.ms, (std::vector<double>{9, 9, 20}));
  EXPECT_EQ(plan.left_over, 2);
  q.workers = 9;
  EXPECT_EQ(allocate(q, table).workers, (Ints{3, 3, 2}));
  EXPECT_EQ(allocate(q, table).idle, 1);
}

TEST(StepPlan, WhatIsInfeasibleSaysWhy) {
  const Table table{{{40, 30, 10}, {50, 40, 30}, {70, 60, 50}}};
  const Allocation few = allocate(table.question(2), table);
  EXPECT_TRUE(few.workers.empty());
  EXPECT_EQ(few.infeasible, "3 groups of at least 1 need more than 2 workers");
  // t0 = tau(l_0, 3) leaves one worker for two groups.
  const Allocation greedy = allocate(table.question(4), table);
  EXPECT_TRUE(greedy.workers.empty());
  EXPECT_EQ(greedy.infeasible, "even the steepest plan needs 5 of 4 workers, 3 of them for the shortest group");
  const Result<Allocation> best = best_allocation(table.question(4), table.tau());
  ASSERT_TRUE(best.ok());
  EXPECT_TRUE(best.value().infeasible.empty());
  EXPECT_EQ(std::accumulate(best.value().workers.begin(), best.value().workers.end(), 0), 4);
  const Result<Allocation> none = best_allocation(table.question(2), table.tau());
  EXPECT_EQ(none.value().infeasible, few.infeasible);
  const Table never{{{1, 1}, {kForever, kForever}}};
  EXPECT_EQ(allocate(never.question(4), never).infeasible, "group 1 never ends on at most 2 workers");
}

TEST(StepPlan, WhatMakesNoSenseIsRefused) {
  const Table table{{{4, 3}, {5, 4}}};
  const auto code = [&table](auto change) {
    AllocationQuestion q = table.question(4);
    change(&q);
    EXPECT_EQ(allocate_workers(q, table.tau()).ok(), best_allocation(q, table.tau()).ok());
    return allocate_workers(q, table.tau()).status().code();
  };
  EXPECT_EQ(code([](AllocationQuestion*) {}), StatusCode::kOk);
  EXPECT_EQ(code([](AllocationQuestion* q) { q->tokens.clear(); }), StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](AllocationQuestion* q) { q->tokens = {1, 0}; }), StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](AllocationQuestion* q) { q->tokens = {-1, 0}; }), StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](AllocationQuestion* q) { q->least = 0; }), StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](AllocationQuestion* q) { q->least = 3; }), StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](AllocationQuestion* q) { q->first = 3; }), StatusCode::kInvalidArgument);
}

// ---- Two steps together -----------------------------------------------------------------------------------------------------

// Up: 1 1 1 4; down: 4 1 1 1. With one worker more for the long group: up 1 4 4 and down 4 4 1 overlap.
TEST(StepPlan, PairsOfSteps) {
  Allocation plan;
  plan.workers = {3, 1};
  plan.ms = {1, 4};
  EXPECT_EQ(pair_ms(plan), 5);
  EXPECT_EQ(pair_ms(plan, 2), 6);  // the short part waits for the training
  plan.workers = {1, 2};
  EXPECT_EQ(pair_ms(plan), 8);
  plan.workers = {1};
  plan.ms = {1};
  EXPECT_EQ(pair_ms(plan, 2), 4);
}

TEST(StepPlan, BestOfAllFirsts) {
  std::mt19937 rng(2);
  for (int i = 0; i < 200; ++i) {
    const Table table = random_table(&rng, 2 + rng() % 3, 4);
    AllocationQuestion q = table.question(static_cast<int32_t>(4 + rng() % 8));
    const Result<Allocation> best = best_allocation(q, table.tau());
    double least = kForever;
    for (q.first = 1; q.first <= 4; ++q.first) {
      const Allocation one = allocate(q, table);
      if (one.infeasible.empty()) least = std::min(least, pair_ms(one));
    }
    ASSERT_EQ(best.value().infeasible.empty() ? pair_ms(best.value()) : kForever, least);
  }
}

TEST(StepPlan, BalancedIsNoWorseThanItsStarts) {
  std::mt19937 rng(3);
  int optimal = 0, better = 0;
  for (int i = 0; i < 200; ++i) {
    Table table;
    for (size_t g = 0; g < 3; ++g) {
      const double work = static_cast<double>(1 + rng() % 1000), tail = static_cast<double>(rng() % 300);
      std::vector<double>& row = table.ms.emplace_back();
      for (int32_t k = 1; k <= 10; ++k) row.push_back(tail + work / k);
    }
    const auto tau = [&table](size_t g, int32_t k) { return table.ms[g][static_cast<size_t>(k - 1)]; };
    const Groups starts = {{4, 4, 4}, {1, 1, 10}};
    const double train = static_cast<double>(rng() % 400);
    const Allocation found = balanced_allocation(starts, 1, 10, train, tau);
    ASSERT_EQ(std::accumulate(found.workers.begin(), found.workers.end(), 0), 12);
    const auto pair_of = [&](const Ints& workers) {
      Allocation one;
      one.workers = workers;
      for (size_t g = 0; g < 3; ++g) one.ms.push_back(tau(g, workers[g]));
      return pair_ms(one, train);
    };
    ASSERT_EQ(pair_of(found.workers), pair_ms(found, train));
    const double start = std::min(pair_of(starts[0]), pair_of(starts[1]));
    ASSERT_LE(pair_ms(found, train), start);
    better += pair_ms(found, train) < start;
    double least = kForever;
    Ints numbers;
    for_all(3, 1, 10, 12, &numbers, [&](const Ints& one) {
      if (std::accumulate(one.begin(), one.end(), 0) == 12) least = std::min(least, pair_of(one));
    });
    optimal += pair_ms(found, train) <= least * 1.001;
  }
  EXPECT_GT(better, 100);
  EXPECT_GT(optimal, 150);
}

// ---- Outliers ---------------------------------------------------------------------------------------------------------------

TEST(StepPlan, GrowthOfOutliers) {
  EXPECT_EQ(outlier_growth({}), 1.1);
  EXPECT_EQ(outlier_growth(std::vector<double>{0.5, 1.2, 0.9, 1.05}), 1.1);  // the third of four is 1.05
  EXPECT_EQ(outlier_growth(std::vector<double>{1.6, 1.2, 0.9, 1.3}), 1.3);
  EXPECT_EQ(outlier_growth(std::vector<double>{2}), 2);
}

TEST(StepPlan, OutliersAreLateAndLong) {
  const OutlierRule rule = {.samples = 30, .longest_tokens = 100};
  EXPECT_TRUE(rule.is_outlier(3, 101));
  EXPECT_FALSE(rule.is_outlier(4, 101));
  EXPECT_FALSE(rule.is_outlier(3, 100));
  EXPECT_FALSE((OutlierRule{.samples = 9, .longest_tokens = 0}.is_outlier(1, 5)));  // a tenth of nine is less than one
  EXPECT_TRUE(stays_in_step(0, 2));
  EXPECT_FALSE(stays_in_step(1, 2));
  EXPECT_TRUE(stays_in_step(0, 3));
  EXPECT_FALSE(stays_in_step(1, 3));  // the middle one counts among the long
  EXPECT_FALSE(stays_in_step(0, 1));
}

}  // namespace
}  // namespace otr
