// What becomes of samples when pages go from GPU to GPU by NCCL and an end errs, hangs, dies or comes late, wherever it is. On
// the emulated device, where NCCL is a fake that can be told to fail (fake_nccl.cpp).
#if defined(OUTRIDER_FAKE_NCCL)

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>

#include "runtime/page_port.h"
#include "tests/cuda/nccl_runs.h"
#include "tests/runtime/process_variant.h"

namespace otr {
namespace {

constexpr int32_t kPatienceMs = 300, kTimeoutMs = 2400;  // the least for such a patience: PageNet::kTimeoutShare
constexpr int32_t kLongPatienceMs = 20'000;              // where nothing hangs nobody is to be held for late

class NcclFaults : public NcclSm90 {
 protected:
  using Clock = std::chrono::steady_clock;

  void SetUp() override {
    NcclSm90::SetUp();
    remove_markers();
  }
  void TearDown() override {
    remove_markers();
    NcclSm90::TearDown();
  }
  static std::string marker(int number = 0) {
    return testing::TempDir() + "fake_nccl_" + std::to_string(getpid()) + "_" + std::to_string(number);
  }
  static void remove_markers() {
    for (const int number : {0, 1}) std::filesystem::remove(marker(number));
  }
  static void plan(const std::string& faults) { setenv("OTR_FAKE_NCCL", faults.c_str(), 1); }
  static double seconds_since(Clock::time_point began) { return std::chrono::duration<double>(Clock::now() - began).count(); }

