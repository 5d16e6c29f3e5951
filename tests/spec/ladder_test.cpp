#include "spec/ladder.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <memory>
#include <vector>

#include "spec/acceptance.h"
#include "spec/make_chooser.h"

namespace otr {
namespace {

// 10 ms a pass of the target up to about 40 rows; a level takes `share` of it.
CostModel made_costs(double share) {
  CostModel cost;
  RoleCost& target = cost.roles[static_cast<size_t>(CostRole::kTarget)];
  target.weights_ms = 10;
  target.row_ms = 0.25;
  target.overlap = 0.7;
  cost.roles[static_cast<size_t>(CostRole::kVerify)] = target;
  RoleCost& draft = cost.roles[static_cast<size_t>(CostRole::kDraft)] = target;
  draft.weights_ms *= share;
  draft.row_ms *= share;
  return cost;
}

constexpr std::array<int32_t, 4> kBatches = {1, 4, 16, 64};
constexpr std::array<double, 6> kAcceptances = {0, 0.3, 0.6, 0.8, 0.9, 0.97};

// Against every depth, of a dear, a cheap and a free drafter.
TEST(Ladder, IsTheBestDepthOfAll) {
  std::array<CostModel, 3> drafters = {made_costs(0.5), made_costs(0.1), made_costs(0)};
  drafters[1].roles[static_cast<size_t>(CostRole::kDraft)].kv_ms = 0.001;  // its samples' contexts are dear
  const Ladder ladder = make_ladder(drafters, kBatches, kAcceptances, 300, 24);
  int plain = 0, deep = 0;
  for (size_t d = 0; d < drafters.size(); ++d) {
    for (size_t b = 0; b < kBatches.size(); ++b) {
      for (size_t a = 0; a < kAcceptances.size(); ++a) {
        const double n = kBatches[b], p = static_cast<float>(kAcceptances[a]);
        double best = 1, tokens = 1, kept = 1;
        for (int depth = 1; depth <= 24; ++depth) {
          tokens += kept *= p;
          const double ms = depth * drafters[d].draft_ms(n, 300) + drafters[d].verify_ms(n, n * (depth + 1), 300);
          best = std::max(best, tokens * drafters[d].verify_ms(n, n, 300) / ms);
        }
        const Rung& rung = ladder.at(d, b, a);
        EXPECT_LE(rung.speedup, best + 1e-9) << d << " " << n << " " << p;
        EXPECT_GE(rung.speedup, 0.985 * best) << d << " " << n << " " << p;
        EXPECT_EQ(rung.depth == 0, rung.speedup == 1) << d << " " << n << " " << p;
        if (a > 0) {
          EXPECT_GE(rung.speedup, ladder.at(d, b, a - 1).speedup);
        }
        plain += rung.depth == 0;
        deep += rung.depth >= 8;
      }
    }
  }
  EXPECT_GE(plain, 10);
  EXPECT_GE(deep, 8);
}

// A world of one drafter at a time: every place of a draft is kept with the drafter's own probability, which it says.
struct Step {
  TickPlan plan;

