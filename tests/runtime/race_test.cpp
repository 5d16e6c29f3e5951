// Fastest-of-N and leapfrog: replicas of a sample race at several workers, and what comes out is what one says alone.

#include "runtime/race.h"

#include <gtest/gtest.h>

#include <random>

#include "tests/runtime/engine_runs.h"
#include "tests/runtime/every_path.h"

namespace otr {
namespace {

struct RaceVariant {
  int32_t num_workers = 2;
  std::string policy = "fixed:small+ngram:3";
  RaceMode race = RaceMode::kFastestOfN;
  int32_t num_draft_workers = 0;
  int32_t migrate_every = 0;
  uint32_t delay_seed = 0;
  uint32_t seed = 1;
};

std::string name_of(const RaceVariant& v) {
  return v.policy + (v.race == RaceMode::kLeapfrog ? ", leapfrog, " : ", fastest of N, ") + std::to_string(v.num_workers) +
         " workers, of them " + std::to_string(v.num_draft_workers) + " draft, a move every " + std::to_string(v.migrate_every);
}

class Races : public EveryPath {
 protected:
  void SetUp() override {
    EveryPath::SetUp();
    requests_ = mixed_requests(model_);
    requests_.resize(std::string(GetParam()) == "cpu-scalar" ? 3 : 6);
    // A long tail: samples that go on when all others have ended.
    for (size_t i : {0, 2})
      requests_[i].sampling.max_new_tokens = kSanitized || std::string(GetParam()) == "cpu-scalar" ? 100 : 300,
      requests_[i].sampling.ignore_eos = 1;
  }

  std::unique_ptr<Engine> engine(const RaceVariant& v) const {
    EngineOptions o;
    o.device.isa = GetParam();
    o.device.num_threads = v.num_workers;
    o.device.target.path = model_.path();
    o.device.target.kv_bytes = model_.kv_bytes(int64_t{256} * v.num_workers);
    o.num_workers = v.num_workers;
    o.num_draft_workers = v.num_draft_workers;
    o.max_batch = 64;
    o.policy = v.policy;
    o.race = v.race;
    o.proofs = {.migrate_every = v.migrate_every, .migration_seed = v.seed, .delay_seed = v.delay_seed};
    o.drafters = {"small=model:" + drafter_.path()};
    Result<std::unique_ptr<Engine>> created = Engine::create(o);
    EXPECT_TRUE(created.ok()) << created.status().message();
    return created.ok() ? std::move(created.value()) : nullptr;
  }
  int64_t sum(const char* key) const {
    int64_t total = 0;
    for (const nlohmann::json& w : stats_["workers"]) total += w.at(key).get<int64_t>();
    return total;
  }
  Outputs run(const RaceVariant& v) {
    const std::unique_ptr<Engine> e = engine(v);
    if (e == nullptr) return {};
    for (size_t i = 0; i < requests_.size(); ++i) submit(e.get(), requests_[i], i);
    Outputs outputs = collect(e.get());
    stats_ = settled_stats(*e);
    EXPECT_EQ(stats_["finished_samples"], outputs.size()) << name_of(v);
    EXPECT_EQ(sum("lost_replicas"), sum("replicas")) << name_of(v);  // all but one of each sample
    return outputs;
  }

