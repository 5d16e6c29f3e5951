// The papers' choosers, one after the other: what they decide for written-down ticks, worked out by hand from the papers.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "spec/efficientrollout_chooser.h"
#include "spec/rhymerl_chooser.h"
#include "spec/specactor_chooser.h"
#include "spec/tlt_chooser.h"
#include "tests/spec/chooser_fixture.h"

namespace otr {
namespace {

ChooserOptions options_of(const char* name, std::vector<DrafterTraits> drafters, std::vector<CostModel> costs,
                          int32_t max_batch = 64) {
  ChooserOptions o{
      .policy = parse_policy(name).value(), .drafters = std::move(drafters), .costs = std::move(costs), .max_batch = max_batch};
  for (const DrafterTraits& d : o.drafters) o.policy.drafters.push_back(d.name);
  return o;
}

// ---- EfficientRollout -----------------------------------------------------------------------------------------------------

// T_target = 10 + b, T_draft = 1, T_verify(5) = 10 + 6 b: at tau 5 the speedup is (50 + 5 b) / (15 + 6 b); 1.05 is reached at
// 50 + 5 b >= 15.75 + 6.3 b, b <= 26.3.
const CostModel kSelfCosts = affine_costs(10, 1, 1, 0);
ChooserOptions efficientrollout() { return options_of("efficientrollout", {{"self", true, false}}, {kSelfCosts}); }

TEST(Efficientrollout, TogglesOnceAndStaysOn) {
  EfficientrolloutChooser chooser(efficientrollout());
  const TestTick many(27), few(26);
  EXPECT_EQ(plan_of(&chooser, many.view).drafters, 0u);
  const TickPlan plan = plan_of(&chooser, few.view);
  EXPECT_EQ(plan.drafters, 1u);
  EXPECT_EQ(plan.depth, 5);
  EXPECT_EQ(plan.verify_tokens, 5);
  EXPECT_EQ(plan.top_k, 1);
  EXPECT_NEAR(plan.expected_ms, 5 * 1 + 10 + 6 * 26, 1e-9);
  EXPECT_NEAR(plan.expected_tokens, 26 * 5, 1e-9);
  EXPECT_EQ(plan_of(&chooser, many.view).drafters, 1u);
  tick(&chooser, few.view, 4);
  chooser.end_step();
  EXPECT_EQ(plan_of(&chooser, many.view).drafters, 0u);  // a new step is off again
}

TEST(Efficientrollout, WaitsWhilePromptsJoin) {
  EfficientrolloutChooser chooser(efficientrollout());
  TestTick few(2);
  few.view.batch = 3;
  few.view.other_rows = 2;  // two rows of a prompt
  EXPECT_EQ(plan_of(&chooser, few.view).drafters, 0u);
  few.view.other_rows = 1;  // a sample that may not draft
  EXPECT_EQ(plan_of(&chooser, few.view).drafters, 1u);
}

TEST(Efficientrollout, TheToggleUsesTheLastStepsTau) {
  EfficientrolloutChooser chooser(efficientrollout());
  const TestTick few(10), one(1);
  tick(&chooser, one.view, 0);  // tau 1
  chooser.end_step();
  // At tau 1: (10 + b) / (15 + 6 b) < 1 for all b.
  EXPECT_EQ(plan_of(&chooser, few.view).drafters, 0u);
  EXPECT_EQ(plan_of(&chooser, one.view).drafters, 0u);
  chooser.end_step();  // nothing was speculated: tau stays
  EXPECT_EQ(plan_of(&chooser, one.view).drafters, 0u);
}

// A step of one tick at batch 1 that keeps `kept` drafts: tau = kept + 1. The toggle is free here, so that it never hides a
// step.
TEST(Efficientrollout, GammaFollowsTheLadder) {
  ChooserOptions o = efficientrollout();
  o.costs = {affine_costs(10, 0, 0, 0)};
  EfficientrolloutChooser chooser(o);
  const TestTick one(1);
  const auto step = [&](double tau) {  // over 100 ticks
    const int32_t low = static_cast<int32_t>(tau), ticks = 100, highs = static_cast<int32_t>(std::lround((tau - low) * ticks));
    for (int32_t i = 0; i < ticks; ++i) tick(&chooser, one.view, (i < highs ? low + 1 : low) - 1);
    chooser.end_step();
    return chooser.depth();
  };
  // Up at tau >= 1 + 0.94 * 5 = 5.7, twice.
  EXPECT_EQ(step(5.7), 5);
  EXPECT_EQ(step(5.69), 5);
  EXPECT_EQ(step(5.7), 5);
  EXPECT_EQ(step(5.8), 7);
  // Now at 7.58; the last step's 5.8 is below.
  EXPECT_EQ(step(7.6), 7);
  EXPECT_EQ(step(7.58), 9);
  EXPECT_EQ(step(9.46), 9);  // 1 + 0.94 * 9
  EXPECT_EQ(step(9.46), 11);
  EXPECT_EQ(step(12), 11);
  EXPECT_EQ(step(12), 11);  // the highest
  // Down at tau <= 1 + 0.85 * 11 = 10.35, twice.
  EXPECT_EQ(step(10.35), 11);
  EXPECT_EQ(step(10.36), 11);
  EXPECT_EQ(step(10.35), 11);
  EXPECT_EQ(step(10.3), 9);
  // 8.65: one step below it is the first of two. 6.95 and 5.25 follow.
  EXPECT_EQ(step(8.6), 9);
  EXPECT_EQ(step(8.6), 7);
  EXPECT_EQ(step(6.95), 7);
  EXPECT_EQ(step(6.9), 5);
  EXPECT_EQ(step(3), 5);
  EXPECT_EQ(step(3), 5);  // the lowest
}

// A sample that found nothing to draft was not speculated for; a step in which nobody was has no tau, and changes nothing.
TEST(Efficientrollout, TauIsOfWhatWasSpeculated) {
  EfficientrolloutChooser chooser(efficientrollout());
  const TestTick two(2);
  for (int step = 0; step < 2; ++step) {
    observe(&chooser, two.view, plan_of(&chooser, two.view), {{5, 5}, {0, 0}});
    chooser.end_step();
  }
  EXPECT_EQ(chooser.depth(), 7);  // 6 is above 5.7 twice
  for (int step = 0; step < 2; ++step) chooser.end_step();
  EXPECT_EQ(chooser.depth(), 7);
  EXPECT_EQ(plan_of(&chooser, two.view).drafters, 1u);
}

// ---- RhymeRL --------------------------------------------------------------------------------------------------------------

// A plain pass takes max(100, b), a verification of windows of 2 max(100, 3 b). With share a kept, 1 + 2 a tokens: it gains
// while (1 + 2 a) * max(100, b) > max(100, 3 b), that is for b < 100 (1 + 2 a) / 3 below 100.
CostModel roofline() {
  CostModel m = affine_costs(100, 1, 0, 0);
  for (RoleCost& role : m.roles) role.overlap = 1;
  return m;
}
ChooserOptions rhymerl() { return options_of("rhymerl", {{"history", false, false}}, {roofline()}, 256); }

TEST(Rhymerl, KnowsTheLargestBatchThatGains) {
  const RhymerlChooser chooser(rhymerl());
  EXPECT_EQ(chooser.largest_batch(0), 0);
  EXPECT_EQ(chooser.largest_batch(0.1), 39);   // < 40
  EXPECT_EQ(chooser.largest_batch(0.5), 66);   // < 66.7
  EXPECT_EQ(chooser.largest_batch(0.65), 76);  // < 76.7
  EXPECT_EQ(chooser.largest_batch(0.66), 76);  // the profile's steps are 0.05
  EXPECT_EQ(chooser.largest_batch(1), 99);     // at 1 and b >= 100 both sides are equal
}

TEST(Rhymerl, IsOffAboveTheBatchOfTheRateSeen) {
  RhymerlChooser chooser(rhymerl());
  const TestTick above(77), below(76), small(39);
  EXPECT_EQ(plan_of(&chooser, above.view).drafters, 0u);
  const TickPlan plan = plan_of(&chooser, below.view);
  EXPECT_EQ(plan.drafters, 1u);
  EXPECT_EQ(plan.depth, 32);
  EXPECT_EQ(plan.verify_tokens, 32);
  EXPECT_EQ(plan.top_k, 1);
  // 0.65 of 64 with weight, then one in ten of many: the rate goes to 0.1 from above.
  for (int i = 0; i < 60; ++i) observe(&chooser, below.view, plan, std::vector<std::pair<int32_t, int32_t>>(76, {10, 1}));
  EXPECT_NEAR(chooser.rate(), 0.1, 1e-4);
  EXPECT_EQ(plan_of(&chooser, below.view).drafters, 0u);
  EXPECT_EQ(plan_of(&chooser, small.view).drafters, chooser.rate() < 0.1 ? 0u : 1u);
  chooser.end_step();
  EXPECT_EQ(plan_of(&chooser, below.view).drafters, 1u);
}

TEST(Rhymerl, TheRateCountsWhatWasJudged) {
  RhymerlChooser chooser(rhymerl());
  const TestTick two(2);
  const TickPlan plan = plan_of(&chooser, two.view);
  // 8 drafted and 3 kept, and then the response ends with the fourth token: 4 were judged. Another found nothing to draft.
  const std::vector<RowOutcome> rows = {{.row = 0, .drafted = 8, .accepted = 3, .num_new = 4, .ended = true},
                                        {.row = 1, .drafted = 0, .accepted = 0, .num_new = 1, .ended = false}};
  chooser.observe(two.view, plan, {.rows = rows});
  const double keep = std::pow(1 - 1.0 / 1024, 4);
  EXPECT_NEAR(chooser.rate(), (0.65 * 64 * keep + 3) / (64 * keep + 4), 1e-12);
}

// A batch counts with those of it that may not draft; of one sample it may be that it gains.
TEST(Rhymerl, TheBatchIsAllThatTakesPart) {
  RhymerlChooser chooser(rhymerl());
  TestTick one(1);
  one.view.batch = 76;
  EXPECT_EQ(plan_of(&chooser, one.view).drafters, 1u);
  one.view.batch = 77;
  EXPECT_EQ(plan_of(&chooser, one.view).drafters, 0u);
  ChooserOptions alone = rhymerl();
  alone.max_batch = 1;
  EXPECT_EQ(RhymerlChooser(alone).largest_batch(1), 1);
}

// ---- TLT ------------------------------------------------------------------------------------------------------------------

ChooserOptions tlt() { return options_of("tlt", {{"small", true, true}, {"ngram", false, false}}, {}); }

TEST(Tlt, SpeculatesBelowThirtyThreeRequests) {
  TltChooser chooser(tlt());
  const TestTick many(33);
  EXPECT_EQ(plan_of(&chooser, many.view).drafters, 0u);
  for (const auto& [batch, verify_tokens] :
       std::vector<std::pair<int32_t, int32_t>>{{32, 8}, {21, 8}, {20, 16}, {5, 16}, {4, 32}, {2, 32}, {1, 48}}) {
    const TestTick few(batch);
    const TickPlan plan = plan_of(&chooser, few.view);
    EXPECT_EQ(plan.drafters, 1u) << batch;
    EXPECT_EQ(plan.verify_tokens, verify_tokens) << batch;
    EXPECT_EQ(plan.depth, 8) << batch;  // the published shape is tried first
    EXPECT_EQ(plan.top_k, 4) << batch;
    EXPECT_LE(plan.depth, parse_policy("tlt").value().depth);
  }
}

TEST(Tlt, EveryBatchHasThreeShapesAndTheFastestWins) {
  for (const int32_t batch : {1, 3, 10, 25}) {
    TltChooser chooser(tlt());
    const TestTick few(batch);
    std::vector<int32_t> tried;
    for (int i = 0; i < 3; ++i) {
      // The second shape is the fastest: same tokens in half the time.
      tried.push_back(tick(&chooser, few.view, 1, i == 1 ? 1 : 2).depth);
    }
    std::sort(tried.begin(), tried.end());
    EXPECT_EQ(std::unique(tried.begin(), tried.end()), tried.end()) << batch;
    int fastest = 0;
    for (int i = 0; i < 300; ++i) {
      const TickPlan plan = plan_of(&chooser, few.view);
      fastest += plan.depth == 5;
      observe(&chooser, few.view, plan, std::vector<std::pair<int32_t, int32_t>>(static_cast<size_t>(batch), {2, 1}),
              plan.depth == 5 ? 1 : 2);
    }
    EXPECT_GT(fastest, 250) << batch;  // 0.933 of 300 is 280
    EXPECT_LT(fastest, 300) << batch;  // it explores
  }
}

TEST(Tlt, PromptsBetweenAreNotRewarded) {
  TltChooser chooser(tlt());
  TestTick one(1);
  one.view.batch = 2;
  one.view.other_rows = 64;
  for (int i = 0; i < 5; ++i) EXPECT_EQ(tick(&chooser, one.view, 1).depth, 8);  // still untried
  one.view.other_rows = 1;
  EXPECT_EQ(tick(&chooser, one.view, 1).depth, 8);
  EXPECT_EQ(tick(&chooser, one.view, 1).depth, 5);
}

TEST(Tlt, NgramsStandInWhereTheModelHasNoRoom) {
  TltChooser chooser(tlt());
  const TestTick one(1);
  const TickPlan asked = plan_of(&chooser, one.view);
  observe(&chooser, one.view, asked, {{0, 0}}, 1, /*passes=*/0);
  for (int i = 0; i < TltChooser::kFallbackTicks; ++i) {
    const TickPlan plan = tick(&chooser, one.view, 1);
    ASSERT_EQ(plan.drafters, 2u) << i;
    EXPECT_EQ(plan.depth, 8);
    EXPECT_EQ(plan.verify_tokens, 8);  // a chain
    EXPECT_EQ(plan.top_k, 1);
  }
  EXPECT_EQ(plan_of(&chooser, one.view).drafters, 1u);
}

// A tick in which nobody drafted is no trial. The reward is of the samples that drafted: 3 kept and one more in 2 ms are more
// than one in 0.55 ms.
TEST(Tlt, TheRewardIsOfTheSamplesThatDrafted) {
  TltChooser chooser(tlt());
  TestTick two(1);
  two.view.batch = 2;
  two.view.other_rows = 1;  // a sample that may not draft
  observe(&chooser, two.view, plan_of(&chooser, two.view), {}, 1);
  EXPECT_EQ(plan_of(&chooser, two.view).depth, 8);  // still untried
  int deepest = 0;
  for (int i = 0; i < 300; ++i) {
    const TickPlan plan = plan_of(&chooser, two.view);
    observe(&chooser, two.view, plan, {{8, plan.depth == 8 ? 3 : 0}}, plan.depth == 8 ? 2 : plan.depth == 5 ? 0.55 : 10);
    deepest += plan.depth == 8;
  }
  EXPECT_GT(deepest, 250);
}

// ---- SpecActor ------------------------------------------------------------------------------------------------------------

TEST(Specactor, ExpectsAGeometricSum) {
  EXPECT_DOUBLE_EQ(coupled_tokens(0.5, 3), 1 + 0.5 + 0.25 + 0.125);
  EXPECT_DOUBLE_EQ(coupled_tokens(1, 4), 5);
  EXPECT_DOUBLE_EQ(coupled_tokens(0, 4), 1);
  for (const double p : {0.3, 0.9}) EXPECT_NEAR(coupled_tokens(p, 7), (1 - std::pow(p, 8)) / (1 - p), 1e-12);
}

// The model drafts at 2 + 0.1 b, the target verifies at 20 + 0.1 rows. D' = 0.1, alpha = 2; V_w' = 0.1 (w + 1), beta_w = 20:
// bound(w) = max(w + 1, 10), so that w is always tested, up to the policy's 16.
ChooserOptions specactor() {
  return options_of("specactor", {{"ngram", false, false}, {"small", true, true}},
                    {affine_costs(20, 0.1, 0, 0), affine_costs(20, 0.1, 2, 0.1)});
}

// The argmax, enumerated as the algorithm's loop over w.
int32_t enumerated_window(double p, double batch, int32_t most) {
  double best = 0;
  int32_t window = 0;
  for (int32_t w = 1; w <= most; ++w) {
    double tokens = 0;
    for (int32_t a = 0; a < w; ++a) tokens += std::pow(p, a) * (1 - p) * (a + 1);  // a kept and one of the target's own
    tokens += std::pow(p, w) * (w + 1);
    const double speed = tokens / (w * (2 + 0.1 * batch) + 20 + 0.1 * (w + 1) * batch);
    if (speed > best) best = speed, window = w;
  }
  return window;
}

TEST(Specactor, TheBestWindowIsTheEnumeratedOne) {
  const SpecactorChooser chooser(specactor());
  for (const double p : {0.05, 0.3, 0.5, 0.7, 0.8, 0.9, 0.97}) {
    for (const double batch : {1.0, 8.0, 64.0}) {
      EXPECT_EQ(chooser.best_window(1, p, batch, 64, 100).window, enumerated_window(p, batch, 16)) << p << " " << batch;
    }
  }
}

// D = 10 and V = 25, whatever the batch: no slopes, beta / alpha = 2.5, so that 3 is the last window tested.
TEST(Specactor, WindowsEndAtTheBound) {
  ChooserOptions o = specactor();
  o.costs[1] = affine_costs(25, 0, 10, 0);
  EXPECT_EQ(SpecactorChooser(o).best_window(1, 0.999, 8, 64, 100).window, 3);
  // The slopes too: V_w' / D' = 0.01 (w + 1) / 0.008 is above w, so that all are tested, and the deepest is best at batch 1 …
  o.costs[1] = affine_costs(25, 0.01, 10, 0.008);
  EXPECT_EQ(SpecactorChooser(o).best_window(1, 0.999, 1, 64, 100).window, 16);
  // … but 0.004 (w + 1) / 0.008 is not: 4 > max(ceil(2.5), 3).
  o.costs[1] = affine_costs(25, 0.004, 10, 0.008);
  EXPECT_EQ(SpecactorChooser(o).best_window(1, 0.999, 1, 64, 100).window, 3);
}

// Runs the profile: 64 samples a tick, every drafter's tokens kept as said.
void profile(SpecactorChooser* chooser, const TickView& view, int32_t ngram_kept, int32_t small_kept) {
  for (int i = 0; i < 2 * SpecactorChooser::kProfileTicks; ++i) {
    const TickPlan plan = plan_of(chooser, view);
    if (!plan.row_depth.empty()) return;  // the plan has begun
    ASSERT_EQ(plan.depth, SpecactorChooser::kProfileWindow);
    observe(chooser, view, plan,
            std::vector<std::pair<int32_t, int32_t>>(view.rows.size(), {4, plan.drafters == 1 ? ngram_kept : small_kept}));
  }
}

TEST(Specactor, AProfileThenTheTopOfTheLadder) {
  const TestTick many(64), one(1);
  {
    SpecactorChooser chooser(specactor());
    // 64 samples that keep 3 of 4 have 256 verdicts in a tick.
    EXPECT_EQ(tick(&chooser, many.view, 3).drafters, 1u);
    EXPECT_EQ(tick(&chooser, many.view, 3).drafters, 2u);
    // Equal p: lookups cost nothing.
    EXPECT_EQ(plan_of(&chooser, many.view).drafters, 1u);
  }
  {
    SpecactorChooser chooser(specactor());
    profile(&chooser, one.view, 0, 4);
    const TickPlan plan = plan_of(&chooser, one.view);
    EXPECT_EQ(plan.drafters, 2u);
    EXPECT_GE(plan.depth, 4);
    EXPECT_EQ(plan.verify_tokens, plan.depth);
    EXPECT_EQ(plan.row_depth, std::vector<int32_t>{plan.depth});
  }
}

// Each plan is made anew: alone the model is the fastest, for many its levels are too dear. Lookups take no time, whatever
// their model says.
TEST(Specactor, TheLadderIsOfTheBatchThatThereIs) {
  ChooserOptions options = specactor();
  options.costs = {affine_costs(20, 0.1, 9, 9), affine_costs(20, 0.1, 2, 1)};
  SpecactorChooser chooser(options);
  EXPECT_EQ(chooser.best_window(0, 0.8, 8, 64, 100).speed, SpecactorChooser(specactor()).best_window(0, 0.8, 8, 64, 100).speed);
  const TestTick one(1), many(64);
  profile(&chooser, one.view, 2, 4);
  EXPECT_EQ(plan_of(&chooser, one.view).drafters, 2u);
  EXPECT_EQ(plan_of(&chooser, many.view).drafters, 1u);
}

// Algorithm 3: its drafter is why a replica is there. A worker that has profiled nothing begins with it at once, and looks at
// its window when it has seen what is kept; samples of its own it profiles as ever.
TEST(Specactor, AReplicaDraftsWithItsDrafterFromTheFirstTickOn) {
  TestTick one(1);
  for (const int32_t rung : {1, 2}) {
    SpecactorChooser chooser(specactor());
    one.rows[0].rung = rung;
    const int32_t first = plan_of(&chooser, one.view).depth;
    if (rung == 2) {
      EXPECT_EQ(first, enumerated_window(0.5, 1, 16));
    }
    for (int i = 0; i < SpecactorChooser::kProfileTicks; ++i) {
      const TickPlan plan = plan_of(&chooser, one.view);
      ASSERT_EQ(plan.drafters, 1u << (rung - 1)) << i;
      ASSERT_EQ(plan.depth, first);
      observe(&chooser, one.view, plan, {{plan.depth, plan.depth}});
    }
    EXPECT_GT(plan_of(&chooser, one.view).depth, first);
    one.rows[0].rung = 0;
    EXPECT_EQ(plan_of(&chooser, one.view).depth, SpecactorChooser::kProfileWindow);
  }
  one.rows[0].rung = 9;  // of an engine with more drafters: the top of the ladder
  SpecactorChooser chooser(specactor());
  EXPECT_EQ(plan_of(&chooser, one.view).drafters, 1u);
}

TEST(Specactor, ALookupThatFindsNothingIsWrongAndAModelWithoutRoomIsNot) {
  const TestTick one(1);
  SpecactorChooser chooser(specactor());
  for (int i = 0; i < SpecactorChooser::kProfileTicks; ++i) observe(&chooser, one.view, plan_of(&chooser, one.view), {{0, 0}});
  for (int i = 0; i < SpecactorChooser::kProfileTicks; ++i) {
    const TickPlan plan = plan_of(&chooser, one.view);
    ASSERT_EQ(plan.drafters, 2u);
    observe(&chooser, one.view, plan, {{i < 30 ? 0 : 4, i < 30 ? 0 : 2}});
  }
  // ngram: (0 + 1) / (32 + 2); small: (4 + 1) / (6 + 2).
  const TickPlan plan = plan_of(&chooser, one.view);
  EXPECT_EQ(plan.drafters, 2u);
  EXPECT_EQ(plan.depth, enumerated_window(5.0 / 8, 1, 16));
}

// What the trace is told: tokens at the drafters' p, for as deep as a sample may draft, and the passes' time.
TEST(Specactor, ForetellsItsTick) {
  const TestTick one(1, 100, 3);
  SpecactorChooser chooser(specactor());
  profile(&chooser, one.view, 0, 4);
  const double p = 129.0 / 130;  // 32 ticks of 4
  const TickPlan plan = plan_of(&chooser, one.view);
  ASSERT_GT(plan.depth, 3);
  EXPECT_NEAR(plan.expected_tokens, coupled_tokens(p, 3), 1e-5);
  EXPECT_NEAR(plan.expected_ms, plan.depth * 2.1 + 20 + 0.1 * (1 + plan.depth), 1e-9);
  // From here on the sample's own p counts. With the third token, all kept, its response ends: none was wrong.
  const std::vector<RowOutcome> ended = {{.row = 0, .drafted = 10, .accepted = 3, .num_new = 3, .ended = true}};
  chooser.observe(one.view, plan, {.rows = ended});
  EXPECT_NEAR(plan_of(&chooser, one.view).expected_tokens, coupled_tokens(4.0 / 5, 3), 1e-5);
}

TEST(Specactor, ReplicasHaveRatesOfTheirOwn) {
  TestTick two(2);
  two.rows[0].rung = two.rows[1].rung = 2;
  SpecactorChooser chooser(specactor());
  observe(&chooser, two.view, plan_of(&chooser, two.view), {{4, 4}, {4, 0}});
  const TickPlan plan = plan_of(&chooser, two.view);
  EXPECT_NEAR(plan.expected_tokens, coupled_tokens(5.0 / 6, plan.depth) + coupled_tokens(1.0 / 3, plan.depth), 1e-5);
  two.rows[0].rung = two.rows[1].rung = 1;  // another drafter's: what was seen of them says nothing of it
  const TickPlan other = plan_of(&chooser, two.view);
  ASSERT_EQ(other.drafters, 1u);
  EXPECT_NEAR(other.expected_tokens, 2 * coupled_tokens(0.5, other.depth), 1e-5);
}

// What others draft is taken alone while they do; else it is on no rung, is not profiled, and no replica is there for it.
TEST(Specactor, ADrafterOnOtherWorkersIsTakenWhereItDrafts) {
  ChooserOptions options = specactor();
  options.drafters[1].decoupled = true;
  SpecactorChooser chooser(options);
  TestTick one(1);
  one.view.decoupled = true;
  const TickPlan decoupled = plan_of(&chooser, one.view);
  EXPECT_EQ(decoupled.drafters, 2u);
  EXPECT_EQ(decoupled.depth, 16);
  EXPECT_EQ(decoupled.verify_tokens, 16);
  EXPECT_TRUE(decoupled.row_depth.empty());
  one.view.decoupled = false;
  for (int i = 0; i < SpecactorChooser::kProfileTicks; ++i) {
    const TickPlan plan = plan_of(&chooser, one.view);
    ASSERT_EQ(plan.drafters, 1u);
    ASSERT_TRUE(plan.row_depth.empty());
    observe(&chooser, one.view, plan, {{4, 0}});
  }
  EXPECT_EQ(plan_of(&chooser, one.view).drafters, 1u);                             // the profile is made
  for (int i = 0; i < 5; ++i) observe(&chooser, one.view, decoupled, {{16, 16}});  // its worker looks after it
  const TickPlan plan = plan_of(&chooser, one.view);
  EXPECT_EQ(plan.drafters, 1u);  // although next to nothing of it is kept
  EXPECT_NEAR(plan.expected_tokens, coupled_tokens(1.0 / 34, plan.depth), 1e-5);
  one.view.decoupled = true;
  one.rows[0].rung = 2;
  EXPECT_EQ(plan_of(&chooser, one.view).drafters, 1u);
}

// A sample of which nothing is known is neither in the mean nor below it.
TEST(Specactor, WhoHasNotDraftedKeepsThePlansWindow) {
  const TestTick five(5);
  SpecactorChooser chooser(specactor());
  profile(&chooser, five.view, 0, 3);
  const int32_t plan_window = plan_of(&chooser, five.view).depth;
  for (int64_t i = 3; i < SpecactorChooser::kReconfigure; ++i) {
    observe(&chooser, five.view, plan_of(&chooser, five.view), {{10, 10}, {10, 10}, {10, i % 2 == 0 ? 1 : 2}, {10, 4}, {0, 0}});
  }
  // 1, 1, 0.6 and 0.8: the mean is 0.85, and 0.78 with one half more.
  const TickPlan plan = plan_of(&chooser, five.view);
  const std::vector<int32_t>& windows = plan.row_depth;
  EXPECT_EQ(plan.depth, *std::max_element(windows.begin(), windows.end()));
  EXPECT_EQ(windows, (std::vector<int32_t>{plan_window, plan_window, enumerated_window(0.6, 1, 16),
                                           enumerated_window(0.8, 1, 16), plan_window}));
  EXPECT_GT(windows[3], plan_window);
  chooser.end_step();
  EXPECT_EQ(plan_of(&chooser, five.view).row_depth[3], windows[3]);  // the same drafter's
}

// Where memory runs out in choose(), there is no plan to learn from.
TEST(Specactor, ATickWithoutAPlanTeachesNothing) {
  const TestTick one(1);
  SpecactorChooser chooser(specactor());
  observe(&chooser, one.view, TickPlan(), {{0, 0}});
  EXPECT_EQ(plan_of(&chooser, one.view).drafters, 1u);
}

TEST(Specactor, ThePlanIsMadeForTheLargestBatchOfAStep) {
  const TestTick many(64), few(4);
  SpecactorChooser chooser(specactor());
  profile(&chooser, many.view, 0, 3);
  // p: 192 kept of 256, +1 / +2.
  const double p = 193.0 / 258;
  const int32_t whole = plan_of(&chooser, many.view).depth;
  EXPECT_EQ(whole, enumerated_window(p, 64, 16));
  ASSERT_NE(whole, enumerated_window(p, 4, 16));
  EXPECT_EQ(plan_of(&chooser, few.view).depth, whole);  // a shrinking batch keeps it
  chooser.end_step();
  EXPECT_EQ(plan_of(&chooser, few.view).depth, enumerated_window(p, 4, 16));
}

TEST(Specactor, EveryThousandIterationsThoseBelowTheMeanGetTheirWindow) {
  const TestTick three(3);
  SpecactorChooser chooser(specactor());
  profile(&chooser, three.view, 0, 3);
  const int32_t plan_window = plan_of(&chooser, three.view).depth;  // the second iteration: profile() has seen the first
  for (int64_t i = 3; i < SpecactorChooser::kReconfigure; ++i) {
    const TickPlan plan = plan_of(&chooser, three.view);
    ASSERT_EQ(plan.row_depth, std::vector<int32_t>(3, plan_window)) << i;
    // The first sample is wrong once in 91 tokens, the second always, the third once in 7.
    observe(&chooser, three.view, plan, {{10, i % 10 == 0 ? 0 : 10}, {10, 0}, {10, 6}});
  }
  // Their mean is 0.616, so only the second is below it.
  const TickPlan plan = plan_of(&chooser, three.view);
  EXPECT_EQ(plan.row_depth, (std::vector<int32_t>{plan_window, enumerated_window(1.0 / 1000, 1, 16), plan_window}));
  EXPECT_EQ(plan.row_depth[1], 1);
  EXPECT_EQ(plan.depth, plan_window);
  EXPECT_GT(plan_window, 1);
  EXPECT_EQ(plan_of(&chooser, three.view).row_depth[1], 1);  // until the next time
  // Another sample in its place starts with the plan's.
  TestTick next(3);
  next.rows[1].sequence = 77;
  EXPECT_EQ(plan_of(&chooser, next.view).row_depth[1], plan_window);
}

// ---- By name --------------------------------------------------------------------------------------------------------------

TEST(MakeChooser, MakesThePolicys) {
  EXPECT_EQ(make_chooser({}), nullptr);
  EXPECT_NE(dynamic_cast<TltChooser*>(make_chooser(tlt()).get()), nullptr);
  EXPECT_NE(dynamic_cast<RhymerlChooser*>(make_chooser(rhymerl()).get()), nullptr);
  EXPECT_NE(dynamic_cast<SpecactorChooser*>(make_chooser(specactor()).get()), nullptr);
  EXPECT_NE(dynamic_cast<EfficientrolloutChooser*>(make_chooser(efficientrollout()).get()), nullptr);
}

}  // namespace
}  // namespace otr