  Step(Chooser* chooser, int32_t batch, uint64_t first_sequence, const std::array<float, 2>& p, int ticks) {
    std::vector<TickRow> rows;
    for (int32_t i = 0; i < batch; ++i) {
      rows.push_back(
          {.sequence = first_sequence + static_cast<uint64_t>(i), .slot = i, .context = 300, .generated = 1, .max_depth = 64});
    }
    const TickView view{.rows = rows, .batch = batch, .other_rows = 0, .context = 300};
    std::vector<int32_t> kept;
    for (int32_t i = 0; i < 64; ++i) kept.push_back(i);
    for (int t = 0; t < ticks; ++t) {
      TickPlan now;
      chooser->choose(view, &now);
      if (t == 0) plan = now;
      std::vector<Forest> forests(rows.size());
      std::vector<Forest*> growing;
      std::vector<const Forest*> verified;
      DraftWork work;
      for (size_t r = 0; r < rows.size(); ++r) {
        const int drafter = now.drafters >> 1 & 1;
        float acceptance = 1;
        int32_t parent = Forest::kRoot;
        for (int32_t level = 1; now.drafters != 0 && level <= now.model_depth[r]; ++level) {
          acceptance *= p[static_cast<size_t>(drafter)];
          parent = forests[r].add(parent, level, acceptance, drafter, 0);
          work.passes = std::max(work.passes, level);
          ++work.rows;
        }
        growing.push_back(&forests[r]), verified.push_back(&forests[r]);
      }
      chooser->select(view, &now, growing, work, 512);
      std::vector<RowOutcome> outcomes;
      int32_t nodes = 0;
      for (size_t r = 0; r < rows.size(); ++r) {
        // As many as were foretold.
        double sum = 0;
        for (const DraftNode& node : forests[r].nodes()) sum += static_cast<double>(node.acceptance);
        const int32_t accepted = static_cast<int32_t>(std::lround(sum));
        nodes += forests[r].size();
        outcomes.push_back({.row = static_cast<int32_t>(r),
                            .drafted = forests[r].size(),
                            .accepted = accepted,
                            .num_new = accepted + 1,
                            .ended = false,
                            .kept = std::span<const int32_t>(kept).first(static_cast<size_t>(accepted))});
      }
      const double draft_ms = work.passes == 0 ? 0 : work.passes * costs().draft_ms(batch, 300);
      const double verify_ms = costs().verify_ms(batch, batch + nodes, 300);
      chooser->observe(view, now,
                       {.rows = outcomes,
                        .forests = verified,
                        .work = work,
                        .verify_rows = batch + nodes,
                        .draft_ms = draft_ms,
                        .verify_ms = verify_ms,
                        .tick_ms = draft_ms + verify_ms});
    }
    chooser->end_step();
  }
  static CostModel costs() { return made_costs(0.1); }
};

// The rung that policy auto starts from: its depth, and room beyond for a draft that goes well.
int32_t first_depth(const CostModel& cost, double acceptance, int32_t batch) {
  const std::array<int32_t, 1> batches = {batch};
  const std::array<double, 1> acceptances = {acceptance};
  return std::min(32, 2 * make_ladder(std::span(&cost, 1), batches, acceptances, 300, 32).at(0, 0, 0).depth + 2);
}

TEST(Ladder, PolicyAutoStartsFromItAtWhatTheStepsBeforeHaveLeft) {
  const CostModel cost = Step::costs();
  const std::unique_ptr<Chooser> chooser =
      make_chooser({.policy = parse_policy("auto").value(),
                    .drafters = {{.name = "a", .has_model = true}, {.name = "b", .has_model = true}},
                    .costs = {cost, cost},
                    .max_batch = 8});
  // Two drafters of equal cost and nothing known: a look at the first one, with two of the samples and three levels.
  const Step first(chooser.get(), 4, 100, {0.3f, 0.9f}, 300);
  ASSERT_EQ(first.plan.drafters, 1u);
  EXPECT_EQ(first.plan.model_depth, (std::vector<int32_t>{3, 3, 0, 0}));
  // The step has shown which of them is kept. Other samples, another batch: the first tick is the ladder's at the second's
  // acceptance.
  const Step second(chooser.get(), 2, 200, {0.3f, 0.9f}, 1);
  ASSERT_EQ(second.plan.drafters, 2u);
  EXPECT_NEAR(second.plan.model_depth[0], first_depth(cost, 0.9, 2), 2);
  EXPECT_GT(second.plan.model_depth[0], first_depth(cost, Acceptance::kPrior, 2));
  EXPECT_EQ(second.plan.model_depth[0], second.plan.model_depth[1]);
}

}  // namespace
}  // namespace otr
