// Workers that are processes on GPUs, one each: their samples are those of one thread on one GPU, whatever moves, and whoever dies. On the
// emulated device every process has a device of its own.
#include <gtest/gtest.h>

#include <unistd.h>

#include <string>
#include <vector>

#include "kernels/cuda/cuda_device.h"
#include "runtime/engine.h"
#include "tests/cuda/device_buffer.h"
#include "tests/runtime/engine_runs.h"
#include "tests/runtime/trainer_tensors.h"

namespace otr {
namespace {

struct Variant {
  std::vector<int32_t> gpus = {0, 1};
  int32_t num_workers = 2;
  bool processes = true;
  std::string policy = "off";
  std::string drafter_kind = "model:";
  int32_t num_draft_workers = 0;
  int32_t migrate_every = 0;
  RebuildOptions rebuild = {};
  std::vector<WorkerFault> faults = {};
};

class GpuProcessesSm90 : public testing::Test {
 protected:
  void SetUp() override {
    if (!CudaDevice::open(1).ok()) GTEST_SKIP() << "one device alone, or none";
    if (access(OUTRIDER_WORKER, X_OK) != 0) GTEST_SKIP() << "no " << OUTRIDER_WORKER;
    for (uint64_t i = 0; i < 3; ++i) {
      requests_.emplace_back(random_tokens(static_cast<uint32_t>(i), 70 + 40 * i, 97));
      requests_.back().stream = i;
      requests_.back().sampling.max_new_tokens = 8;
      requests_.back().sampling.ignore_eos = 1;
    }
    requests_.front().n = 2;
    plain_ = run(alone_);
  }

