// Pages of samples that move from GPU to GPU by NCCL. On the emulated device NCCL is a fake (fake_nccl.cpp).
#include <limits>
#include <utility>

#include "runtime/abi_structs.h"
#include "tests/cuda/nccl_runs.h"

namespace otr {
namespace {

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
  for (const int32_t patience_ms : {251, std::numeric_limits<int32_t>::max()}) {
    v = moving({.patience_ms = patience_ms});
    v.timeout_ms = 2004;
    const Result<std::unique_ptr<Engine>> refused = create(v);
    EXPECT_EQ(refused.status().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(refused.status().message().find("must be at most 250, which is worker_timeout_ms / 8"), std::string::npos)
        << refused.status().message();
  }
  v = moving({.id = NetId{}, .num_ranks = 2, .first_rank = 1});
  EXPECT_EQ(create(v).status().code(), StatusCode::kInvalidArgument);
  otr_engine_options o;
  otr_engine_options_init(&o, sizeof o);
  const char id[64] = {};
  o.model_path = first_.path().c_str(), o.device = "cuda:0,1", o.worker_processes = 1,
  o.worker_executable = worker_executable();
  o.nccl_library = OUTRIDER_NCCL_LIBRARY, o.nccl_unique_id = id, o.nccl_unique_id_bytes = sizeof id;
  otr_engine* engine = nullptr;
  EXPECT_EQ(otr_engine_create(&o, &engine), OTR_INVALID_ARGUMENT);
  EXPECT_NE(std::string(otr_last_error(nullptr)).find("64: an ncclUniqueId has 128"), std::string::npos)
      << otr_last_error(nullptr);
  o.nccl_unique_id = nullptr;
  for (const auto& [timeout_ms, patience_ms] :
       {std::pair(300'000, 10'000), std::pair(20'000, 2500), std::pair(8, 1)}) {  // by default what fits
    o.worker_timeout_ms = timeout_ms;
    EXPECT_EQ(engine_options(o).value().nccl.patience_ms, patience_ms);
  }
  o.worker_timeout_ms = 7;  // named by what the caller has set
  EXPECT_EQ(otr_engine_create(&o, &engine), OTR_INVALID_ARGUMENT);
  EXPECT_NE(std::string(otr_last_error(nullptr)).find("worker_timeout_ms 7 must be at least 8 with"), std::string::npos)
      << otr_last_error(nullptr);
}

}  // namespace
}  // namespace otr
