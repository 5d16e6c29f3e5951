// A test of worker processes on GPUs: its requests, what one thread on one GPU makes of them, and engines.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "kernels/cuda/cuda_device.h"
#include "runtime/engine.h"
#include "tests/runtime/engine_runs.h"

namespace otr {

// A bundle's programs lie elsewhere than where they were built: $OUTRIDER_WORKER says where the worker's is.
inline const char* worker_executable() {
  const char* const elsewhere = std::getenv("OUTRIDER_WORKER");
  return elsewhere != nullptr ? elsewhere : OUTRIDER_WORKER;
}

struct GpuVariant {
  std::vector<int32_t> gpus = {0, 1};
  int32_t num_workers = 2;
  bool processes = true;
  std::string policy = "off";
  std::string drafter_kind = "model:";
  int32_t num_draft_workers = 0;
  int32_t migrate_every = 0;
  RebuildOptions rebuild = {};
  std::vector<WorkerFault> faults = {};
  NcclOptions nccl = {};
  int32_t num_pages = 24;  // of a worker
  int32_t timeout_ms = 300'000;
};

class GpuProcessesSm90 : public testing::Test {
 protected:
  void SetUp() override {
    if (!CudaDevice::open(1).ok()) GTEST_SKIP() << "one device alone, or none";
    if (access(worker_executable(), X_OK) != 0) GTEST_SKIP() << "no " << worker_executable();
    for (uint64_t i = 0; i < 3; ++i) {
      requests_.emplace_back(random_tokens(static_cast<uint32_t>(i), 70 + 40 * i, 97));
      requests_.back().stream = i;
      requests_.back().sampling.max_new_tokens = 8;
      requests_.back().sampling.ignore_eos = 1;
    }
    requests_.front().n = 2;
    plain_ = run(alone_);
  }

  Result<std::unique_ptr<Engine>> create(const GpuVariant& v) const {
    EngineOptions o;
    o.device = {.isa = kCudaPath,
                .num_threads = 1,
                .target = {.path = model_->path(), .kv_bytes = model_->kv_bytes(v.num_pages * v.num_workers), .bucket = {}}};
    o.gpus = v.gpus;
    o.num_workers = v.num_workers;
    o.num_draft_workers = v.num_draft_workers;
    o.policy = v.policy;
    o.drafters = {"other=" + v.drafter_kind + drafter_.path()};
    o.max_batch = 8;
    o.prefill_chunk = 64;
    o.worker_processes = v.processes;
    o.worker_executable = worker_executable();
    o.max_worker_restarts = 20;
    o.worker_timeout_ms = v.timeout_ms;
    o.nccl = v.nccl;
    o.proofs = {.migrate_every = v.migrate_every, .migration_seed = 1, .rebuild = v.rebuild, .faults = v.faults};
    return Engine::create(o);
  }
  Outputs roll(Engine* e) {
    EXPECT_TRUE(e->pause().ok());
    for (size_t i = 0; i < requests_.size(); ++i) submit(e, requests_[i], i);
    e->resume();
    Outputs outputs = collect(e);
    stats_ = nlohmann::json::parse(e->stats_json());
    return outputs;
  }
  Outputs run(const GpuVariant& v) {
    const Result<std::unique_ptr<Engine>> engine = create(v);
    EXPECT_TRUE(engine.ok()) << engine.status().message();
    return engine.ok() ? roll(engine.value().get()) : Outputs();
  }
  static std::string why_not(const Result<std::unique_ptr<Engine>>& engine) {
    EXPECT_EQ(engine.status().code(), StatusCode::kUnsupported);
    return engine.status().message();
  }

  const TinyModel first_{
      {.hidden_size = 64, .intermediate_size = 72, .num_heads = 4, .num_kv_heads = 2, .max_position_embeddings = 512}};
  const TinyModel next_{{.hidden_size = 64,
                         .intermediate_size = 72,
                         .num_heads = 4,
                         .num_kv_heads = 2,
                         .max_position_embeddings = 512,
                         .seed = 9}};
  const TinyModel drafter_{{.hidden_size = 32, .intermediate_size = 48, .max_position_embeddings = 512, .seed = 2}};
  const TinyModel* model_ = &first_;
  const GpuVariant alone_{.gpus = {0}, .num_workers = 1, .processes = false};
  std::vector<Request> requests_;
  Outputs plain_;
  nlohmann::json stats_;
};

}  // namespace otr