  Result<std::unique_ptr<Engine>> create(const Variant& v) const {
    EngineOptions o;
    o.device = {.isa = kCudaPath, .num_threads = 1, .target = {.path = model_->path(), .kv_bytes = model_->kv_bytes(24 * v.num_workers), .bucket = {}}};
    o.gpus = v.gpus;
    o.num_workers = v.num_workers;
    o.num_draft_workers = v.num_draft_workers;
    o.policy = v.policy;
    o.drafters = {"other=" + v.drafter_kind + drafter_.path()};
    o.max_batch = 8;
    o.prefill_chunk = 64;
    o.worker_processes = v.processes;
    o.worker_executable = OUTRIDER_WORKER;
    o.max_worker_restarts = 20;
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
  Outputs run(const Variant& v) {
    const Result<std::unique_ptr<Engine>> engine = create(v);
    EXPECT_TRUE(engine.ok()) << engine.status().message();
    return engine.ok() ? roll(engine.value().get()) : Outputs();
  }
  static std::string why_not(const Result<std::unique_ptr<Engine>>& engine) {
    EXPECT_EQ(engine.status().code(), StatusCode::kUnsupported);
    return engine.status().message();
  }

  const TinyModel first_{{.hidden_size = 64, .intermediate_size = 72, .num_heads = 4, .num_kv_heads = 2, .max_position_embeddings = 512}};
  const TinyModel next_{{.hidden_size = 64, .intermediate_size = 72, .num_heads = 4, .num_kv_heads = 2, .max_position_embeddings = 512, .seed = 9}};
  const TinyModel drafter_{{.hidden_size = 32, .intermediate_size = 48, .max_position_embeddings = 512, .seed = 2}};
  const TinyModel* model_ = &first_;
  const Variant alone_{.gpus = {0}, .num_workers = 1, .processes = false};
  std::vector<Request> requests_;
  Outputs plain_;
  nlohmann::json stats_;
};

TEST_F(GpuProcessesSm90, ChangeNothing) {
  EXPECT_EQ(difference(plain_, run({})), "");
  EXPECT_EQ(stats_["isa"], "cuda-sm90a");
  EXPECT_EQ(stats_["kv_pages_total"], 48);
  EXPECT_GT(stats_["gpu"]["captures"], 4);
  EXPECT_EQ(stats_["worker_restarts"], 0);
  EXPECT_EQ(difference(plain_, run({.policy = "fixed:self:2"})), "");  // in 4 bits, as each process makes them
  EXPECT_GT(stats_["speculation"]["accepted_tokens"], 0);
  EXPECT_EQ(difference(plain_, run({.policy = "fixed:other+ngram:2:2:4", .drafter_kind = "w4:"})), "");
  EXPECT_EQ(difference(plain_, run({.policy = "fixed:other:2:decoupled", .num_draft_workers = 1})), "");
  EXPECT_EQ(difference(plain_, run({.policy = "auto"})), "");  // by costs that the first one has measured
}

// A moved sample's keys and values go through a sealed file, from one GPU's memory to the other's.
TEST_F(GpuProcessesSm90, PagesFollowTheirSequence) {
  for (const RebuildMode mode : {RebuildMode::kTransfer, RebuildMode::kRecompute}) {
    EXPECT_EQ(difference(plain_, run({.migrate_every = 2, .rebuild = {.mode = mode}})), "");
    EXPECT_GT(stats_["migrations"], 0);
    EXPECT_EQ(stats_["kv_copied_tokens"] > 0, mode == RebuildMode::kTransfer);
  }
}

TEST_F(GpuProcessesSm90, AKilledProcessLosesNothing) {
  const auto dies = [](int32_t worker, ProtocolStep step, int32_t occurrence) {
    return WorkerFault{.worker = worker, .life = 0, .step = step, .occurrence = occurrence, .kind = FaultKind::kDie};
  };
  EXPECT_EQ(difference(plain_, run({.policy = "fixed:self:2", .faults = {dies(0, ProtocolStep::kTick, 2), dies(1, ProtocolStep::kReport, 1)}})), "");
  EXPECT_GE(stats_["worker_restarts"], 1);
  EXPECT_EQ(stats_["kv_pages_total"], 48);  // its successor has as many
}

// Each process copies them to its device, the one that has died meanwhile too.
TEST_F(GpuProcessesSm90, NewWeightsReachEveryProcess) {
  model_ = &next_;
  const Outputs expected = run(alone_);
  model_ = &first_;
  const Variant v{.policy = "fixed:self:2", .faults = {{.worker = 1, .life = 0, .step = ProtocolStep::kWeights, .occurrence = 0, .kind = FaultKind::kDie}}};
  const Result<std::unique_ptr<Engine>> engine = create(v);
  ASSERT_TRUE(engine.ok()) << engine.status().message();
  EXPECT_EQ(difference(plain_, roll(engine.value().get())), "");
  ASSERT_TRUE(engine.value()->begin_weights(1).ok());
  bool on_device = false;
  for (const TrainerTensor& tensor : trainer_tensors(next_)) {
    on_device = !on_device;
    const std::vector<std::byte> data = tensor.as(OTR_DTYPE_BF16);
    const testing_util::DeviceBuffer<std::byte> copy(data);
    const HostTensor t{.name = tensor.name, .dtype = Dtype::kBf16, .shape = tensor.shape, .data = on_device ? copy.data() : data.data()};
    ASSERT_TRUE(engine.value()->put_weight(t).ok()) << tensor.name;
  }
  ASSERT_TRUE(engine.value()->commit_weights().ok());
  EXPECT_EQ(difference(expected, roll(engine.value().get())), "");
  EXPECT_EQ(stats_["worker_restarts"], 1);
}

TEST_F(GpuProcessesSm90, WhatIsNotThereIsRefused) {
  EXPECT_NE(why_not(create({.num_workers = 3})).find("3 workers have 2 GPUs"), std::string::npos);
  EXPECT_NE(why_not(create({.gpus = {0, 99}})).find("cuda:99"), std::string::npos);
  const Result<std::unique_ptr<Engine>> engine = create({});
  ASSERT_TRUE(engine.ok()) << engine.status().message();
  EXPECT_EQ(engine.value()->sleep(OTR_MEMORY_KV).code(), StatusCode::kUnsupported);
  size_t size = 0;
  EXPECT_EQ(engine.value()->export_kv(requests_[0].prompt, {}, &size).status().code(), StatusCode::kUnsupported);
}

}  // namespace
}  // namespace otr