  const TinyModel model_{{.num_layers = 2}};
  const TinyModel drafter_{{.hidden_size = 16, .intermediate_size = 24, .seed = 9}};
  std::vector<Request> requests_;
  nlohmann::json stats_;
};

TEST_P(Races, ChangeNothing) {
  const Outputs plain = run({.num_workers = 1, .policy = "off", .race = RaceMode::kOff});
  int64_t replicas = 0, adopted = 0;
  for (const RaceMode race : {RaceMode::kFastestOfN, RaceMode::kLeapfrog}) {
    for (const int32_t num_workers : {2, 4}) {
      for (const int32_t migrate_every : {0, 7}) {
        if (kSanitized && (migrate_every == 0) != (num_workers == 2)) continue;
        const RaceVariant v{.num_workers = num_workers, .race = race, .migrate_every = migrate_every};
        EXPECT_EQ(difference(plain, run(v)), "") << name_of(v);
        replicas += sum("replicas");
        adopted += sum("adopted_tokens");
      }
      const RaceVariant decoupled{.num_workers = num_workers,
                                  .policy = "fixed:small:4:decoupled",
                                  .race = race,
                                  .num_draft_workers = num_workers / 2,
                                  .delay_seed = 5};
      EXPECT_EQ(difference(plain, run(decoupled)), "") << name_of(decoupled);
    }
    EXPECT_TRUE(race == RaceMode::kLeapfrog || adopted == 0);
  }
  for (int round = 0; round < 20 && adopted == 0; ++round) {  // whether anybody leaps is as the machine likes
    EXPECT_EQ(difference(plain, run({.race = RaceMode::kLeapfrog})), "");
    replicas += sum("replicas");
    adopted += sum("adopted_tokens");
  }
  EXPECT_GT(replicas, 0);
  EXPECT_GT(adopted, 0);
}

TEST_P(Races, ArePoliciesOfTheirOwn) {
  const Outputs plain = run({.num_workers = 1, .policy = "off", .race = RaceMode::kOff});
  for (const char* policy : {"specactor", "auto:leapfrog"}) {
    const RaceVariant v{.num_workers = 2, .policy = policy, .race = RaceMode::kByPolicy};
    int64_t replicas = 0;  // there are some when one worker has run dry before the other: as the machine likes
    for (int round = 0; round < 10 && replicas == 0; ++round) {
      EXPECT_EQ(difference(plain, run(v)), "") << policy;
      replicas = sum("replicas");
    }
    EXPECT_GT(replicas, 0) << policy;
  }
  EXPECT_EQ(difference(plain, run({.policy = "auto", .race = RaceMode::kByPolicy})), "");
  EXPECT_EQ(sum("replicas"), 0);
}

// A token that is not a number ends every replica of its sample, all at about the same time: the sample has one end, and what
// is kept for checkpoints is right whichever of them is heard first.
TEST(RaceFaults, AllReplicasOfASampleFail) {
  const TinyModel model({.nan_embedding = 96});
  EngineOptions o;
  o.device.num_threads = 4;
  o.device.target.path = model.path();
  o.device.target.kv_bytes = model.kv_bytes(1024);
  o.num_workers = 4;
  o.max_batch = 64;
  o.policy = "off";
  o.race = RaceMode::kLeapfrog;
  o.keeps_checkpoints = true;
  const Result<std::unique_ptr<Engine>> e = Engine::create(o);
  ASSERT_TRUE(e.ok()) << e.status().message();
  Request r(random_tokens(1, 20, 96));
  r.n = 4;
  r.sampling.max_new_tokens = 400;
  r.sampling.ignore_eos = 1;
  int64_t failed = 0;
  for (uint64_t round = 0; round < (kSanitized ? 30u : 150u); ++round) {
    r.sampling.seed = round;
    submit(e.value().get(), r, round);
    for (const auto& [key, output] : collect(e.value().get())) failed += output.reason == OTR_FINISH_ERROR;
    const Status saved = e.value()->save_checkpoint(model.path() + "/state", {});
    ASSERT_TRUE(saved.ok()) << round << ": " << saved.message();
  }
  const nlohmann::json stats = settled_stats(*e.value());
  int64_t replicas = 0, lost = 0;
  for (const nlohmann::json& w : stats["workers"])
    replicas += w.at("replicas").get<int64_t>(), lost += w.at("lost_replicas").get<int64_t>();
  std::printf("%lld samples failed, %lld replicas\n", static_cast<long long>(failed), static_cast<long long>(replicas));
  EXPECT_GT(failed, 10);
  EXPECT_GT(replicas, failed);
  EXPECT_EQ(lost, replicas);
}

// Cancelled while its replicas run, a sample ends once, with tokens that are the right ones.
TEST_P(Races, CancelEndsAllReplicas) {
  const Outputs plain = run({.num_workers = 1, .policy = "off", .race = RaceMode::kOff});
  std::mt19937 random(7);
  for (int round = 0; round < (kSanitized ? 2 : 6); ++round) {
    const std::unique_ptr<Engine> e =
        engine({.num_workers = 3, .race = round % 2 == 0 ? RaceMode::kLeapfrog : RaceMode::kFastestOfN});
    std::vector<uint64_t> groups;
    for (size_t i = 0; i < requests_.size(); ++i) groups.push_back(submit(e.get(), requests_[i], i));
    std::this_thread::sleep_for(std::chrono::milliseconds(random() % 20));
    (void)e->cancel(groups[random() % 3]);  // it may be over
    const Outputs outputs = collect(e.get());
    EXPECT_EQ(outputs.size(), plain.size());
    for (const auto& [key, output] : outputs) {
      const Output& whole = plain.at(key);
      ASSERT_LE(output.tokens.size(), whole.tokens.size());
      EXPECT_TRUE(std::equal(output.tokens.begin(), output.tokens.end(), whole.tokens.begin()));
      EXPECT_TRUE(std::equal(output.logprobs.begin(), output.logprobs.end(), whole.logprobs.begin()));
    }
    settled_stats(*e);
  }
}

OTR_INSTANTIATE_EVERY_PATH(Races);

Sequence replica(int32_t num_prompt, int32_t rung) {
  Sequence s;
  s.group = std::make_shared<Group>();
  s.group->num_prompt = num_prompt;
  s.max_tokens = 20;
  s.rung = rung;
  s.tokens.assign(static_cast<size_t>(num_prompt), 1);
  return s;
}
void find(Race* race, Sequence* s, std::vector<int32_t> tokens) {
  for (const int32_t t : tokens) {
    s->tokens.push_back(t);
    s->logprobs.push_back(-static_cast<float>(t));
    s->raw_logprobs.push_back(static_cast<float>(t));
  }
  race->publish(*s, static_cast<int32_t>(tokens.size()));
}

TEST(Race, TheFirstToFinishWins) {
  const Sequence s = replica(3, 0);
  Race race(s, false);
  race.enter(1);
  race.enter(2);
  EXPECT_EQ(race.rungs(), 7u);
  EXPECT_FALSE(race.finish(true));  // two others run
  EXPECT_FALSE(race.over());
  EXPECT_TRUE(race.finish(false));
  EXPECT_TRUE(race.over());
  EXPECT_FALSE(race.finish(false));
  Race failing(s, false);
  failing.enter(1);
  EXPECT_FALSE(failing.finish(true));
  EXPECT_TRUE(failing.finish(true));  // nobody is left: its error is the sample's
}

TEST(Race, WhatOneFindsIsTheOthers) {
  Sequence a = replica(3, 0), b = replica(3, 1);
  Race race(a, true);
  race.enter(1);
  find(&race, &a, {5, 6, 7});
  find(&race, &b, {5});
  EXPECT_EQ(race.adopt(&b), 2);
  EXPECT_EQ(b.tokens, a.tokens);
  EXPECT_EQ(b.logprobs, a.logprobs);
  EXPECT_EQ(b.raw_logprobs, a.raw_logprobs);
  EXPECT_EQ(race.adopt(&b), 0);
  find(&race, &b, {8, 9});
  EXPECT_EQ(race.adopt(&a), 2);
  EXPECT_EQ(a.logprobs, b.logprobs);
  // A token that ends the sample is found by each replica itself, and so is the last one.
  a.group->stop_ids = b.group->stop_ids = {10};
  find(&race, &a, {4, 10});
  EXPECT_EQ(race.adopt(&b), 1);
  Sequence c = replica(3, 0), d = replica(3, 1);
  Race longest(c, true);
  find(&longest, &c, std::vector<int32_t>(17, 2));
  EXPECT_EQ(longest.adopt(&d), 16);
}

TEST(Race, WhoDisagreeDoNotLeap) {
  Sequence a = replica(3, 0), b = replica(3, 1), c = replica(3, 2);
  Race race(a, true);
  find(&race, &a, {5, 6, 7});
  find(&race, &b, {5, 1});
  EXPECT_EQ(race.adopt(&c), 0);
}

}  // namespace
}  // namespace otr
