// Races and leapfrog between processes: replicas of a sample at several of them, and what comes out is what one thread says
// alone.

#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>
#include <thread>

#include "tests/runtime/killer.h"
#include "tests/runtime/process_runs.h"

namespace otr {
namespace {

class ProcessRaces : public Processes {
 protected:
  // A long tail: samples that go on when all others have ended.
  void SetUp() override {
    Processes::SetUp();
    for (const size_t i : {0, 2})
      requests_[i].sampling.max_new_tokens = kSanitized ? 100 : 300, requests_[i].sampling.ignore_eos = 1;
    plain_ = run({.num_workers = 1, .processes = false});
    open_files_ = num_open_files();
  }
  int64_t sum(const char* key) const {
    int64_t total = 0;
    for (const nlohmann::json& w : stats_["workers"]) total += w.at(key).get<int64_t>();
    return total;
  }
  static ProcessVariant variant(int32_t num_workers, RaceMode race) {
    return {.num_workers = num_workers, .policy = "fixed:small+ngram:3", .race = race};
  }
};

TEST_F(ProcessRaces, ChangeNothing) {
  int64_t replicas = 0, adopted = 0;
  for (const RaceMode race : {RaceMode::kFastestOfN, RaceMode::kLeapfrog}) {
    for (const int32_t num_workers : {2, 4}) {
      for (const int32_t num_draft_workers : {0, num_workers / 2}) {
        if (kSanitized && (num_workers == 4) == (num_draft_workers == 0)) continue;
        ProcessVariant v = variant(num_workers, race);
        v.num_draft_workers = num_draft_workers;
        v.migrate_every = num_workers == 4 ? 7 : 0;
        if (num_draft_workers > 0) v.policy = "fixed:small:4:decoupled", v.delay_seed = 5;
        SCOPED_TRACE(std::to_string(static_cast<int>(race)) + ", " + std::to_string(num_workers) + ", " +
                     std::to_string(num_draft_workers));
        EXPECT_EQ(difference(plain_, run(v)), "");
        EXPECT_EQ(count("worker_restarts"), 0) << stats_["last_worker_loss"];
        EXPECT_EQ(count("finished_samples"), plain_.size());
        EXPECT_EQ(sum("lost_replicas"), sum("replicas"));
        replicas += sum("replicas");
        adopted += sum("adopted_tokens");
      }
    }
    EXPECT_TRUE(race == RaceMode::kLeapfrog || adopted == 0);
  }
  for (int round = 0; round < 20 && adopted == 0; ++round) {  // whether anybody leaps is as the machine likes
    EXPECT_EQ(difference(plain_, run(variant(2, RaceMode::kLeapfrog))), "");
    replicas += sum("replicas");
    adopted += sum("adopted_tokens");
  }
  EXPECT_GT(replicas, 0);
  EXPECT_GT(adopted, 0);
}

TEST_F(ProcessRaces, ArePoliciesOfTheirOwn) {
  requests_[0].sampling.max_new_tokens *= 8;  // far longer than all others: one worker has run dry long before the other
  requests_[2].sampling.max_new_tokens /= 4;
  const Outputs plain = run({.num_workers = 1, .processes = false});
  for (const char* policy : {"specactor", "auto:leapfrog"}) {
    ProcessVariant v = variant(2, RaceMode::kByPolicy);
    v.policy = policy;
    int64_t replicas = 0;  // there are some when one worker has run dry before the other: as the machine likes
    for (int round = 0; round < 10 && replicas == 0; ++round) {
      EXPECT_EQ(difference(plain, run(v)), "") << policy;
      replicas = sum("replicas");
    }
    EXPECT_GT(replicas, 0) << policy;
  }
}

// Threads that keep a checkpoint race too: the ledger knows who has what.
TEST_F(ProcessRaces, CheckpointsKnowOfThem) {
  int64_t replicas = 0;
  for (int round = 0; round < 2 || (replicas == 0 && round < 20); ++round) {  // whether anybody races is as the machine likes
    ProcessVariant v = variant(4, round % 2 == 0 ? RaceMode::kFastestOfN : RaceMode::kLeapfrog);
    v.processes = false;
    v.keeps_checkpoints = true;
    v.migrate_every = 9;
    const std::unique_ptr<Engine> e = engine(v);
    for (size_t i = 0; i < requests_.size(); ++i) submit(e.get(), requests_[i], i);
    const std::string path = model_.path() + "/checkpoint";
    std::thread saver([&] {
      for (int i = 0; i < 20; ++i) EXPECT_TRUE(e->save_checkpoint(path, {}).ok());
    });
    EXPECT_EQ(difference(plain_, collect(e.get())), "");
    saver.join();
    const Status saved = e->save_checkpoint(path, {});
    EXPECT_TRUE(saved.ok()) << saved.message();
    stats_ = settled_stats(*e);
    replicas += sum("replicas");
  }
  EXPECT_GT(replicas, 0);
}

// A token that is not a number ends every replica of its sample, also one that its worker was about to lend: nobody is taken
// for a liar.
TEST_F(ProcessRaces, AllReplicasOfASampleFail) {
  const TinyModel model({.nan_embedding = 96});
  EngineOptions o;
  o.device.num_threads = 2;
  o.device.target.path = model.path();
  o.device.target.kv_bytes = model.kv_bytes(512);
  o.num_workers = 2;
  o.max_batch = 12;
  o.policy = "off";
  o.race = RaceMode::kFastestOfN;
  o.worker_processes = true;
  o.worker_executable = OUTRIDER_WORKER;
  const Result<std::unique_ptr<Engine>> e = Engine::create(o);
  ASSERT_TRUE(e.ok()) << e.status().message();
  Request r(random_tokens(1, 20, 96));
  r.n = 3;
  r.sampling.max_new_tokens = 300;
  r.sampling.ignore_eos = 1;
  int64_t failed = 0, total = 0;
  const auto num_replicas = [&] {
    stats_ = nlohmann::json::parse(e.value()->stats_json());
    return sum("replicas");
  };
  // How many replicas come to run is as the machine likes.
  const uint64_t rounds = kSanitized ? 20 : 200;
  for (uint64_t round = 0; round < rounds || (num_replicas() <= 10 && round < 50 * rounds); ++round) {
    r.sampling.seed = round;
    submit(e.value().get(), r, round);
    for (const auto& [key, output] : collect(e.value().get())) {
      failed += output.reason == OTR_FINISH_ERROR && output.error.find("NaN") != std::string::npos;
      total += 1;
    }
  }
  const auto holds_pages = [&e] { return nlohmann::json::parse(e.value()->stats_json())["kv_pages_in_use"] > 0; };
  for (int i = 0; i < 5000 && holds_pages(); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));  // until who has lost says so
  stats_ = settled_stats(*e.value());
  std::printf("%lld of %lld samples failed, %lld replicas\n", static_cast<long long>(failed), static_cast<long long>(total),
              static_cast<long long>(sum("replicas")));
  EXPECT_GT(failed, total / 2);
  EXPECT_GT(sum("replicas"), 10);
  EXPECT_EQ(sum("lost_replicas"), sum("replicas"));
  EXPECT_EQ(count("finished_samples"), total);
  EXPECT_EQ(count("worker_restarts"), 0) << stats_["last_worker_loss"];
}

class RaceSteps : public ProcessRaces, public testing::WithParamInterface<ProtocolStep> {};

// Whoever lends, or has a replica, fails at the steps that races add.
TEST_P(RaceSteps, CanFail) {
  for (int kind = 0; kind < kNumFatalKinds; ++kind) {
    if (kSanitized && kind % 3 != 0) continue;
    ProcessVariant v = variant(2, RaceMode::kLeapfrog);
    for (int32_t worker = 0; worker < 2; ++worker) {
      v.faults.push_back(
          {.worker = worker, .life = 0, .step = GetParam(), .occurrence = 0, .kind = static_cast<FaultKind>(kind)});
    }
    if (static_cast<FaultKind>(kind) == FaultKind::kHang) v.timeout_ms = kShortTimeoutMs;
    SCOPED_TRACE(text_of(v.faults));
    // Whether anybody races is as the machine likes.
    for (int round = 0; round == 0 || (round < 20 && count("worker_restarts") == 0); ++round) walk(v);
    EXPECT_GT(count("worker_restarts"), 0);
    if (HasFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Step, RaceSteps, testing::Values(ProtocolStep::kLend, ProtocolStep::kDrop, ProtocolStep::kLeap));

TEST_F(ProcessRaces, AnyoneMayKillThem) {
  for (Request& r : requests_) r.sampling.max_new_tokens *= 2;
  const Outputs plain = run({.num_workers = 1, .processes = false});
  ProcessVariant v = variant(3, RaceMode::kLeapfrog);
  v.max_restarts = 1000;
  const std::unique_ptr<Engine> e = engine(v);
  {
    const Killer killer(2, kSanitized ? 900 : 20, kSanitized ? 900 : 99);
    roll_until_one_is_lost(e.get(), plain, kSanitized ? 1 : 3);
  }
  read_stats(e.get());
  EXPECT_GT(count("worker_restarts"), 0);
}

}  // namespace
}  // namespace otr
