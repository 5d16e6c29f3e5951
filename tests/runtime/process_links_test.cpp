// Draft workers that are processes: drafts come from another process, and nothing but time changes, whichever end is lost.

#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <random>

#include "tests/runtime/killer.h"
#include "tests/runtime/process_runs.h"

namespace otr {
namespace {

class ProcessLinks : public Processes {
 protected:
  int64_t drafting(const char* key) const { return drafting_sum(stats_, key); }
  ProcessVariant variant(int32_t num_workers, int32_t num_draft_workers) const {
    return {.num_workers = num_workers, .policy = "fixed:small:4:decoupled", .num_draft_workers = num_draft_workers};
  }
};

TEST_F(ProcessLinks, ChangeNothing) {
  int64_t kept = 0, migrations = 0;
  for (const int32_t num_workers : {2, 4}) {
    for (const int32_t migrate_every : {0, 5}) {
      for (const uint32_t delay_seed : {0u, 7u}) {
        if (kSanitized && (migrate_every == 0) != (delay_seed == 0)) continue;
        ProcessVariant v = variant(num_workers, num_workers == 4 && delay_seed == 0 ? 2 : 1);
        if (num_workers == 4) v.policy = "fixed:ngram+small+self:7:decoupled";
        v.migrate_every = migrate_every;
        v.delay_seed = delay_seed;
        EXPECT_EQ(difference(plain_, run(v)), "") << num_workers << ", " << migrate_every << ", " << delay_seed;
        EXPECT_EQ(count("worker_restarts"), 0);
        EXPECT_GT(drafting("requests"), 0);
        const int64_t window = num_workers == 2 ? 4 : 7;
        EXPECT_LE(drafting("wasted_tokens"), (2 * window - 1) * drafting("rollbacks"));
        kept += drafting("kept_tokens");
        migrations += count("migrations");
      }
    }
  }
  EXPECT_GT(kept, 0);
  EXPECT_GT(migrations, 0);
}

TEST_F(ProcessLinks, PoliciesMayChooseThem) {
  for (const char* policy : {"specactor", "auto"}) {
    ProcessVariant v = variant(3, 1);
    v.policy = policy;
    EXPECT_EQ(difference(plain_, run(v)), "") << policy;
    EXPECT_TRUE(stats_.contains("plan")) << policy;
  }
}

// Queues that hold one message, and sockets that take as little at a time as the system lets: whoever finds no room comes
// again, and neither engine nor processes wait for one another for ever.
TEST_F(ProcessLinks, FullQueuesChangeNothing) {
  for (const int32_t num_draft_workers : {0, 1}) {
    ProcessVariant v = variant(3, num_draft_workers);
    if (num_draft_workers == 0) v.policy = "fixed:small+ngram:4", v.race = RaceMode::kLeapfrog;
    v.trace_path = model_.path() + "/trace.json";
    v.migrate_every = 6;
    v.link_capacity = v.socket_bytes = 1;
    v.delay_seed = 5;
    const auto began = std::chrono::steady_clock::now();
    EXPECT_EQ(difference(plain_, run(v)), "") << num_draft_workers;
    EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(kSanitized ? 120 : 30));
    EXPECT_EQ(count("worker_restarts"), 0);
    // Else it would be no test of full queues.
    EXPECT_GT(count("full_sockets"), static_cast<int64_t>(plain_.size()));
    if (num_draft_workers == 0) continue;
    EXPECT_GT(drafting("full_links"), 0);
    int64_t full_links = 0;
    for (const nlohmann::json& w : stats_["workers"]) full_links += w.value("full_links", int64_t{0});
    EXPECT_GT(full_links, 0);
  }
}

class LinkSteps : public ProcessLinks, public testing::WithParamInterface<ProtocolStep> {};

// Either end dies at every step that links add; in every other way one of them fails.
TEST_P(LinkSteps, CanFail) {
  for (int kind = 0; kind < kNumFatalKinds; ++kind) {
    for (const int32_t worker : {0, 1}) {
      const bool dies = static_cast<FaultKind>(kind) == FaultKind::kDie;
      if ((kSanitized || !dies) && (kind + static_cast<int>(GetParam())) % 2 != worker) continue;
      if (kSanitized && kind > 2) continue;
      ProcessVariant v = variant(3, 1);
      const WorkerFault fault{
          .worker = worker, .life = 0, .step = GetParam(), .occurrence = 0, .kind = static_cast<FaultKind>(kind)};
      v.faults = {fault};
      if (GetParam() == ProtocolStep::kRelink) {  // which somebody else's death brings
        v.faults.push_back(
            {.worker = 1 - worker, .life = 0, .step = ProtocolStep::kLink, .occurrence = 1, .kind = FaultKind::kDie});
      }
      if (fault.kind == FaultKind::kHang) v.timeout_ms = kShortTimeoutMs;
      SCOPED_TRACE(text_of(v.faults));
      walk(v);
      EXPECT_GE(count("worker_restarts"), static_cast<int64_t>(v.faults.size()));
      if (HasFailure()) return;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Step, LinkSteps,
                         testing::Values(ProtocolStep::kRoles, ProtocolStep::kRelink, ProtocolStep::kLinked,
                                         ProtocolStep::kLink));

// A drafter that is lost for ever is done without; so are all the verifiers.
TEST_F(ProcessLinks, WhoIsGivenUpIsDoneWithout) {
  for (const bool drafter : {true, false}) {
    ProcessVariant v = variant(3, 1);
    v.max_restarts = 0;
    for (int32_t w = drafter ? 0 : 1; w < (drafter ? 1 : 3); ++w) {
      v.faults.push_back({.worker = w, .life = 0, .step = ProtocolStep::kLink, .occurrence = 3, .kind = FaultKind::kDie});
    }
    const std::unique_ptr<Engine> e = engine(v);
    for (int round = 0; round < 2; ++round) EXPECT_EQ(difference(plain_, roll(e.get())), "") << drafter << ", " << round;
    read_stats(e.get());
    EXPECT_EQ(count("worker_restarts"), 0);
  }
}

// The drafter is killed again and again: its requests go on plainly and are opened anew.
TEST_F(ProcessLinks, AnyoneMayKillThem) {
  for (Request& r : requests_) r.sampling.max_new_tokens *= 4;
  const Outputs plain = run({.num_workers = 1, .processes = false});
  ProcessVariant v = variant(3, 1);
  v.max_restarts = 1000;
  const std::unique_ptr<Engine> e = engine(v);
  {
    const Killer killer(1, kSanitized ? 900 : 20, kSanitized ? 900 : 99);
    roll_until_one_is_lost(e.get(), plain, kSanitized ? 1 : 3);
  }
  EXPECT_EQ(difference(plain, roll(e.get())), "");
  read_stats(e.get());
  EXPECT_GT(count("worker_restarts"), 0);
  EXPECT_GT(drafting("requests"), 0);
}

TEST_F(ProcessLinks, RandomFaultsChangeNothing) {
  const bool is_long = std::getenv("OUTRIDER_LONG_TESTS") != nullptr;
  const int rounds = is_long ? 200 : kSanitized ? 2 : 8;
  int64_t restarts = 0;
  // As many more rounds as it takes until enough faults have struck.
  for (int round = 0; round < rounds || (restarts <= rounds / 2 && round < 3 * rounds); ++round) {
    std::mt19937 generator(static_cast<uint32_t>(1000 + round));
    const auto random = [&generator](uint32_t below) { return static_cast<uint32_t>(generator()) % below; };
    const int32_t num_workers = 2 + static_cast<int32_t>(random(3));
    ProcessVariant v = variant(num_workers, 1 + static_cast<int32_t>(num_workers == 4 && random(2) == 0));
    v.timeout_ms = kMediumTimeoutMs;
    v.migrate_every = static_cast<int32_t>(random(4));
    v.seed = random(UINT32_MAX);
    v.delay_seed = random(2) == 0 ? 0 : 1 + random(1000);
    for (uint32_t i = 1 + random(5); i > 0; --i) {
      const uint32_t first = static_cast<uint32_t>(ProtocolStep::kStart);
      v.faults.push_back({.worker = static_cast<int32_t>(random(static_cast<uint32_t>(v.num_workers))),
                          .life = static_cast<int32_t>(random(2)),
                          .step = static_cast<ProtocolStep>(first + random(static_cast<uint32_t>(kFirstNetStep) - first)),
                          .occurrence = static_cast<int32_t>(random(12)),
                          .kind = static_cast<FaultKind>(random(kNumFatalKinds))});
    }
    SCOPED_TRACE("round " + std::to_string(round) + ": " + text_of(v.faults));
    walk(v);
    restarts += count("worker_restarts");
    if (HasFailure()) return;
  }
  EXPECT_GT(restarts, rounds / 2);
}

}  // namespace
}  // namespace otr