  static GpuVariant variant(int32_t num_workers) {
    GpuVariant v = moving({.patience_ms = kPatienceMs});
    v.gpus.clear();
    for (int32_t gpu = 0; gpu < num_workers; ++gpu) v.gpus.push_back(gpu);
    v.num_workers = num_workers;
    v.timeout_ms = kTimeoutMs;
    return v;
  }
  Outputs run_with(const std::string& fault, bool once) {
    plan(fault + " " + (once ? marker() : "-"));
    // Who hangs is waited for: once that may take long enough that nobody else is held for late.
    const int32_t patience_ms = !fault.ends_with("hang") ? kLongPatienceMs : once ? 10 * kPatienceMs : kPatienceMs;
    return run_joined(moving({.patience_ms = patience_ms}));
  }
  // Two rollouts; then every page of every process is back, all within a bounded time, the engine's end too.
  void walk(const GpuVariant& v) {
    const Clock::time_point began = Clock::now();
    {
      const Result<std::unique_ptr<Engine>> engine = create(v);
      ASSERT_TRUE(engine.ok()) << engine.status().message();
      wait_until_joined(engine.value().get());
      for (int round = 0; round < 2; ++round)
        EXPECT_EQ(difference(plain_, roll(engine.value().get())), "") << "round " << round;
      await_pages(engine.value().get());
    }
    EXPECT_LT(seconds_since(began), 40);
    EXPECT_EQ(children(), std::vector<pid_t>());
  }
  // A process whose net hangs has none of its pages back before it is ended.
  void await_pages(Engine* e) {
    const auto all_are_back = [](const nlohmann::json& s) { return s["kv_pages_in_use"] == 0 && s["kv_pages_leased"] == 0; };
    const Clock::time_point began = Clock::now();
    do {
      EXPECT_TRUE(e->pause().ok());  // whoever rests has told all
      wait_for(e, all_are_back, 1);
      e->resume();
    } while (!all_are_back(stats_) && seconds_since(began) < 10);
    EXPECT_EQ(stats_["kv_pages_in_use"], 0) << stats_["workers"];
    EXPECT_EQ(stats_["kv_pages_leased"], 0) << stats_["workers"];
  }
  int64_t num_restarts() { return stats_["worker_restarts"].get<int64_t>(); }
  int64_t num_struck() { return num_restarts() + nccl()["failures"].get<int64_t>(); }
};

// That the comparison sees what comes this way.
TEST_F(NcclFaults, AWrongByteShows) { EXPECT_NE(difference(plain_, run_with("send 0 0 spoil", false)), ""); }

TEST_F(NcclFaults, AnErrorIsOverAtTheNextJoining) {
  for (const char* fault : {"send 0 0 error", "receive 0 0 hang"}) {
    std::filesystem::remove(marker());
    EXPECT_EQ(difference(plain_, run_with(fault, true)), "") << fault;
    EXPECT_EQ(nccl()["failures"], 1) << nccl();
    EXPECT_EQ(nccl()["generation"], 2) << nccl();
    EXPECT_EQ(stats_["worker_restarts"], 0);
  }
}

// Pages go by file then.
TEST_F(NcclFaults, WhoeverFailsAlwaysIsDoneWithout) {
  EXPECT_EQ(difference(plain_, run_with("join 1 0 error", false)), "");
  EXPECT_FALSE(nccl()["up"]) << nccl();
  EXPECT_EQ(nccl()["failures"], 3) << nccl();
  EXPECT_GT(stats_["kv_copied_tokens"], 0);
  EXPECT_EQ(difference(plain_, run_with("send 1 0 hang", false)), "");
  EXPECT_GT(nccl()["failures"], 0) << nccl();
  EXPECT_EQ(stats_["worker_restarts"], 0);
}

TEST_F(NcclFaults, APeerKilledInATransferLosesNothing) {
  for (const char* fault : {"send 1 0 die", "receive 0 0 die"}) {
    // Who sends and who receives is as the machine likes; and a rollout may end before the new process has joined.
    const auto is_seen = [&] { return num_restarts() > 0 && nccl()["generation"] > 1; };
    for (int round = 0; round == 0 || (round < 5 && !is_seen()); ++round) {
      std::filesystem::remove(marker());
      EXPECT_EQ(difference(plain_, run_with(fault, true)), "") << fault;
    }
    EXPECT_EQ(num_restarts(), 1) << fault;
    EXPECT_GT(nccl()["generation"], 1) << nccl();
  }
}

// The trainer's id, of a communicator in which the workers are the last two of three ranks.
TEST_F(NcclFaults, ATrainersIdIsUsedOnce) {
  const Result<NetId> id = make_nccl_id(OUTRIDER_NCCL_LIBRARY);
  ASSERT_TRUE(id.ok()) << id.status().message();
  EXPECT_EQ(difference(plain_, run_joined(moving({.id = id.value(), .num_ranks = 2, .patience_ms = kLongPatienceMs}))), "");
  EXPECT_EQ(nccl()["generation"], 1) << nccl();
  EXPECT_GT(nccl()["moves"], 0);
  EXPECT_EQ(difference(plain_, run_joined(moving({.id = id.value(), .num_ranks = 3, .first_rank = 1, .patience_ms = 500}))),
            "");
  EXPECT_EQ(nccl()["failures"], 1) << nccl();  // nobody is rank 0; with an id of its own it goes
  EXPECT_GT(nccl()["moves"], 0) << nccl();
}

class NetSteps : public NcclFaults, public testing::WithParamInterface<int> {};

// At every step, in every way, at each of three workers: whoever sends, receives or has nothing to do with it. Without
// OUTRIDER_LONG_TESTS one of each step: every kind and worker is among them.
TEST_P(NetSteps, CanFail) {
  const bool is_long = std::getenv("OUTRIDER_LONG_TESTS") != nullptr;
  const ProtocolStep step = static_cast<ProtocolStep>(GetParam());
  for (int kind = 0; kind < kNumFaultKinds; ++kind) {
    const FaultKind fault = static_cast<FaultKind>(kind);
    const bool leaves = step == ProtocolStep::kNetLeave;
    if (leaves && fault == FaultKind::kRefuse) continue;  // leaving needs no memory: PageNets.LeavingNeedsNoMemory
    for (int32_t worker = 0; worker < 3; ++worker) {
      const int number = GetParam() - kFirstNetStep;
      if (!is_long && (kind != number % kNumFaultKinds || worker != number % 3)) continue;
      GpuVariant v = variant(3);
      v.faults = {{.worker = worker, .life = 0, .step = step, .occurrence = 0, .kind = fault}};
      if (leaves) {  // which somebody else's death brings
        v.faults.push_back(
            {.worker = (worker + 1) % 3, .life = 0, .step = ProtocolStep::kNetPull, .occurrence = 0, .kind = FaultKind::kDie});
      }
      SCOPED_TRACE(text_of(v.faults));
      // That death, and its failure, are not what is to be seen: a process that leaves has to end.
      const auto is_seen = [&] { return leaves ? num_restarts() > 1 : num_struck() > 0; };
      // Who sends and who receives is as the machine likes; and what comes late may not be missed.
      for (int round = 0; round == 0 || (fault != FaultKind::kLate && round < 5 && !is_seen()); ++round) walk(v);
      if (fault != FaultKind::kLate) {
        EXPECT_TRUE(is_seen()) << stats_;
      }
      if (HasFailure()) return;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Step, NetSteps, testing::Range(kFirstNetStep, kNumProtocolSteps));

// Two fail at once, while the third may be at the other end of either.
TEST_F(NcclFaults, BothEndsOfAMoveMayFail) {
  GpuVariant v = variant(3);
  v.faults = {{.worker = 0, .life = 0, .step = ProtocolStep::kNetSend, .occurrence = 0, .kind = FaultKind::kHang},
              {.worker = 1, .life = 0, .step = ProtocolStep::kNetReceive, .occurrence = 0, .kind = FaultKind::kDie}};
  walk(v);
  EXPECT_GT(stats_["worker_restarts"], 0);
}

// An abort that does not come back: its process is ended when the engine's patience is over, and with it go the pages that were
// being sent.
TEST_F(NcclFaults, AnAbortThatHangsEndsItsProcess) {
  plan("send 0 0 error " + marker(0) + ";abort 0 0 hang " + marker(1));
  walk(variant(2));
  EXPECT_TRUE(std::filesystem::exists(marker(1)));
  EXPECT_EQ(stats_["worker_restarts"], 1);
  EXPECT_GT(stats_["kv_copied_tokens"], 0);
}

// An abort that comes back while the stream still has work: that is waited for once, for a move's patience. By the engine's it
// would be over in a minute, which is longer than a walk may take.
TEST_F(NcclFaults, AStreamThatClingsEndsItsProcess) {
  plan("send 0 0 error " + marker(0) + ";abort 0 0 cling " + marker(1));
  GpuVariant v = variant(2);
  v.timeout_ms = 30'000;
  walk(v);
  EXPECT_TRUE(std::filesystem::exists(marker(1)));
  EXPECT_EQ(stats_["worker_restarts"], 1);
}

// The engine is gone for ever: its processes go too, though one is in an abort that hangs.
TEST_F(NcclFaults, AKilledEnginesProcessesEndInAnyCase) {
  ASSERT_EQ(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);  // they are this process' then
  plan("send 0 0 error " + marker(0) + ";abort 0 0 hang " + marker(1));
  const std::string hangs = marker(1);
  const pid_t victim = fork();
  ASSERT_GE(victim, 0);
  if (victim == 0) {
    const Result<std::unique_ptr<Engine>> engine = create(variant(2));
    wait_until_joined(engine.value().get());
    for (;;) roll(engine.value().get());
  }
  for (int i = 0; i < 20'000 && !std::filesystem::exists(hangs); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_TRUE(std::filesystem::exists(hangs));
  ASSERT_EQ(kill(victim, SIGKILL), 0);
  const Clock::time_point began = Clock::now();
  ASSERT_EQ(waitpid(victim, nullptr, 0), victim);
  while (waitpid(-1, nullptr, WNOHANG) >= 0 && seconds_since(began) < 20)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_LT(seconds_since(began), 20);
  for (const pid_t left : children()) kill(left, SIGKILL);
  EXPECT_EQ(prctl(PR_SET_CHILD_SUBREAPER, 0), 0);
}

}  // namespace
}  // namespace otr

#endif
