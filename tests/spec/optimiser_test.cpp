#include "spec/optimiser.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>
#include <vector>

namespace otr {
namespace {

// A model that turns from memory to arithmetic at `ridge` rows; a level costs `share` of it.
CostModel made_model(double ridge, double share, double overlap) {
  CostModel cost;
  RoleCost& target = cost.roles[static_cast<size_t>(CostRole::kTarget)];
  target.weights_ms = 10;
  target.row_ms = 10 / ridge;
  target.kv_ms = 1e-5;
  target.sample_ms = 0.01;
  target.overlap = overlap;
  cost.roles[static_cast<size_t>(CostRole::kVerify)] = target;
  RoleCost draft = target;
  draft.weights_ms *= share;
  draft.row_ms *= share;
  cost.roles[static_cast<size_t>(CostRole::kDraft)] = draft;
  return cost;
}

double value_of(const TickTimes& t, const std::vector<RowOdds>& rows, const std::vector<int32_t>& depth) {
  double tokens = static_cast<double>(rows.size()), ms = 0, nodes = 0;
  for (int32_t level = 1;; ++level) {
    double count = 0;
    for (size_t r = 0; r < rows.size(); ++r) {
      if (depth[r] < level) continue;
      ++count;
      tokens += std::pow(static_cast<double>(rows[r].p), level);
    }
    if (count == 0) break;
    ms += t.draft_ms(count);
    nodes += count;
  }
  return tokens / (ms + t.verify_ms(nodes));
}

// Every vector of depths of up to three rows is tried.
void expect_depths_near_brute_force(bool mixtures, double least_share) {
  std::mt19937 random(1);
  const auto uniform = [&](double a, double b) { return std::uniform_real_distribution<double>(a, b)(random); };
  Optimiser optimiser;
  int drafted = 0, plain = 0;
  for (int trial = 0; trial < 300; ++trial) {
    CostModel cost = made_model(uniform(1, 60), uniform(0.05, 0.6), uniform(0, 1));
    if (mixtures) {
      const ShapeShares shares{.experts = uniform(0, 0.98), .passed_by = uniform(0.3, 0.98)};
      for (RoleCost& role : cost.roles) role.shares = shares;
    }
    std::vector<RowOdds> rows(1 + random() % 3);
    for (RowOdds& row : rows)
      row = {.p = static_cast<float>(uniform(0.05, 0.98)), .max_depth = static_cast<int32_t>(random() % 9), .known = 0};
    const TickTimes t{.cost = &cost,
                      .batch = static_cast<double>(rows.size()),
                      .rows = static_cast<double>(rows.size() + random() % 20),
                      .context = 500};
    const DraftDepth found = optimiser.best_depth(t, rows, 8);
    double best = 0;
    std::vector<int32_t> depth(rows.size(), 0);
    for (bool more = true; more;) {
      best = std::max(best, value_of(t, rows, depth));
      more = false;
      for (size_t r = 0; r < rows.size(); ++r) {
        if (depth[r] < rows[r].max_depth) {
          ++depth[r];
          more = true;
          break;
        }
        depth[r] = 0;
      }
    }
    EXPECT_NEAR(found.value(), value_of(t, rows, optimiser.row_depth()), 1e-9 * best)
        << trial;  // it says what its depths are worth
    EXPECT_GE(found.value(), least_share * best) << trial;
    EXPECT_LE(found.value(), best * (1 + 1e-9)) << trial;
    drafted += found.depth > 0;
    plain += found.depth == 0;
    for (size_t r = 0; r < rows.size(); ++r) EXPECT_LE(optimiser.row_depth()[r], rows[r].max_depth);
  }
  EXPECT_GT(drafted, 50);
  EXPECT_GT(plain, 50);
}

TEST(Optimiser, DepthsAgainstBruteForce) { expect_depths_near_brute_force(false, 0.985); }
TEST(Optimiser, DepthsOfMixturesAgainstBruteForce) { expect_depths_near_brute_force(true, 0.97); }

TEST(Optimiser, WhatLookupsBringIsNotPaidForTwice) {
  const CostModel cost = made_model(200, 0.3, 1);
  const TickTimes t{.cost = &cost, .batch = 1, .rows = 1, .context = 100};
  Optimiser optimiser;
  std::vector<RowOdds> row = {{.p = 0.8f, .max_depth = 8, .known = 0}};
  EXPECT_GT(optimiser.best_depth(t, row, 8).depth, 0);
  row[0].known = 6;
  EXPECT_EQ(optimiser.best_depth(t, row, 8).depth, 0);
  EXPECT_EQ(optimiser.best_depth(t, {}, 8).depth, 0);
}

// A drafter that is right nearly always is worth its levels beyond what lookups bring anyway, although its first ones are not.
TEST(Optimiser, DraftsBeyondLookups) {
  const CostModel cost = made_model(400, 0.05, 1);
  const TickTimes t{.cost = &cost, .batch = 1, .rows = 1, .context = 100};
  Optimiser optimiser;
  const std::vector<RowOdds> row = {{.p = 0.99f, .max_depth = 32, .known = 6, .known_nodes = 8}};
  const DraftDepth found = optimiser.best_depth(t, row, 32);
  EXPECT_GT(found.depth, 12);
  // What lookups take is part of what the drafts take, and so is what they bring.
  double kept = 1, tokens = 1;
  for (int32_t level = 0; level < found.depth; ++level) tokens += kept *= static_cast<double>(row[0].p);
  EXPECT_NEAR(found.tokens, tokens, 1e-9);
  EXPECT_NEAR(found.ms, found.depth * t.draft_ms(1) + t.verify_ms(found.depth), 1e-9);
}

// Each row for itself: lookups keep the one that they draft well for, and what would have to be read first is not read for
// little.
TEST(Optimiser, LeavesRowsToLookups) {
  const CostModel cost = made_model(20, 0.02, 0.7);
  const TickTimes t{.cost = &cost, .batch = 3, .rows = 3, .context = 100};
  Optimiser optimiser;
  std::vector<RowOdds> rows(3, {.p = 0.8f, .max_depth = 8});
  ASSERT_GT(optimiser.best_depth(t, rows, 8).depth, 0);
  for (const int32_t depth : optimiser.row_depth()) ASSERT_GT(depth, 0);
  rows[1].known = rows[1].known_nodes = 5;
  rows[2].once_ms = 50;
  ASSERT_GT(optimiser.best_depth(t, rows, 8).depth, 0);
  EXPECT_GT(optimiser.row_depth()[0], 0);
  EXPECT_EQ(optimiser.row_depth()[1], 0);
  EXPECT_EQ(optimiser.row_depth()[2], 0);
  rows[1].known = rows[1].known_nodes = 3;  // a third of a token more, in eight levels
  ASSERT_GT(optimiser.best_depth(t, rows, 8).depth, 0);
  EXPECT_EQ(optimiser.row_depth()[1], 0);
}

// What lookups take beyond what they bring is paid for.
TEST(Optimiser, WastedLookupsCost) {
  const CostModel cost = made_model(4, 0.3, 1);
  const TickTimes t{.cost = &cost, .batch = 8, .rows = 8, .context = 100};
  Optimiser optimiser;
  std::vector<RowOdds> rows(8, {.p = 0.1f, .max_depth = 8, .known = 1, .known_nodes = 1});
  const DraftDepth all_kept = optimiser.best_depth(t, rows, 8);
  for (RowOdds& row : rows) row.known_nodes = 3;
  const DraftDepth a_third = optimiser.best_depth(t, rows, 8);
  EXPECT_DOUBLE_EQ(all_kept.tokens, 16);
  EXPECT_DOUBLE_EQ(all_kept.ms, t.verify_ms(8));
  EXPECT_DOUBLE_EQ(a_third.tokens, 8);            // plain decoding
  for (RowOdds& row : rows) row.known_nodes = 0;  // as many are verified as are kept, at least
  EXPECT_DOUBLE_EQ(optimiser.best_depth(t, rows, 8).ms, t.verify_ms(8));
}

// What lookups bring counts by the row's weight; without any the tick is a plain one, whatever else looking for drafts takes.
TEST(Optimiser, WithoutADraft) {
  const CostModel cost = made_model(400, 0.5, 1);
  TickTimes t{.cost = &cost, .batch = 2, .rows = 2, .context = 100};
  Optimiser optimiser;
  std::vector<RowOdds> rows(2, {.p = 0.1f, .max_depth = 8});
  rows[0].known = rows[0].known_nodes = 2;
  rows[0].weight = 1.5f;
  rows[1].weight = 0.5f;
  const DraftDepth looked_up = optimiser.best_depth(t, rows, 8);
  EXPECT_EQ(looked_up.depth, 0);
  EXPECT_DOUBLE_EQ(looked_up.tokens, 2 + 1.5 * 2);
  EXPECT_DOUBLE_EQ(looked_up.ms, t.verify_ms(2));
  rows[0] = rows[1] = {.p = 0, .max_depth = 8};
  t.plain_fixed_ms = 5;
  EXPECT_DOUBLE_EQ(optimiser.best_depth(t, rows, 8).ms, t.verify_ms(0) + 5);
}

// A level's rows are dear, and nodes are not: those of whose drafts little is kept do not draft.
TEST(Optimiser, RowsOfALevelHaveAPrice) {
  CostModel cost = made_model(4000, 0.01, 1);
  cost.roles[static_cast<size_t>(CostRole::kDraft)].row_ms = 0.5;
  cost.roles[static_cast<size_t>(CostRole::kDraft)].overlap = 0;
  const TickTimes t{.cost = &cost, .batch = 8, .rows = 8, .context = 100};
  std::vector<RowOdds> rows(8, {.p = 0.98f, .max_depth = 8});
  for (size_t r = 4; r < rows.size(); ++r) rows[r].p = 0.3f;
  Optimiser optimiser;
  ASSERT_GT(optimiser.best_depth(t, rows, 8).depth, 4);
  for (size_t r = 0; r < rows.size(); ++r) EXPECT_EQ(optimiser.row_depth()[r] > 0, r < 4) << r;
}

TEST(Optimiser, NoDraftIsDeeperThanAnyMayBe) {
  const CostModel cost = made_model(4000, 0.001, 1);
  const TickTimes t{.cost = &cost, .batch = 1, .rows = 1, .context = 100};
  Optimiser optimiser;
  const std::vector<RowOdds> row = {{.p = 0.9999f, .max_depth = 100}};
  EXPECT_EQ(optimiser.best_depth(t, row, 100).depth, kMaxDraftDepth);
  EXPECT_EQ(optimiser.best_depth(t, row, 10).depth, 10);
}

// A drafter that must first read its contexts has to be worth that too.
TEST(Optimiser, BeginningCosts) {
  const CostModel cost = made_model(200, 0.3, 1);
  const TickTimes t{.cost = &cost, .batch = 1, .rows = 1, .context = 100};
  Optimiser optimiser;
  std::vector<RowOdds> row = {{.p = 0.8f, .max_depth = 8, .once_ms = 1}};
  EXPECT_GT(optimiser.best_depth(t, row, 8).depth, 0);
  row[0].once_ms = 100;
  EXPECT_EQ(optimiser.best_depth(t, row, 8).depth, 0);
}

void expect_cuts_near_brute_force(bool mixtures, double tolerance) {
  std::mt19937 random(2);
  const auto uniform = [&](double a, double b) { return std::uniform_real_distribution<double>(a, b)(random); };
  for (int trial = 0; trial < 500; ++trial) {
    CostModel cost = made_model(uniform(1, 100), 0.3, uniform(0, 1));
    if (mixtures) {
      const ShapeShares shares{.experts = uniform(0, 0.98), .passed_by = uniform(0.3, 0.98)};
      for (RoleCost& role : cost.roles) role.shares = shares;
    }
    const int32_t rows = 1 + static_cast<int32_t>(random() % 30);
    const double fixed_ms = uniform(0, 1);
    const TickTimes t{.cost = &cost,
                      .batch = static_cast<double>(rows),
                      .rows = static_cast<double>(rows),
                      .context = 500,
                      .plain_fixed_ms = uniform(0, fixed_ms),
                      .fixed_ms = fixed_ms};
    std::vector<float> acceptance(random() % 200);
    for (float& a : acceptance) a = static_cast<float>(std::pow(uniform(0, 1), uniform(0.2, 3)));
    std::sort(acceptance.begin(), acceptance.end(), std::greater<>());
    const double spent = uniform(0, 20);
    const int32_t most = static_cast<int32_t>(random() % 250);
    const Optimiser::Cut cut = Optimiser::best_cut(t, acceptance, spent, rows, most);
    double best = 0, tokens = rows;
    for (int32_t nodes = 0; nodes <= std::min<int32_t>(most, static_cast<int32_t>(acceptance.size())); ++nodes) {
      best = std::max(best, tokens / (spent + t.verify_ms(nodes)));
      if (nodes < static_cast<int32_t>(acceptance.size()))
        tokens += static_cast<double>(acceptance[static_cast<size_t>(nodes)]);
    }
    const double plain = rows / (spent + t.verify_ms(0));
    if (best > 1.03 * (1 + tolerance) * plain) {
      EXPECT_GE(cut.value(), (1 - tolerance) * best) << trial;
    } else if (best <= 1.03 * plain) {  // not worth the risk
      EXPECT_EQ(cut.nodes, 0) << trial;
    }
    if (cut.nodes > 0) {
      EXPECT_LE(cut.value(), best * (1 + 1e-6)) << trial;
    }
    EXPECT_LE(cut.nodes, most);
  }
}

TEST(Optimiser, CutAgainstBruteForce) { expect_cuts_near_brute_force(false, 1e-6); }
TEST(Optimiser, CutOfMixturesAgainstBruteForce) { expect_cuts_near_brute_force(true, 0.01); }

// Of two rows that are alike the one that counts more drafts at least as deep.
TEST(Optimiser, WeightsDecideWhoDrafts) {
  const CostModel cost = made_model(4, 0.2, 0.5);
  const TickTimes t{.cost = &cost, .batch = 16, .rows = 16, .context = 500};
  std::vector<RowOdds> rows(16, {.p = 0.8f, .max_depth = 20});
  for (size_t r = 0; r < rows.size(); ++r) rows[r].weight = r < 4 ? 3.0f : 1.0f / 3;
  Optimiser optimiser;
  ASSERT_GT(optimiser.best_depth(t, rows, 16).depth, 0);
  const std::vector<int32_t> depth = optimiser.row_depth();
  for (size_t r = 4; r < rows.size(); ++r) EXPECT_LT(depth[r], depth[0]) << r;
}

// What passes the gate is worth it, and together worth the pass; what does not is not.
TEST(Optimiser, GateAgainstItsRule) {
  std::mt19937 random(3);
  const auto uniform = [&](double a, double b) { return std::uniform_real_distribution<double>(a, b)(random); };
  int opened = 0, closed = 0;
  for (int trial = 0; trial < 500; ++trial) {
    const CostModel cost = made_model(uniform(1, 100), uniform(0.05, 0.5), uniform(0, 1));
    const TickTimes t{.cost = &cost, .batch = 8, .rows = 8, .context = 500};
    std::vector<float> frontier(1 + random() % 40);
    for (float& a : frontier) a = static_cast<float>(uniform(0, 1));
    const double value = uniform(0.05, 3), p = uniform(0.3, 1), nodes = uniform(0, 200);
    const float least = Optimiser::least_acceptance(t, value, p, frontier, nodes);
    const double n = static_cast<double>(frontier.size());
    double sum = 0, count = 0;
    for (const float a : frontier) {
      if (a >= least) sum += static_cast<double>(a), ++count;
    }
    if (count > 0) {
      ++opened;
      EXPECT_GT(p * sum, value * (t.draft_ms(count) + t.node_ms(nodes) * count));
      EXPECT_GE(p * static_cast<double>(least) * (1 + 1e-6), value * (t.row_ms(n) + t.node_ms(nodes)));
    } else {
      ++closed;
    }
  }
  EXPECT_GT(opened, 50);
  EXPECT_GT(closed, 50);
  const CostModel cost = made_model(100, 0.1, 1);
  EXPECT_GT(Optimiser::least_acceptance({.cost = &cost, .batch = 1, .rows = 1}, 0.1, 0.0, std::vector<float>{1.0f}, 1), 1.0f);
}

}  // namespace
}  // namespace otr
