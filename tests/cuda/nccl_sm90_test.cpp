// Pages of samples that move from GPU to GPU by NCCL, and what becomes of them when an end errs, hangs or dies. On the emulated device NCCL is
// a fake (fake_nccl.cpp), which can be told to.
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <thread>

#include "runtime/page_port.h"
#include "tests/cuda/gpu_processes.h"

namespace otr {
namespace {

class NcclSm90 : public GpuProcessesSm90 {
 protected:
  void TearDown() override { unsetenv("OTR_FAKE_NCCL"); }

  static GpuVariant moving(NcclOptions nccl) {
    nccl.library = OUTRIDER_NCCL_LIBRARY;
    return {.migrate_every = 2, .rebuild = {.mode = RebuildMode::kTransfer}, .nccl = nccl};
  }
  // Once all have joined, or after a second.
  Outputs run_joined(const GpuVariant& v) {
    const Result<std::unique_ptr<Engine>> engine = create(v);
    if (!engine.ok()) ADD_FAILURE() << engine.status().message();
    if (!engine.ok()) return {};
    wait_for(engine.value().get(), [](const nlohmann::json& nccl) { return nccl["up"].get<bool>(); });
    Outputs outputs = roll(engine.value().get());
    wait_for(engine.value().get(), [](const nlohmann::json&) { return false; }, 20);
    return outputs;
  }
  void wait_for(Engine* e, const std::function<bool(const nlohmann::json&)>& condition, int tries = 1000) {
    do {
      stats_ = nlohmann::json::parse(e->stats_json());
      if (condition(stats_["nccl"])) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    } while (--tries > 0);
  }
  const nlohmann::json& nccl() { return stats_["nccl"]; }
};

TEST_F(NcclSm90, PagesGoFromGpuToGpu) {
  EXPECT_EQ(difference(plain_, run_joined(moving({}))), "");
  EXPECT_GT(nccl()["moves"], 0);
  EXPECT_GT(stats_["kv_copied_tokens"], 0);
  EXPECT_EQ(nccl()["failures"], 0) << nccl();
  EXPECT_EQ(stats_["worker_restarts"], 0);
}

TEST_F(NcclSm90, WhatDoesNotFitIsRefused) {
  GpuVariant v = moving({});
  v.nccl.library = "/nowhere/libnccl.so";
  EXPECT_NE(why_not(create(v)).find("/nowhere/libnccl.so"), std::string::npos);
  v = moving({});
  v.processes = false;
  EXPECT_NE(why_not(create(v)).find("worker processes on GPUs"), std::string::npos);
  for (const int32_t patience_ms : {300'000, std::numeric_limits<int32_t>::max()}) {  // the first is worker_timeout_ms
    const Result<std::unique_ptr<Engine>> refused = create(moving({.patience_ms = patience_ms}));
    EXPECT_EQ(refused.status().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(refused.status().message().find("less than worker_timeout_ms 300000"), std::string::npos) << refused.status().message();
  }
  v = moving({.id = NetId{}, .num_ranks = 2, .first_rank = 1});
  EXPECT_EQ(create(v).status().code(), StatusCode::kInvalidArgument);
  otr_engine_options o;
  otr_engine_options_init(&o, sizeof o);
  const char id[64] = {};
  o.model_path = first_.path().c_str(), o.device = "cuda:0,1", o.worker_processes = 1, o.worker_executable = OUTRIDER_WORKER;
  o.nccl_library = OUTRIDER_NCCL_LIBRARY, o.nccl_unique_id = id, o.nccl_unique_id_bytes = sizeof id;
  otr_engine* engine = nullptr;
  EXPECT_EQ(otr_engine_create(&o, &engine), OTR_INVALID_ARGUMENT);
  EXPECT_NE(std::string(otr_last_error(nullptr)).find("64: an ncclUniqueId has 128"), std::string::npos) << otr_last_error(nullptr);
}

#if defined(OUTRIDER_FAKE_NCCL)

class NcclFaults : public NcclSm90 {
 protected:
  void SetUp() override {
    NcclSm90::SetUp();
    std::filesystem::remove(marker());
  }
  static std::string marker() { return testing::TempDir() + "fake_nccl_" + std::to_string(getpid()); }
  Outputs run_with(const std::string& fault, bool once) {
    setenv("OTR_FAKE_NCCL", (fault + " " + (once ? marker() : "-")).c_str(), 1);
    return run_joined(moving({.patience_ms = 300}));
  }
};

// That the comparison sees what comes this way.
TEST_F(NcclFaults, AWrongByteShows) {
  EXPECT_NE(difference(plain_, run_with("send 0 0 spoil", false)), "");
}

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
  EXPECT_EQ(difference(plain_, run_with("send 1 0 die", true)), "");
  EXPECT_EQ(stats_["worker_restarts"], 1);
  EXPECT_GT(nccl()["generation"], 1) << nccl();
  std::filesystem::remove(marker());
  EXPECT_EQ(difference(plain_, run_with("receive 0 0 die", true)), "");
  EXPECT_EQ(stats_["worker_restarts"], 1);
}

// The trainer's id, of a communicator in which the workers are the last two of three ranks.
TEST_F(NcclFaults, ATrainersIdIsUsedOnce) {
  const Result<NetId> id = make_nccl_id(OUTRIDER_NCCL_LIBRARY);
  ASSERT_TRUE(id.ok()) << id.status().message();
  EXPECT_EQ(difference(plain_, run_joined(moving({.id = id.value(), .num_ranks = 2}))), "");
  EXPECT_EQ(nccl()["generation"], 1) << nccl();
  EXPECT_GT(nccl()["moves"], 0);
  EXPECT_EQ(difference(plain_, run_joined(moving({.id = id.value(), .num_ranks = 3, .first_rank = 1, .patience_ms = 100}))), "");
  EXPECT_EQ(nccl()["failures"], 1) << nccl();  // nobody is rank 0; with an id of its own it goes
}

#endif

}  // namespace
}  // namespace otr
