// Worker processes that are paced: each by its own clock, all of one beginning; and what comes out is what one thread says
// alone.
#include <gtest/gtest.h>

#include "tests/runtime/process_runs.h"

namespace otr {
namespace {

constexpr double kPassMs = 6;

PaceOptions pace(double scale) {
  CostModel cost;
  for (RoleCost& role : cost.roles) role.pass_ms = kPassMs;
  cost.roles[static_cast<size_t>(CostRole::kDraft)].pass_ms = 1;
  const PacedDrafter small{.name = "small", .cost = cost, .dial = {.keep = 0.5, .deviation = 0.1, .salt = 0}};
  return {.scale = scale, .target = cost, .drafters = {small}, .kv_transfer_ms = 0.01};
}

class PacedProcesses : public Processes {
 protected:
  static ProcessVariant variant(const std::string& policy, int32_t num_draft_workers) {
    return {.num_workers = 8, .policy = policy, .num_draft_workers = num_draft_workers, .max_batch = 24, .pace = pace(1)};
  }
};

// The crowd's samples have 20 tokens: so many passes, none of which is shorter than the profile says.
TEST_F(PacedProcesses, TakeTheirTimeAndChangeNothing) {
  for (const auto& [policy, num_draft_workers] : {std::pair("off", 0), std::pair("fixed:small:3:decoupled", 1)}) {
    const ProcessVariant v = variant(policy, num_draft_workers);
    const std::unique_ptr<Engine> e = engine(v);
    ASSERT_NE(e, nullptr);
    const auto began = std::chrono::steady_clock::now();
    EXPECT_EQ(difference(plain_, roll(e.get())), "") << policy;
    const double wall_ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - began).count();
    read_stats(e.get());
    EXPECT_EQ(count("worker_restarts"), 0);
    if (num_draft_workers == 0) {
      EXPECT_GE(wall_ms, 20 * kPassMs);
    }
    int64_t drafted = 0;
    for (const nlohmann::json& w : stats_["workers"]) {
      ASSERT_TRUE(w.contains("pace")) << policy;
      EXPECT_GT(w["pace"]["passes"], 0);
      drafted += w.contains("drafting") ? w["drafting"]["drafted_tokens"].get<int64_t>() : 0;
    }
    EXPECT_EQ(drafted > 0, num_draft_workers > 0);
    EXPECT_GT(e->pace_stats().modelled_ms, 8 * kPassMs);
  }
}

// Whoever dies or hangs in mid-run is replaced by one that goes by the same clock.
TEST_F(PacedProcesses, AreReplaced) {
  ProcessVariant v = variant("off", 0);
  v.timeout_ms = kSanitized ? 10'000 : 5'000;  // long enough that nobody else is held for hung
  v.faults = {{.worker = 2, .life = 0, .step = ProtocolStep::kTick, .occurrence = 5, .kind = FaultKind::kDie},
              {.worker = 5, .life = 0, .step = ProtocolStep::kTick, .occurrence = 3, .kind = FaultKind::kHang}};
  EXPECT_EQ(difference(plain_, run(v)), "");
  EXPECT_EQ(count("worker_restarts"), 2);
  EXPECT_EQ(count("finished_samples"), plain_.size());
}

TEST_F(PacedProcesses, NeedAClockThatRuns) {
  ProcessVariant v = variant("off", 0);
  v.pace->scale = 0;
  EXPECT_NE(try_engine(v).status().message().find("needs a time scale"), std::string::npos);
  v.pace->scale = 1e6;  // passes of minutes
  EXPECT_NE(try_engine(v).status().message().find("worker_timeout_ms"), std::string::npos);
}

}  // namespace
}  // namespace otr
