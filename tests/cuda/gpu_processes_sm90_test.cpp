// Workers that are processes on GPUs, one each: their samples are those of one thread on one GPU, whatever moves, and whoever
// dies. On the emulated device every process has a device of its own.
#include "tests/cuda/device_buffer.h"
#include "tests/cuda/gpu_processes.h"
#include "tests/runtime/trainer_tensors.h"

namespace otr {
namespace {

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
  EXPECT_EQ(difference(plain_, run({.policy = "fixed:self:2",
                                    .faults = {dies(0, ProtocolStep::kTick, 2), dies(1, ProtocolStep::kReport, 1)}})),
            "");
  EXPECT_GE(stats_["worker_restarts"], 1);
  EXPECT_EQ(stats_["kv_pages_total"], 48);  // its successor has as many
}

// Each process copies them to its device, the one that has died meanwhile too.
TEST_F(GpuProcessesSm90, NewWeightsReachEveryProcess) {
  model_ = &next_;
  const Outputs expected = run(alone_);
  model_ = &first_;
  const GpuVariant v{
      .policy = "fixed:self:2",
      .faults = {{.worker = 1, .life = 0, .step = ProtocolStep::kWeights, .occurrence = 0, .kind = FaultKind::kDie}}};
  const Result<std::unique_ptr<Engine>> engine = create(v);
  ASSERT_TRUE(engine.ok()) << engine.status().message();
  EXPECT_EQ(difference(plain_, roll(engine.value().get())), "");
  ASSERT_TRUE(engine.value()->begin_weights(1).ok());
  bool on_device = false;
  for (const TrainerTensor& tensor : trainer_tensors(next_)) {
    on_device = !on_device;
    const std::vector<std::byte> data = tensor.as(OTR_DTYPE_BF16);
    const testing_util::DeviceBuffer<std::byte> copy(data);
    const HostTensor t{
        .name = tensor.name, .dtype = Dtype::kBf16, .shape = tensor.shape, .data = on_device ? copy.data() : data.data()};
    ASSERT_TRUE(engine.value()->put_weight(t).ok()) << tensor.name;
  }
  ASSERT_TRUE(engine.value()->commit_weights().ok());
  EXPECT_EQ(difference(expected, roll(engine.value().get())), "");
  EXPECT_EQ(stats_["worker_restarts"], 1);
}

// The engine's own weights, in memory, and a copy of them on each device: at the start, and once more with every commit.
TEST_F(GpuProcessesSm90, WhatTheyCopyIsCounted) {
  const Result<std::unique_ptr<Engine>> engine = create({});
  ASSERT_TRUE(engine.ok()) << engine.status().message();
  Engine* const e = engine.value().get();
  const auto written = [&] {
    roll(e);  // until all have reported
    return stats_["weight_bytes_written"].get<int64_t>();
  };
  const int64_t first = written(), copies = first - stats_["weight_bytes"].get<int64_t>();
  EXPECT_GT(copies, 0);
  ASSERT_TRUE(e->begin_weights(1).ok());
  int64_t put = 0;
  for (const TrainerTensor& tensor : trainer_tensors(next_)) {
    const std::vector<std::byte> data = tensor.as(OTR_DTYPE_BF16);
    ASSERT_TRUE(e->put_weight({.name = tensor.name, .dtype = Dtype::kBf16, .shape = tensor.shape, .data = data.data()}).ok())
        << tensor.name;
    put += static_cast<int64_t>(data.size() *
                                (tensor.shape.size() == 1 ? sizeof(float) / sizeof(Element) : 1));  // vectors lie in float32
  }
  ASSERT_TRUE(e->commit_weights().ok());
  EXPECT_EQ(written() - first, put + copies);
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
