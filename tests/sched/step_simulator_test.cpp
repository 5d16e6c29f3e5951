#include "sched/step_simulator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <utility>

#include "sched/step_simulation.h"
#include "tests/spec/chooser_fixture.h"

namespace otr {
namespace {

StepResult run_steps(StepMode mode, const StepOptions& options, const StepWorkload& work) {
  Result<StepResult> result = simulate_steps(mode, options, work);
  EXPECT_TRUE(result.ok()) << result.status().message();
  return result.ok() ? std::move(result.value()) : StepResult{};
}

// A pass takes 10 ms, whoever is in it.
StepOptions flat_steps(int32_t workers, int32_t groups, double train_ms) {
  StepOptions o;
  o.cost = affine_costs(10, 0, 0, 0);
  o.workers = workers;
  o.groups = groups;
  o.train_ms = train_ms;
  return o;
}

// The same lengths in every epoch: [prompts of an epoch][samples].
StepWorkload repeated(const std::vector<std::vector<int32_t>>& tokens, size_t epochs, int32_t steps_per_epoch, float p = 0) {
  StepWorkload work;
  work.steps_per_epoch = steps_per_epoch;
  for (size_t e = 0; e < epochs; ++e) {
    auto& epoch = work.epochs.emplace_back();
    for (const auto& samples : tokens) {
      auto& prompt = epoch.emplace_back();
      for (const int32_t t : samples) prompt.push_back({.prompt = 0, .tokens = t, .p = p});
    }
  }
  return work;
}

StepWorkload random_work(std::mt19937* rng) {
  StepWorkload work;
  work.steps_per_epoch = static_cast<int32_t>(3 + (*rng)() % 3);
  const size_t prompts = static_cast<size_t>(work.steps_per_epoch) * (8 + (*rng)() % 4);
  std::vector<int32_t> usual(prompts);
  for (int32_t& u : usual) u = static_cast<int32_t>(20 + (*rng)() % ((*rng)() % 4 == 0 ? 3000 : 300));
  for (size_t e = 0; e < 3; ++e) {
    auto& epoch = work.epochs.emplace_back();
    for (size_t q = 0; q < prompts; ++q) {
      auto& prompt = epoch.emplace_back();
      for (size_t i = 0; i < 1 + q % 5; ++i) {
        const bool strays = (*rng)() % 8 == 0;
        prompt.push_back({.prompt = static_cast<int32_t>((*rng)() % 100),
                          .tokens = static_cast<int32_t>(strays ? 1 + (*rng)() % 6000 : usual[q] - 10 + (*rng)() % 40),
                          .p = static_cast<float>((*rng)() % 100) / 100});
      }
    }
  }
  return work;
}

StepOptions random_step_options(std::mt19937* rng) {
  StepOptions o;
  o.cost = affine_costs(4, 0.1, 0, 0);
  o.cost.roles[static_cast<size_t>(CostRole::kTarget)].kv_ms = 1e-4;
  o.workers = static_cast<int32_t>(4 + (*rng)() % 12);
  o.groups = static_cast<int32_t>(1 + (*rng)() % 4);
  o.max_batch = static_cast<int32_t>(1 + (*rng)() % 20);
  o.puts_off = (*rng)() % 2 == 0;
  o.train_ms = static_cast<double>((*rng)() % 5000);
  o.train_token_ms = (*rng)() % 2 == 0 ? 0 : 0.1;
  return o;
}

// ---- By hand ----------------------------------------------------------------------------------------------------------------

// Every step has a response of 100 tokens and one of 300, in this order; a training takes half a second.
TEST(StepSimulator, WhoWaitsForWhat) {
  const StepOptions o = flat_steps(2, 2, 500);
  const StepWorkload work = repeated({{100}, {300}, {100}, {300}}, 2, 2);
  EXPECT_NEAR(run_steps(StepMode::kSynchronous, o, work).end_ms, 4 * (3000 + 500), 1e-6);
  EXPECT_NEAR(run_steps(StepMode::kOneStep, o, work).end_ms, 4 * 3000 + 500, 1e-6);
  EXPECT_NEAR(run_steps(StepMode::kOwnSwitch, o, work).end_ms, 4 * 3000 + 500, 1e-6);  // it is always the second worker's
  // In the third step the first worker has the short one, when the weights of the first step are there; in the fourth it has
  // the long one from when those of the second are: 6500 to 9500. The second has 6000 to 9000, and 9000 to 10000.
  const StepResult ranked = run_steps(StepMode::kRanked, o, work);
  EXPECT_NEAR(ranked.end_ms, 10500, 1e-6);
  EXPECT_NEAR(ranked.warm_ms, 6500, 1e-6);
  EXPECT_NEAR(ranked.ms_a_step(), 2000, 1e-6);
  ASSERT_EQ(ranked.parts.size(), 8u);
  const auto part = [&ranked](int32_t worker, int32_t step) {
    const auto at = std::find_if(ranked.parts.begin(), ranked.parts.end(),
                                 [&](const WorkerPart& p) { return p.worker == worker && p.step == step; });
    return std::pair(at->begin_ms, at->end_ms);
  };
  EXPECT_EQ(part(0, 2), std::pair(3500.0, 4500.0));
  EXPECT_EQ(part(0, 3), std::pair(6500.0, 9500.0));
  EXPECT_EQ(part(1, 3), std::pair(9000.0, 10000.0));
  EXPECT_EQ(ranked.accuracy.held, 1);
}

// Ten responses of the first step make the short worker's part end at 1 s; so it is a step ahead of the other, and no more.
TEST(StepSimulator, AWorkerIsAtMostOneStepAhead) {
  const StepResult r =
      run_steps(StepMode::kOwnSwitch, flat_steps(2, 2, 0), repeated({{10}, {1000}, {10}, {1000}, {10}, {1000}}, 1, 3));
  for (const WorkerPart& part : r.parts) {
    if (part.worker == 0) {
      EXPECT_NEAR(part.begin_ms, part.step == 0 ? 0 : part.step == 1 ? 100 : 10000, 1e-6);
    }
  }
  EXPECT_NEAR(r.end_ms, 30000, 1e-6);
}

TEST(StepSimulator, BatchesAndTokensOfTraining) {
  StepOptions o = flat_steps(1, 1, 0);
  const StepWorkload work = repeated({{100, 100, 100}}, 1, 1);
  EXPECT_NEAR(run_steps(StepMode::kSynchronous, o, work).end_ms, 1000, 1e-6);
  o.max_batch = 2;
  EXPECT_NEAR(run_steps(StepMode::kSynchronous, o, work).end_ms, 2000, 1e-6);
  o.train_token_ms = 2;
  EXPECT_NEAR(run_steps(StepMode::kSynchronous, o, work).end_ms, 2000 + 600, 1e-6);
}

// p = 1 and windows of 4: five tokens a pass, but in the first epoch.
TEST(StepSimulator, HistoryDraftsFromTheSecondEpochOn) {
  StepOptions o = flat_steps(1, 1, 0);
  o.most = 4;
  const StepWorkload work = repeated({{100}, {100}}, 2, 2, 1);
  EXPECT_NEAR(run_steps(StepMode::kTwoTier, o, work).end_ms, 4000, 1e-6);
  EXPECT_NEAR(run_steps(StepMode::kHistory, o, work).end_ms, 2000 + 400, 1e-6);
  EXPECT_NEAR(run_steps(StepMode::kHistory, o, repeated({{100}, {100}}, 2, 2, 0)).end_ms, 4000, 1e-6);
}

// In the second epoch a short prompt's tenth response has 1000 tokens instead of 100: beyond 110 it goes to the other worker,
// where computing its keys and values takes a pass.
StepWorkload with_a_stray(size_t prompt) {
  const std::vector<int32_t> shorts(10, 100), longs(10, 2000);
  StepWorkload work = repeated({shorts, longs, shorts, longs, shorts, longs}, 2, 3);
  work.epochs[1][prompt][9].tokens = prompt % 2 == 0 ? 1000 : 4000;
  return work;
}

TEST(StepSimulator, OutliersOfShortGroupsGoToALongerGroupsWorker) {
  const StepOptions o = flat_steps(2, 2, 0);
  const StepWorkload work = with_a_stray(2);
  EXPECT_EQ(run_steps(StepMode::kRanked, o, work).num_within_step, 0);
  const StepResult r = run_steps(StepMode::kMigrated, o, work);
  EXPECT_EQ(r.num_within_step, 1);
  EXPECT_EQ(r.num_to_next_step, 0);
  const size_t stray = 4 * 20 + 9;
  EXPECT_EQ(r.samples[stray].move, StepMove::kWithinStep);
  EXPECT_EQ(r.samples[stray].trained_step, 4);
  // The fifth step is odd: the short responses are the first worker's, and the other has begun the long ones just before.
  const auto part =
      std::find_if(r.parts.begin(), r.parts.end(), [](const WorkerPart& p) { return p.step == 4 && p.worker == 0; });
  ASSERT_NE(part, r.parts.end());
  EXPECT_NEAR(part->end_ms - part->begin_ms, 1100, 1e-2);
  EXPECT_NEAR(r.samples[stray].end_ms - part->end_ms, 10 + 8900, 1e-2);
}

TEST(StepSimulator, OutliersOfLongGroupsAreTrainedAStepLaterIfAsked) {
  StepOptions o = flat_steps(2, 2, 0);
  const StepWorkload work = with_a_stray(1);
  EXPECT_EQ(run_steps(StepMode::kMigrated, o, work).num_to_next_step, 0);
  o.puts_off = true;
  const StepResult r = run_steps(StepMode::kMigrated, o, work);
  EXPECT_EQ(r.num_to_next_step, 1);
  const SimulatedSample& stray = r.samples[3 * 20 + 19];
  EXPECT_EQ(stray.move, StepMove::kToNextStep);
  EXPECT_EQ(stray.trained_step, 4);
  EXPECT_EQ(r.steps[3].samples, 19);
  EXPECT_EQ(r.steps[4].samples, 21);
  EXPECT_LT(r.steps[3].rollout_ms, stray.end_ms);
  EXPECT_LE(stray.end_ms, r.steps[4].rollout_ms);
  // In the last step nobody is put off.
  EXPECT_EQ(run_steps(StepMode::kMigrated, o, with_a_stray(5)).num_to_next_step, 0);
}

// Four workers, eight samples at once: a group's part takes 2 s and 40 s. In the fifth step the short ones are the first two
// workers'.
StepWorkload two_waves() {
  const std::vector<int32_t> shorts(20, 100), longs(20, 2000);
  return repeated({shorts, longs, shorts, longs, shorts, longs}, 2, 3);
}

// Unfinished at 1.1 s: the first worker's stray and two of the other's, of 20; when these end there is one.
TEST(StepSimulator, AGroupThatBecomesLateLooksAtAllOfItsWorkers) {
  StepOptions o = flat_steps(4, 2, 0);
  o.max_batch = 8;
  StepWorkload work = two_waves();
  std::vector<StepSample>& samples = work.epochs[1][2];
  samples[0].tokens = 1000;
  samples[16].tokens = samples[18].tokens = 10;
  samples[17].tokens = samples[19].tokens = 105;
  const StepResult r = run_steps(StepMode::kMigrated, o, work);
  EXPECT_EQ(r.num_within_step, 1);
  const auto part =
      std::find_if(r.parts.begin(), r.parts.end(), [](const WorkerPart& p) { return p.step == 4 && p.worker == 0; });
  ASSERT_NE(part, r.parts.end());
  EXPECT_NEAR(part->end_ms - part->begin_ms, 2050, 1e-2);
}

// In the fourth step those who have the short responses begin when the others have ended the long ones. Two strays then have
// nobody but each other.
TEST(StepSimulator, OutliersStayWhereNobodyOutlastsThem) {
  StepOptions o = flat_steps(4, 2, 0);
  StepWorkload work = two_waves();
  work.epochs[1][0][0].tokens = work.epochs[1][0][1].tokens = 1000;
  EXPECT_EQ(run_steps(StepMode::kMigrated, o, work).num_within_step, 0);
}

// Lengths that change places and grow by a half: the ranking is that of the epoch before, and beta the growth of the one before
// that.
TEST(StepSimulator, HistoryIsTheLastEpochs) {
  StepWorkload work = repeated({{100}, {300}, {100}, {300}}, 3, 2);
  for (auto& prompt : work.epochs[1]) prompt[0].tokens = 600 - prompt[0].tokens * 3 / 2;
  const StepResult r = run_steps(StepMode::kMigrated, flat_steps(2, 2, 0), work);
  EXPECT_EQ(r.accuracy.held, 0.5);  // who is shorter than foretold
  EXPECT_EQ(r.num_ranked, 8);
  ASSERT_EQ(r.decisions.size(), 4u);
  EXPECT_EQ(r.decisions[0], "step 3: beta 1.10, outliers have more than 110 330 tokens");
  EXPECT_EQ(r.decisions[2], "step 5: beta 4.50, outliers have more than 675 2025 tokens");
}

// What a plan believes of a part, and what the simulation makes of it: alone on a worker they agree.
TEST(StepSimulator, PartsAreForetold) {
  std::mt19937 rng(4);
  for (int i = 0; i < 20; ++i) {
    StepOptions o = random_step_options(&rng);
    o.workers = o.groups = 1;
    o.train_ms = o.train_token_ms = 0;
    std::vector<int32_t> tokens(1 + rng() % 60);
    for (int32_t& t : tokens) t = static_cast<int32_t>(1 + rng() % 4000);
    const double foretold = part_ms(o, 0, std::vector<double>(tokens.begin(), tokens.end()), 0);
    const double simulated = run_steps(StepMode::kSynchronous, o, repeated({tokens}, 1, 1)).end_ms;
    EXPECT_NEAR(foretold, simulated, 0.02 * simulated);
  }
}

// ---- What always holds ------------------------------------------------------------------------------------------------------

// Samples that break the bound on their weights' age: a sample's first token is of a version at most one behind its own step,
// its last at most one behind the step that trains on it, and none is ahead of what was trained. On-policy nothing is behind.
int64_t too_old(const StepResult& r, StepMode mode) {
  const int32_t behind = mode == StepMode::kSynchronous ? 0 : 1;
  return std::count_if(r.samples.begin(), r.samples.end(), [behind](const SimulatedSample& s) {
    const bool is_put_off = s.move == StepMove::kToNextStep;
    return s.first_version < s.step - behind || s.last_version < s.trained_step - behind || s.last_version > s.trained_step ||
           s.last_version < s.first_version - 1 || s.trained_step != s.step + is_put_off;
  });
}

void expect_sound(const StepResult& r, StepMode mode, const StepOptions& o, const StepWorkload& work) {
  std::vector<int64_t> samples(r.steps.size()), tokens(r.steps.size());
  std::vector<double> last(r.steps.size());
  size_t at = 0;
  for (size_t e = 0; e < work.epochs.size(); ++e) {
    for (const auto& prompt : work.epochs[e]) {
      for (const StepSample& one : prompt) {  // all are there, in order
        ASSERT_LT(at, r.samples.size());
        ASSERT_EQ(r.samples[at++].tokens, one.tokens);
      }
    }
  }
  ASSERT_EQ(at, r.samples.size());
  for (const SimulatedSample& s : r.samples) {
    ASSERT_GT(s.end_ms, 0);
    ++samples[static_cast<size_t>(s.trained_step)];
    tokens[static_cast<size_t>(s.trained_step)] += s.tokens;
    last[static_cast<size_t>(s.trained_step)] = std::max(last[static_cast<size_t>(s.trained_step)], s.end_ms);
  }
  for (size_t s = 0; s < r.steps.size(); ++s) {
    const StepTimes& times = r.steps[s];
    ASSERT_EQ(times.samples, samples[s]);
    ASSERT_EQ(times.tokens, tokens[s]);
    ASSERT_GE(times.rollout_ms + 1e-6, last[s]);
    ASSERT_NEAR(times.train_begin_ms, std::max(times.rollout_ms, s == 0 ? 0 : r.steps[s - 1].train_end_ms), 1e-6);
    ASSERT_NEAR(times.train_end_ms - times.train_begin_ms, o.train_ms + o.train_token_ms * static_cast<double>(tokens[s]),
                1e-3);
    const int64_t needed = static_cast<int64_t>(s) - (mode == StepMode::kSynchronous ? 0 : 1);  // a version
    if (needed > 0) {
      ASSERT_GE(times.begin_ms, r.steps[static_cast<size_t>(needed - 1)].train_end_ms);
    }
  }
  std::map<int32_t, WorkerPart> before;
  for (const WorkerPart& part : r.parts) {
    const auto [previous, is_first] = before.try_emplace(part.worker, part);
    if (!is_first) {
      ASSERT_LT(previous->second.step, part.step);
      ASSERT_LE(previous->second.end_ms, part.begin_ms);
      previous->second = part;
    }
    ASSERT_LT(part.begin_ms, part.end_ms);
  }
  for (const SimulatedSample& s : r.samples) {  // each ended in a part of the step that trains on it
    ASSERT_TRUE(std::any_of(r.parts.begin(), r.parts.end(), [&s](const WorkerPart& p) {
      return p.worker == s.worker && p.step == s.trained_step && p.begin_ms <= s.end_ms && s.end_ms <= p.end_ms;
    }));
  }
  ASSERT_EQ(too_old(r, mode), 0);
  ASSERT_LE(r.busy_share, 1 + 1e-9);
}

TEST(StepSimulator, RandomCasesAreSound) {
  std::mt19937 rng(5);
  int64_t within = 0, put_off = 0;
  for (int i = 0; i < 30; ++i) {
    const StepOptions o = random_step_options(&rng);
    const StepWorkload work = random_work(&rng);
    for (int m = 0; m < kNumStepModes; ++m) {
      SCOPED_TRACE(std::to_string(i) + " " + step_mode_name(static_cast<StepMode>(m)));
      const StepResult r = run_steps(static_cast<StepMode>(m), o, work);
      expect_sound(r, static_cast<StepMode>(m), o, work);
      if (HasFatalFailure()) return;
      if (m < static_cast<int>(StepMode::kMigrated)) {
        EXPECT_EQ(r.num_within_step + r.num_to_next_step, 0);
      }
      if (!o.puts_off) {
        EXPECT_EQ(r.num_to_next_step, 0);
      }
      within += r.num_within_step;
      put_off += r.num_to_next_step;
    }
  }
  EXPECT_GT(within, 50);
  EXPECT_GT(put_off, 50);
}

// The check above would notice.
TEST(StepSimulator, TheBoundOnWeightsCanBeBroken) {
  std::mt19937 rng(6);
  StepResult r = run_steps(StepMode::kHistory, random_step_options(&rng), random_work(&rng));
  EXPECT_EQ(too_old(r, StepMode::kHistory), 0);
  EXPECT_GT(too_old(r, StepMode::kSynchronous), 0);
  for (SimulatedSample& s : r.samples) --s.first_version, --s.last_version;
  EXPECT_GT(too_old(r, StepMode::kHistory), 0);
}

TEST(StepSimulator, IsDeterministic) {
  std::mt19937 rng(7);
  const StepOptions o = random_step_options(&rng);
  const StepWorkload work = random_work(&rng);
  for (int m = 0; m < kNumStepModes; ++m) {
    const StepResult a = run_steps(static_cast<StepMode>(m), o, work), b = run_steps(static_cast<StepMode>(m), o, work);
    EXPECT_EQ(a.end_ms, b.end_ms);
    EXPECT_EQ(a.decisions, b.decisions);
    for (size_t i = 0; i < a.samples.size(); ++i) ASSERT_EQ(a.samples[i].end_ms, b.samples[i].end_ms);
  }
}

// Prompts that keep their lengths, a long tail over prompts: each part of HistoPipe does what it is for.
TEST(StepSimulator, EachPartDoesWhatItIsFor) {
  StepOptions o = flat_steps(8, 4, 100);
  o.cost = affine_costs(8, 0.2, 0, 0);
  std::vector<std::vector<int32_t>> tokens;
  for (int32_t s = 0; s < 4; ++s) {
    for (int32_t q = 0; q < 16; ++q) {
      const int32_t rank = (q * 5 + s) % 16;  // as given they are mixed
      tokens.push_back(std::vector<int32_t>(8, static_cast<int32_t>(40 * std::pow(1.4, rank))));
    }
  }
  const StepWorkload work = repeated(tokens, 4, 4, 0.7f);
  std::vector<double> ms;
  for (int m = 0; m < kNumStepModes; ++m) ms.push_back(run_steps(static_cast<StepMode>(m), o, work).ms_a_step());
  const auto of = [&ms](StepMode m) { return ms[static_cast<size_t>(m)]; };
  EXPECT_LT(of(StepMode::kOneStep), of(StepMode::kSynchronous));
  EXPECT_LT(of(StepMode::kOwnSwitch), of(StepMode::kOneStep));
  EXPECT_LT(of(StepMode::kRanked), of(StepMode::kOneStep));
  EXPECT_EQ(of(StepMode::kMigrated), of(StepMode::kRanked));  // nobody strays
  EXPECT_LT(of(StepMode::kTwoTier), of(StepMode::kOneStep));
  EXPECT_LT(of(StepMode::kHistory), of(StepMode::kTwoTier) / 1.5);
  EXPECT_LT(of(StepMode::kOurs), of(StepMode::kHistory));
  EXPECT_EQ(run_steps(StepMode::kTwoTier, o, work).num_infeasible, 0);
  const double short_training = std::exchange(o.train_ms, 1e6);
  const std::vector<std::string> waits = run_steps(StepMode::kOurs, o, work).decisions;
  ASSERT_FALSE(waits.empty());
  EXPECT_NE(waits.front().find("two steps take 2000.0 s"), std::string::npos) << waits.front();
  o.train_ms = short_training;
  o.least_workers = 3;  // of four groups: more than there are
  const StepResult none = run_steps(StepMode::kTwoTier, o, work);
  EXPECT_EQ(none.num_infeasible, 12);
  EXPECT_EQ(none.ms_a_step(), of(StepMode::kMigrated));
  ASSERT_FALSE(none.decisions.empty());
  EXPECT_NE(none.decisions.front().find("step 5: no plan: 4 groups of at least 3 need more than 8 workers"), std::string::npos);
}

TEST(StepSimulator, WhatMakesNoSenseIsRefused) {
  const auto code = [](auto change, int32_t steps = 3) {
    StepOptions o = flat_steps(2, 2, 1);
    StepWorkload work = repeated({{1}, {2}, {3}, {4}, {5}, {6}}, 2, steps);
    change(&o, &work);
    return simulate_steps(StepMode::kTwoTier, o, work).status().code();
  };
  using O = StepOptions*;
  using W = StepWorkload*;
  EXPECT_EQ(code([](O, W) {}), StatusCode::kOk);
  EXPECT_EQ(code([](O, W) {}, 2), StatusCode::kOk);
  EXPECT_EQ(code([](O o, W) { o->puts_off = true; }, 2), StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](O, W) {}, 1), StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](O, W work) { work->epochs.resize(1); }, 1), StatusCode::kOk);
  EXPECT_EQ(code([](O, W) {}, 0), StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](O, W work) { work->epochs.clear(); }), StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](O, W work) { work->epochs[1].pop_back(); }), StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](O, W work) { work->epochs[1][2].clear(); }), StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](O, W work) { work->epochs[1][2][0].tokens = 0; }), StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](O, W work) { work->epochs[1][2][0].p = 1.5; }), StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](O o, W) { o->groups = 3; }), StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](O o, W) { o->groups = o->workers = 3; }), StatusCode::kInvalidArgument);  // two prompts a step
  EXPECT_EQ(code([](O o, W) { o->groups = 0; }), StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](O o, W) { o->max_batch = 0; }), StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](O o, W) { o->train_ms = -1; }), StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](O o, W) { o->most = 0; }), StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](O o, W) { o->least_workers = 2, o->most_workers = 1; }), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace otr
