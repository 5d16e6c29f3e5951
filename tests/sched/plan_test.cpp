#include "sched/plan.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <tuple>
#include <vector>

#include "tests/spec/chooser_fixture.h"

namespace otr {
namespace {

PlanQuestion question(double batch, int32_t gpus, std::vector<VerifierChoice> verifiers, std::vector<DrafterChoice> drafters) {
  return {.batch = batch, .gpus = gpus, .verifiers = std::move(verifiers), .drafters = std::move(drafters), .context = 100};
}

// ---- Algorithm 1 ----------------------------------------------------------------------------------------------------------

// The lines of one configuration of verifiers, and of drafters on one GPU.
struct Lines {
  int32_t gpus;
  double beta, slope;  // V_w(b) = beta + slope w b
};
struct Result1 {
  int32_t draft_gpus = 0, verify_gpus = 0, window = 0;
  double speed = 0;
};

// Algorithm 1 as it is printed, on lines.
Result1 algorithm_1(double batch, int32_t gpus, const std::vector<Lines>& configurations, double alpha, double slope,
                    double p) {
  Result1 best;
  for (const Lines& v : configurations) {
    for (int32_t gd = 1; gd <= v.gpus; ++gd) {
      if (gd + v.gpus > gpus) continue;
      const double b = std::ceil((gd + v.gpus) * batch / gpus);
      for (int32_t w = 1; w <= 16; ++w) {
        if (w > std::max({1.0, std::ceil(v.slope * w / (slope / gd) - 1e-9), std::ceil(v.beta / alpha - 1e-9)})) break;
        double tau = w * std::pow(p, w);
        for (int32_t a = 0; a < w; ++a) tau += std::pow(p, a) * (1 - p) * (a + 1) / 2;
        const double speed = tau / std::max(w * (alpha + slope * b / gd), v.beta + v.slope * w * b);
        if (speed > best.speed * (1 + 1e-12)) best = {gd, v.gpus, w, speed};
      }
    }
  }
  return best;
}

TEST(Plan, IsAlgorithm1) {
  std::mt19937 rng(5);
  const auto one_of = [&rng](std::initializer_list<double> values) { return values.begin()[rng() % values.size()]; };
  for (int round = 0; round < 300; ++round) {
    const double batch = one_of({8, 100, 1000, 16384}), alpha = one_of({0.7, 2.3, 9.1}), slope = one_of({0.011, 0.13});
    const double p = one_of({0.3, 0.6, 0.8, 0.95});
    const int32_t gpus = static_cast<int32_t>(one_of({5, 16, 256}));
    std::vector<Lines> lines;
    std::vector<VerifierChoice> verifiers;
    for (const int32_t g : {2, 4, 8}) {
      lines.push_back({g, one_of({7.3, 21.7, 40.1}), one_of({0.017, 0.23}) / g});
      verifiers.push_back({g, affine_costs(lines.back().beta, lines.back().slope, 0, 0)});
    }
    PlanQuestion q = question(batch, gpus, verifiers, {{"small", true, affine_costs(0, 0, alpha, slope), p}});
    q.form = WindowForm::kPaperDecoupled;
    q.may_be_plain = q.may_couple = false;
    const Plan plan = make_plan(q);
    const Result1 expected = algorithm_1(batch, gpus, lines, alpha, slope, p);
    ASSERT_NEAR(plan.speed, expected.speed, 1e-9 * expected.speed) << round;
    ASSERT_EQ(std::tuple(plan.draft_gpus, plan.verify_gpus, plan.setting.window),
              std::tuple(expected.draft_gpus, expected.verify_gpus, expected.window))
        << round;
    ASSERT_EQ(plan.setting.mode, DraftMode::kDecoupled);
  }
}

// One verifier on 2 GPUs, V_w(b) = 10 + 0.1 w b; a drafter D(b) = 1 + 0.1 b / gd. 12 requests on 12 GPUs.
//   gd = 1: b = 3, D = 1.3, V_w = 10 + 0.3 w;  gd = 2: b = 4, D = 1.2, V_w = 10 + 0.4 w.   p = 1: w / max(w D, V)
//   bound(w) = max(ceil(w gd), 10): all windows. w D passes V at w = 10 (13 = 13), and at w = 12.5 (12: 14.4 < 14.8, 13: 15.6
//   > 15.2). gd = 1: 10 / 13 = 0.769;   gd = 2: from 13 on 1 / 1.2 = 0.833.
TEST(Plan, ByHand) {
  PlanQuestion q = question(12, 12, {{2, affine_costs(10, 0.1, 0, 0)}}, {{"small", true, affine_costs(0, 0, 1, 0.1), 1}});
  q.may_be_plain = q.may_couple = false;
  for (const WindowForm form : {WindowForm::kDecoupled, WindowForm::kPaperDecoupled}) {  // p = 1: no difference
    q.form = form;
    std::vector<Plan> considered;
    const Plan plan = make_plan(q, &considered);
    ASSERT_EQ(considered.size(), 2u);
    EXPECT_NEAR(considered[0].speed, 10 / 13.0, 1e-12);
    EXPECT_EQ(considered[0].batch, 3);
    EXPECT_EQ(plan.draft_gpus, 2);
    EXPECT_EQ(plan.batch, 4);
    EXPECT_EQ(plan.setting.window, 13);
    EXPECT_NEAR(plan.speed, 1 / 1.2, 1e-12);
  }
  // In turns: at p = 1 the widest window, 16, and its own token: 17 in 16 D + V, with b = 2 and two GPUs that draft.
  q.may_be_plain = q.may_couple = true;
  std::vector<Plan> considered;
  make_plan(q, &considered);
  ASSERT_EQ(considered.size(), 4u);
  EXPECT_EQ(considered[0].drafter, -1);
  EXPECT_NEAR(considered[0].speed, 1 / 10.2, 1e-12);
  EXPECT_EQ(considered[1].setting.mode, DraftMode::kCoupled);
  EXPECT_NEAR(considered[1].speed, 17 / (16 * 1.1 + 10 + 0.1 * 2 * 17), 1e-12);
}

TEST(Plan, TheBestDrafterAndNoneAtAll) {
  const std::vector<VerifierChoice> verifiers = {{1, affine_costs(20, 0.1, 0, 0)}};
  PlanQuestion q = question(64, 16, verifiers, {{"ngram", false, {}, 0.3}, {"small", true, affine_costs(0, 0, 1, 0.01), 0.8}});
  const Plan plan = make_plan(q);
  EXPECT_EQ(plan.drafter, 1);
  EXPECT_GT(plan.setting.window, 1);
  q.drafters[1].p = 0.1;
  EXPECT_EQ(make_plan(q).drafter, 0);
  q.drafters[0].p = 0;
  q.drafters[1].p = 0;
  EXPECT_EQ(make_plan(q).drafter, -1);
  q.gpus = 0;
  EXPECT_EQ(make_plan(q).speed, 0);
}

// So many GPUs of a group draft as are asked for. What has no model looks up for nothing, whatever its cost model says.
TEST(Plan, DraftsAsItIsTold) {
  PlanQuestion q =
      question(64, 16, {{4, affine_costs(20, 0.1, 0, 0)}},
               {{"ngram", false, affine_costs(0, 0, 9, 9), 0.3}, {"small", true, affine_costs(0, 0, 1, 0.01), 0.8}});
  q.may_be_plain = q.may_couple = false;
  std::vector<Plan> considered;
  make_plan(q, &considered);
  EXPECT_EQ(considered.size(), 8u);
  considered.clear();
  q.draft_gpus = 3;
  make_plan(q, &considered);
  ASSERT_EQ(considered.size(), 2u);
  for (const Plan& plan : considered) EXPECT_EQ(plan.draft_gpus, 3);
  EXPECT_EQ(window_costs(q, 0, 0, 3).draft, nullptr);
  EXPECT_EQ(window_costs(q, 0, 0, 3).draft_ms(64), 0);
  EXPECT_EQ(window_costs(q, 0, 1, 3).drafters, 3);
  EXPECT_EQ(window_costs(q, 0, 1, 0).drafters, 1);  // of a plan without a drafter's GPU
  EXPECT_EQ(window_costs(q, 0, -1, 0).draft, nullptr);
}

TEST(Plan, SaysWhy) {
  PlanQuestion q = question(64, 16, {{2, affine_costs(20, 0.1, 0, 0)}}, {{"small", true, affine_costs(0, 0, 1, 0.01), 0.8}});
  std::vector<Plan> considered;
  const Plan plan = make_plan(q, &considered);
  const std::string text = explain(q, plan, considered);
  EXPECT_EQ(text.find("64 requests on 16 GPUs"), 0u) << text;
  for (const char* part : {"Chosen: ", "plain decoding on 2", "coupled 'small' on 2", "decoupled 'small' on 2 + 1", "p 0.80"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  }
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1 + static_cast<int64_t>(considered.size()));
  q.gpus = 1;
  considered.clear();
  EXPECT_NE(explain(q, make_plan(q, &considered), considered).find("No verifier fits."), std::string::npos);
}

// ---- Algorithm 2 ----------------------------------------------------------------------------------------------------------

// D(1) = 2, V_w(1) = 10 + rows. The mean of p is 0.6: the last two are below it. Bounds: D is flat, so that the slopes' ratio
// is the widest window. Coupled at p = 0.5 by hand: w = 1: 1.5 / (2 + 12) = 0.107; w = 2: 1.75 / (4 + 13) = 0.1029.
//   Decoupled, ours: w = 1: 1 / (1/2 (2 + 11) + 1/2 11) = 0.0833; w = 2: 1.5 / (3/4 16 + 1/4 12) = 0.1; w = 3: 1.75 / (7/8 19 +
//   1/8 13) = 0.0959. Coupled with 1 wins. Paper's: w = 2: (1/4 + 1/4 + 1/2) / 12 = 0.0833; the best is below 0.107 too.
// At p = 0.0 coupled w = 1: 1 / 14; decoupled w = 1: 1 / 13, and the paper's: 1/2 / 11.
TEST(Reconfigure, IsAlgorithm2) {
  const CostModel verify = affine_costs(10, 1, 0, 0), draft = affine_costs(0, 0, 2, 0);
  const WindowCosts costs{.verify = &verify, .draft = &draft, .drafters = 1, .context = 0};
  const WindowSetting plan{.window = 7, .mode = DraftMode::kDecoupled};
  for (const WindowForm form : {WindowForm::kDecoupled, WindowForm::kPaperDecoupled}) {
    std::vector<RequestWindow> requests = {{1, 1.0, plan}, {2, 0.9, plan}, {3, 0.5, plan}, {4, 0.0, plan}};
    EXPECT_EQ(reconfigure({.line = 64}, form, costs, 16, requests), 2);
    EXPECT_EQ(requests[0].setting.window, 7);
    EXPECT_EQ(requests[1].setting.window, 7);
    EXPECT_EQ(requests[2].setting.window, 1);
    EXPECT_EQ(requests[2].setting.mode, DraftMode::kCoupled);
    EXPECT_EQ(requests[3].setting.window, 1);
    EXPECT_EQ(requests[3].setting.mode, form == WindowForm::kDecoupled ? DraftMode::kDecoupled : DraftMode::kCoupled);
  }
}

TEST(Reconfigure, EqualRequestsStay) {
  const CostModel cost = affine_costs(10, 1, 2, 0);
  const WindowCosts costs{.verify = &cost, .draft = &cost, .drafters = 1, .context = 0};
  std::vector<RequestWindow> requests(5, RequestWindow{.p = 0.5, .setting = {.window = 3}});
  EXPECT_EQ(reconfigure({.line = 8}, WindowForm::kDecoupled, costs, 16, requests), 0);
  EXPECT_EQ(reconfigure({.line = 8}, WindowForm::kDecoupled, costs, 16, {}), 0);
  EXPECT_EQ(requests[0].setting.window, 3);
}

// Ours: everyone, in the batch that there is. 64 rows more a token make windows shorter than alone.
TEST(Reconfigure, EveryoneInTheBatchThereIs) {
  const CostModel verify = affine_costs(10, 0.1, 0, 0), draft = affine_costs(0, 0, 0.5, 0);
  const WindowCosts costs{.verify = &verify, .draft = &draft, .drafters = 1, .context = 0};
  std::vector<RequestWindow> alone(3, RequestWindow{.p = 0.75}), together = alone;
  alone[2].p = together[2].p = 1;  // above the mean
  EXPECT_EQ(
      reconfigure({.batch = 1, .line = 64, .everyone = true, .may_decouple = false}, WindowForm::kDecoupled, costs, 16, alone),
      3);
  EXPECT_EQ(reconfigure({.batch = 64, .line = 64, .everyone = true, .may_decouple = false}, WindowForm::kDecoupled, costs, 16,
                        together),
            3);
  EXPECT_GT(alone[0].setting.window, together[0].setting.window);
  EXPECT_EQ(alone[0].setting.mode, DraftMode::kCoupled);
}

// ---- Algorithm 3 ----------------------------------------------------------------------------------------------------------

TEST(Ladder, TheFastestFirst) {
  const PlanQuestion q = question(64, 16, {{1, affine_costs(20, 0.1, 0, 0)}},
                                  {{"ngram", false, {}, 0.2},
                                   {"small", true, affine_costs(0, 0, 1, 0.01), 0.8},
                                   {"large", true, affine_costs(0, 0, 6, 0.01), 0.85}});
  EXPECT_EQ(ladder_order(q, 0, 1), (std::vector<int32_t>{1, 2, 0}));
}

// In turns all of a verifier's GPUs draft: a level of 64 takes 1 + 32 / 4 there, less than 10. Of equals the first.
TEST(Ladder, DraftsOnAllOfTheVerifiersGpus) {
  const PlanQuestion q = question(64, 16, {{4, affine_costs(20, 0, 0, 0)}},
                                  {{"flat", true, affine_costs(0, 0, 10, 0), 0.8},
                                   {"wide", true, affine_costs(0, 0, 1, 0.5), 0.8},
                                   {"alike", true, affine_costs(0, 0, 10, 0), 0.8}});
  EXPECT_EQ(ladder_order(q, 0, 64), (std::vector<int32_t>{1, 0, 2}));
}

// Drafters by rank: 1, 0, 2. Worker 10 verifies three requests of drafter 0; 11, 12 and 13 are free and become 1, 2 and 1
// (lines 1-3: the drafter with the fewest workers). At most 2 requests each: the lowest p, b, takes 11 and 12, c takes 13 and
// 12, a gets 11.
TEST(Racers, AreAlgorithm3) {
  const std::vector<RaceRequest> requests = {{.request = 1, .p = 0.9, .drafters = 1},
                                             {.request = 2, .p = 0.2, .drafters = 1},
                                             {.request = 3, .p = 0.5, .drafters = 1}};
  std::vector<RaceWorker> workers = {{.id = 10, .drafter = 0, .load = 3}, {.id = 11}, {.id = 12}, {.id = 13}};
  const std::vector<int32_t> ladder = {1, 0, 2};
  const std::vector<Racer> racers = assign_racers(requests, ladder, workers, 2);
  EXPECT_EQ(racers, (std::vector<Racer>{{2, 1, 11}, {2, 2, 12}, {3, 1, 13}, {3, 2, 12}, {1, 1, 11}}));
  EXPECT_EQ(workers[1].drafter, 1);
  EXPECT_EQ(workers[2].drafter, 2);
  EXPECT_EQ(workers[3].drafter, 1);
  EXPECT_EQ(workers[0].load, 3);
  EXPECT_EQ(workers[1].load, 2);
  // Again, with what is assigned by now: drafter 2 has no room, drafter 1 one place, but all have drafter 1.
  std::vector<RaceRequest> later = requests;
  for (RaceRequest& r : later) r.drafters |= 2;
  EXPECT_TRUE(assign_racers(later, ladder, workers, 2).empty());
}

// A worker of the first drafter that has room takes no request which that drafter works for already.
TEST(Racers, NobodyRacesAgainstItself) {
  const std::vector<RaceRequest> requests = {{.request = 1, .p = 0.5, .drafters = 1}};
  std::vector<RaceWorker> workers = {{.id = 0, .drafter = 0, .load = 1}, {.id = 1, .drafter = 0, .load = 0}};
  EXPECT_TRUE(assign_racers(requests, std::vector<int32_t>{0}, workers, 8).empty());
  EXPECT_EQ(assign_racers(requests, std::vector<int32_t>{}, workers, 8).size(), 0u);
}

TEST(Racers, WithoutALadderNobodyGetsADrafter) {
  std::vector<RaceWorker> workers = {{.id = 0}, {.id = 1, .drafter = 3}};
  EXPECT_TRUE(assign_racers(std::vector<RaceRequest>{{.request = 1, .p = 0.5}}, std::vector<int32_t>{}, workers, 8).empty());
  EXPECT_EQ(workers[0].drafter, -1);
}

// Nobody is loaded beyond the limit, nobody gets a drafter twice, and no request with a higher p has a drafter that one with a
// lower could have had.
TEST(Racers, AtRandom) {
  std::mt19937 rng(3);
  for (int round = 0; round < 200; ++round) {
    const std::vector<int32_t> ladder = {2, 0, 1};
    std::vector<RaceRequest> requests;
    for (uint64_t i = 0; i < 1 + rng() % 30; ++i)
      requests.push_back({i, static_cast<double>(rng() % 100) / 100, 1u << rng() % 3});
    std::vector<RaceWorker> workers;
    for (int32_t i = 0; i < static_cast<int32_t>(1 + rng() % 6); ++i) workers.push_back({.id = i});
    const int32_t most = static_cast<int32_t>(1 + rng() % 8);
    std::vector<uint32_t> drafters(requests.size());
    for (size_t i = 0; i < requests.size(); ++i) drafters[i] = requests[i].drafters;
    int32_t placed = 0;
    for (const Racer& racer : assign_racers(requests, ladder, workers, most)) {
      ASSERT_EQ(drafters[racer.request] >> racer.drafter & 1, 0u);
      drafters[racer.request] |= 1u << racer.drafter;
      ASSERT_EQ(workers[static_cast<size_t>(racer.worker)].drafter, racer.drafter);
      ++placed;
    }
    for (const RaceWorker& w : workers) {
      ASSERT_GE(w.drafter, 0);
      ASSERT_LE(w.load, most);
      placed -= w.load;
    }
    ASSERT_EQ(placed, 0);
    for (size_t a = 0; a < requests.size(); ++a) {
      for (size_t b = 0; b < requests.size(); ++b) {
        if (requests[a].p >= requests[b].p) continue;
        ASSERT_EQ(~drafters[a] & drafters[b] & ~requests[b].drafters, 0u);
      }
    }
  }
}

}  // namespace
}  // namespace otr
