// The engine on cuda-sm90a: what a request gives is a function of the request, whatever it is batched with, drafted by or
// captured in. Through the C ABI; on the emulated device these are the kernels' own text, CUDA graphs and all copies included.
#include "tests/cuda/engine_sm90.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/cuda/cuda_kernels.h"
#include "kernels/linear/linear_sm90.h"
#include "tests/runtime/engine_runs.h"

namespace otr {
namespace {

TEST_F(EngineSm90, BatchChunkAndPreemptionChangeNothing) {
  nlohmann::json stats;
  const Outputs expected = run({}, &stats);
  ASSERT_EQ(expected.size(), 4u);
  for (const auto& [key, output] : expected) EXPECT_EQ(output.error, "");
  EXPECT_EQ(stats["isa"], "cuda-sm90a");
  EXPECT_GT(stats["gpu"]["captures"], 4);
  if (kAround == 0) {
    EXPECT_GT(stats["gpu"]["target_capture_bytes"], 0);
  }
  EXPECT_EQ(difference(expected, run({.max_batch = 1})), "");
  EXPECT_EQ(difference(expected, run({.max_batch = 3, .prefill_chunk = 7})), "");
  EXPECT_EQ(difference(expected, run({.num_pages = 4}, &stats)), "");
  EXPECT_GT(stats["preemptions"], 0);
}

TEST_F(EngineSm90, DraftersChangeNothing) {
  nlohmann::json plain;
  const Outputs expected = run({}, &plain);
  const TinyModel other({.hidden_size = 32, .intermediate_size = 48, .max_position_embeddings = 512, .seed = 2});
  for (const char* policy : {"fixed:self:3", "fixed:self:3:2:6", "fixed:other:2", "fixed:other+ngram:2:2:4", "auto"}) {
    nlohmann::json stats;
    EXPECT_EQ(difference(expected, run({.policy = policy, .drafter = &other}, &stats)), "") << policy;
    EXPECT_GT(stats["gpu"]["captures"], plain["gpu"]["captures"]) << policy;
    if (kAround == 0) {
      EXPECT_GT(stats["gpu"]["draft_capture_bytes"], 0) << policy;
    }
    if (std::string_view(policy) != "auto") {  // which may find that nothing pays
      EXPECT_GT(stats["speculation"]["verify_steps"], 0) << policy;
    }
  }
  EXPECT_EQ(difference(expected, run({.policy = "fixed:other:2", .drafter = &other, .drafter_in_4_bits = true})), "");
}

// A chain's levels feed each other on the device: the host waits once for all of them, and once for the target. Trees, and
// samples with penalties that see what was drafted, wait level by level.
TEST_F(EngineSm90, TheHostWaitsOnceForAChain) {
  const TinyModel other({.hidden_size = 32, .intermediate_size = 48, .max_position_embeddings = 512, .seed = 2});
  const auto waits_per_tick = [&](const char* policy, float penalty) {
    std::vector<Request> requests(2, Request({5, 6, 7}));
    for (Request& r : requests)
      r.stream = static_cast<uint64_t>(&r - requests.data()), r.sampling.max_new_tokens = 13, r.sampling.ignore_eos = 1,
      r.sampling.repetition_penalty = penalty;
    const TestEngine engine(create({.policy = policy, .drafter = &other}));
    EXPECT_EQ(status_, OTR_OK) << otr_last_error(nullptr);
    const double before = engine.stats()["gpu"]["host_waits"];
    engine.run(requests);
    const nlohmann::json after = engine.stats();
    return (after["gpu"]["host_waits"].get<double>() - before) / after["ticks"].get<double>();
  };
  EXPECT_EQ(waits_per_tick("off", 1.0f), 1.0);
  for (const char* policy : {"fixed:self:6", "fixed:other:6"}) {
    const double waits = waits_per_tick(policy, 1.0f);
    EXPECT_GT(waits, 1.0) << policy;
    EXPECT_LE(waits, 2.0) << policy;
  }
  EXPECT_GT(waits_per_tick("fixed:self:6:2:12", 1.0f), 2.0);
  EXPECT_GT(waits_per_tick("fixed:self:6", 1.1f), 2.0);
}

TEST_F(EngineSm90, TheDrafterThatIsTheModelIsKept) {
  nlohmann::json stats;
  run({.policy = "fixed:self:3"}, &stats);
  const double drafted = stats["speculation"]["draft_tokens"], accepted = stats["speculation"]["accepted_tokens"];
  EXPECT_GT(accepted, 0.5 * drafted) << drafted;  // 4 bits of a random model: nothing like chance, which is one in 97
}

TEST_F(EngineSm90, WorkersOnTwoDevicesChangeNothing) {
  if (!CudaDevice::open(1).ok()) GTEST_SKIP() << "one device alone";
  const Outputs expected = run({});
  EXPECT_EQ(difference(expected, run({.policy = "fixed:self:2", .device = "cuda:0,1"})), "");
  EXPECT_EQ(difference(expected, run({.device = "cuda:1,0", .num_workers = 3})), "");
  const TinyModel other({.hidden_size = 32, .intermediate_size = 48, .max_position_embeddings = 512, .seed = 2});
  const Trial decoupled{
      .policy = "fixed:other:2:decoupled", .device = "cuda:0,1", .num_workers = 2, .drafter = &other, .num_draft_workers = 1};
  EXPECT_EQ(difference(expected, run(decoupled)), "");
}

TEST_F(EngineSm90, AScoreHasTheBitsOfItsRollout) {
  const TestEngine engine(create({.prefill_chunk = 33}));
  ASSERT_EQ(status_, OTR_OK) << otr_last_error(nullptr);
  const Outputs rolled = engine.run(requests_);
  for (const auto& [key, output] : rolled)
    engine.score(requests_[key.first].prompt, output.tokens, nullptr, 10 * key.first + key.second);
  for (const auto& [key, scored] : engine.collect()) {
    EXPECT_EQ(scored.raw_logprobs, rolled.at({key.first / 10, key.first % 10}).raw_logprobs) << key.first;
  }
}

// The flag comes up from the device: it fails the request whose key is NaN, and nobody else.
TEST_F(EngineSm90, ANaNFailsItsOwnRequest) {
  constexpr int32_t kToken = 50;
  const TinyModel spoilt({.max_position_embeddings = 512, .nan_embedding = kToken});
  options_model_ = &spoilt;
  const TestEngine engine(create({}));
  ASSERT_EQ(status_, OTR_OK) << otr_last_error(nullptr);
  std::vector<Request> requests(3, Request({7, 8, 9, 10}));
  requests[1].prompt[2] = kToken;
  for (size_t i = 0; i < requests.size(); ++i) {
    requests[i].sampling.max_new_tokens = 3;
    requests[i].sampling.temperature = 0.0f;
  }
  const Outputs outputs = engine.run(requests);
  EXPECT_EQ(outputs.at({0, 0}).error, "");
  EXPECT_EQ(outputs.at({1, 0}).error, "a key, value or logit is NaN or Inf");
  EXPECT_EQ(outputs.at({2, 0}).tokens, outputs.at({0, 0}).tokens);
}

// New weights, from the host's memory and from the device's, are those that an engine is created with, in every layout that a
// tensor can have: stacked, gates and ups, vectors, and the model in 4 bits made again.
TEST_F(EngineSm90, WeightsThatArePutAreThoseOfTheCheckpoint) {
  const TinyModel next({.hidden_size = 64,
                        .intermediate_size = 72,
                        .num_heads = 4,
                        .num_kv_heads = 2,
                        .max_position_embeddings = 512,
                        .seed = 9});
  const Trial trial{.policy = "fixed:self:2"};
  options_model_ = &next;
  const Outputs expected = run(trial);
  options_model_ = &model_;
  const TestEngine engine(create(trial));
  ASSERT_EQ(status_, OTR_OK) << otr_last_error(nullptr);
  EXPECT_NE(difference(expected, engine.run(requests_)), "");
  put_weights_of(next, engine);
  EXPECT_EQ(difference(expected, engine.run(requests_)), "");
}

// Tensors lie on one of the devices, or on the host: each worker gets them.
TEST_F(EngineSm90, WeightsOfOneDeviceReachTheOthers) {
  if (!CudaDevice::open(1).ok()) GTEST_SKIP() << "one device alone";
  const TinyModel next({.hidden_size = 32, .intermediate_size = 48, .max_position_embeddings = 512, .seed = 9});
  const TinyModel first({.hidden_size = 32, .intermediate_size = 48, .max_position_embeddings = 512, .seed = 8});
  const Trial two{.device = "cuda:0,1", .num_workers = 2};
  options_model_ = &next;
  const Outputs expected = run(two);
  options_model_ = &first;
  const TestEngine engine(create(two));
  ASSERT_EQ(status_, OTR_OK) << otr_last_error(nullptr);
  for (const int device : {0, 1}) {
    put_weights_of(first, engine);
    EXPECT_NE(difference(expected, engine.run(requests_)), "");
    ASSERT_EQ(cudaSetDevice(device), cudaSuccess);
    put_weights_of(next, engine);
    EXPECT_EQ(difference(expected, engine.run(requests_)), "");
  }
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
}

// What sleeps gives its memory to the device: nearly all of weights and pages, and the captured programs. What wakes has the
// bits of before, at the same addresses.
TEST_F(EngineSm90, ASleepGivesMemoryAndAWakeTheSameBits) {
  const TinyModel other({.hidden_size = 32, .intermediate_size = 48, .max_position_embeddings = 512, .seed = 2});
  const TestEngine engine(create({.policy = "fixed:other+self:2", .num_pages = 256, .drafter = &other}));
  ASSERT_EQ(status_, OTR_OK) << otr_last_error(nullptr);
  const Outputs expected = engine.run(requests_);
  const size_t before = free_memory(), pages = model_.kv_bytes(256);
  EXPECT_GT(engine.stats()["gpu"]["captures"], 4);
  ASSERT_EQ(otr_sleep(engine.get(), OTR_MEMORY_KV), OTR_OK) << otr_last_error(engine.get());
  EXPECT_EQ(engine.stats()["gpu"]["captures"], 0);
  const size_t without_pages = free_memory();
  const nlohmann::json stats = engine.stats();
  const size_t transfer = stats["kv_pages_total"].get<size_t>() *
                          stats["kv_page_bytes"].get<size_t>();  // room to move all of them: less than 16 MiB
  EXPECT_GE(without_pages + kAround, before + pages + transfer);
  uint64_t group;
  EXPECT_EQ(engine.try_submit(requests_[0], 0, &group), OTR_BUSY);
  ASSERT_EQ(otr_sleep(engine.get(), OTR_MEMORY_ALL), OTR_OK) << otr_last_error(engine.get());
  EXPECT_GT(free_memory() + kAround,
            without_pages + engine.stats()["weight_bytes"].get<size_t>() / 2);  // blocks of less than a unit stay
  {
    const std::vector<void*> trainer = take_all();  // who has the memory now
    ASSERT_FALSE(trainer.empty());
    EXPECT_EQ(otr_wake(engine.get(), OTR_MEMORY_KV), OTR_OUT_OF_MEMORY);
#if defined(OUTRIDER_TEST_EMULATED)  // a real device's unit of memory is larger than these weights, which kept theirs
    EXPECT_EQ(otr_wake(engine.get(), OTR_MEMORY_WEIGHTS), OTR_OUT_OF_MEMORY);
#endif
    EXPECT_EQ(engine.try_submit(requests_[0], 0, &group), OTR_BUSY);
    for (void* piece : trainer) ASSERT_EQ(cudaFree(piece), cudaSuccess);
  }
  ASSERT_EQ(otr_wake(engine.get(), OTR_MEMORY_WEIGHTS), OTR_OK) << otr_last_error(engine.get());
  put_weights_of(model_, engine);
  ASSERT_EQ(otr_wake(engine.get(), OTR_MEMORY_KV), OTR_OK) << otr_last_error(engine.get());
  expect_free(before);
  EXPECT_EQ(difference(expected, engine.run(requests_)), "");
}

#if !defined(OUTRIDER_TEST_EMULATED)
// Weights of many units, each mapped: they go, others have the memory, and they come back to the same addresses, behind the
// pages.
TEST_F(EngineSm90, MappedWeightsComeBackBehindThePages) {
  const TinyModel large({.hidden_size = 1024, .intermediate_size = 4096, .num_layers = 8, .num_heads = 8, .head_dim = 128});
  options_model_ = &large;
  const TestEngine engine(create({.policy = "fixed:self:2", .num_pages = 1024}));
  ASSERT_EQ(status_, OTR_OK) << otr_last_error(nullptr);
  const Outputs expected = engine.run(requests_);
  const size_t before = free_memory(), given = large.kv_bytes(1024) + engine.stats()["weight_bytes"].get<size_t>() / 10 * 9;
  ASSERT_GT(given, 3 * kAround);
  ASSERT_EQ(otr_sleep(engine.get(), OTR_MEMORY_ALL), OTR_OK) << otr_last_error(engine.get());
  EXPECT_GT(free_memory() + kAround, before + given);
  for (void* piece : take_all()) ASSERT_EQ(cudaFree(piece), cudaSuccess);
  for (const otr_memory what : {OTR_MEMORY_KV, OTR_MEMORY_WEIGHTS})
    ASSERT_EQ(otr_wake(engine.get(), what), OTR_OK) << otr_last_error(engine.get());
  put_weights_of(large, engine);
  EXPECT_EQ(difference(expected, engine.run(requests_)), "");
}
#endif

// Pages before weights, weights that only wake in the middle, and one of the two asleep or awake already: each order gives the
// same bits, and nothing runs before both are there.
TEST_F(EngineSm90, SleepsAndWakesComeInAnyOrder) {
  const TestEngine engine(create({.policy = "fixed:self:2"}));
  ASSERT_EQ(status_, OTR_OK) << otr_last_error(nullptr);
  std::vector<Request> requests(1, Request({5, 6, 7}));
  requests[0].sampling.max_new_tokens = 4, requests[0].sampling.ignore_eos = 1;
  const Outputs expected = engine.run(requests);
  const size_t before = free_memory();
  constexpr otr_memory kKv = OTR_MEMORY_KV, kWeights = OTR_MEMORY_WEIGHTS, kAll = OTR_MEMORY_ALL;
  const std::vector<std::pair<std::vector<otr_memory>, std::vector<otr_memory>>> orders = {
      {{kAll}, {kKv, kWeights}},
      {{kWeights, kKv}, {kKv, kKv, kWeights}},
      {{kKv, kAll}, {kWeights, kWeights, kAll}},
      {{kWeights}, {kAll}},
      {{kKv}, {kWeights, kKv}}};
  for (const auto& [sleeps, wakes] : orders) {
    const bool weights = sleeps != std::vector{kKv};
    for (const otr_memory what : sleeps) ASSERT_EQ(otr_sleep(engine.get(), what), OTR_OK) << otr_last_error(engine.get());
    EXPECT_GT(free_memory() + kAround, before);
    bool put = false;
    for (const otr_memory what : wakes) {
      uint64_t group;
      EXPECT_EQ(engine.try_submit(requests[0], 0, &group), OTR_BUSY);
      ASSERT_EQ(otr_wake(engine.get(), what), OTR_OK) << otr_last_error(engine.get());
      if (weights && !put && what != kKv) put_weights_of(model_, engine), put = true;
    }
    expect_free(before);
    EXPECT_EQ(difference(expected, engine.run(requests)), "");
  }
}

// ---- That the comparison finds kernels which are not row-invariant ---------------------------------------------------------

// The same product with other splits where rows are few, as engines do that choose by rows. Of a wider model: what is added up
// before an activation is rounded to bf16 seldom shows, but the logits are float32, and theirs must be a contraction that can
// be split.
void linear_by_rows(const LinearParams& p, const LaunchContext& on) {
  if (p.gated != nullptr || p.num_rows > 1 || p.weight.in_features <= 64) return cuda_kernels().linear(p, on);
  CudaDevice& device = static_cast<CudaDevice&>(*on.accelerator);
  const LinearSm90Problem problem{p.num_rows, p.weight.out_features, p.weight.in_features, false};
  const DeviceLimits limits = device_limits_sm90().value();
  const int splits = choose_linear_sm90(problem, limits).splits == 1 ? 2 : 1;
  device.keep(linear_sm90(p, choose_linear_sm90(problem, limits, splits), device.stream()));
}

TEST_F(EngineSm90, KernelsThatDependOnTheNumberOfRowsAreFound) {
  const TinyModel wide({.hidden_size = 128, .max_position_embeddings = 512});
  KernelTable changed = cuda_kernels();
  changed.linear = linear_by_rows;
  EXPECT_EQ(logprobs_by(cuda_kernels(), wide, 1), logprobs_by(cuda_kernels(), wide, 8));
  EXPECT_NE(logprobs_by(changed, wide, 1), logprobs_by(changed, wide, 8));
}

TEST_F(EngineSm90, WhatIsNotThereIsRefused) {
  EXPECT_EQ(create({.device = "cuda:99"}), nullptr);
  EXPECT_EQ(status_, OTR_UNSUPPORTED);
  EXPECT_NE(std::string(otr_last_error(nullptr)).find(" CUDA devices"), std::string::npos);
  EXPECT_EQ(create({.num_pages = int64_t{1} << 26}), nullptr);
  EXPECT_EQ(status_, OTR_OUT_OF_MEMORY);
}

// Where nobody says how much, pages leave room for a drafter's: of as many, and larger ones.
TEST_F(EngineSm90, ByDefaultADrafterFitsBesideThePages) {
  constexpr size_t kLeft = size_t{256} << 20;
  const size_t others = free_memory() - kLeft;
  void* taken = nullptr;
  ASSERT_EQ(cudaMalloc(&taken, others), cudaSuccess);
  const TinyModel other({.num_layers = 3, .max_position_embeddings = 512, .seed = 2});
  for (const bool in_4_bits : {false, true}) {
    const TestEngine engine(
        create({.policy = "fixed:other+self:2", .num_pages = 0, .drafter = &other, .drafter_in_4_bits = in_4_bits}));
    ASSERT_EQ(status_, OTR_OK) << otr_last_error(nullptr);
    const size_t pages = engine.stats()["kv_pages_total"].get<size_t>();
    EXPECT_GT(pages * (model_.kv_bytes(1) + other.kv_bytes(1)), kLeft / 10 * 8);
  }
  EXPECT_EQ(create({.policy = "fixed:other:2",
                    .num_pages = static_cast<int64_t>(kLeft / 10 * 8 / model_.kv_bytes(1)),
                    .drafter = &other}),
            nullptr);
  EXPECT_EQ(status_, OTR_OUT_OF_MEMORY);
  EXPECT_NE(std::string(otr_last_error(nullptr)).find("for drafters beside them"), std::string::npos)
      << otr_last_error(nullptr);
  ASSERT_EQ(cudaFree(taken), cudaSuccess);
}

// Pages leave one engine and come into another, which does not compute their prompt again.
TEST_F(EngineSm90, PagesGoFromOneEngineToAnother) {
  const std::vector<Request> requests = {requests_.back()};  // of 70 tokens: one page is full
  const std::vector<int32_t>& tokens = requests[0].prompt;
  Outputs expected;
  std::vector<std::byte> bytes;
  size_t size = 0, covered = 0;
  {
    const TestEngine engine(create({}));
    ASSERT_EQ(status_, OTR_OK) << otr_last_error(nullptr);
    expected = engine.run(requests);
    EXPECT_EQ(otr_kv_export(engine.get(), tokens.data(), tokens.size(), nullptr, 0, &size, &covered), OTR_INVALID_ARGUMENT);
    bytes.resize(size);
    ASSERT_EQ(otr_kv_export(engine.get(), tokens.data(), tokens.size(), bytes.data(), size, &size, &covered), OTR_OK)
        << otr_last_error(engine.get());
    EXPECT_EQ(covered, 64u);
  }
  const TestEngine engine(create({}));
  ASSERT_EQ(otr_kv_import(engine.get(), bytes.data(), bytes.size(), &covered), OTR_OK) << otr_last_error(engine.get());
  EXPECT_EQ(covered, 64u);
  EXPECT_EQ(difference(expected, engine.run(requests)), "");
  EXPECT_EQ(engine.stats()["prefix_hit_tokens"], 64);

  const TinyModel next({.hidden_size = 64,
                        .intermediate_size = 72,
                        .num_heads = 4,
                        .num_kv_heads = 2,
                        .max_position_embeddings = 512,
                        .seed = 9});
  options_model_ = &next;
  const TestEngine other(create({}));
  EXPECT_EQ(otr_kv_import(other.get(), bytes.data(), bytes.size(), &covered),
            OTR_UNSUPPORTED);  // the digest is of the weights' bits
}

// What an engine owes goes on in another one.
TEST_F(EngineSm90, ACheckpointGoesOnInAnotherEngine) {
  const Outputs expected = run({});
  const std::filesystem::path path = std::filesystem::path(model_.path()) / "checkpoint";
  const Trial trial{.policy = "fixed:self:2", .keep_checkpoints = 1};
  {
    const TestEngine engine(create(trial));
    ASSERT_EQ(status_, OTR_OK) << otr_last_error(nullptr);
    ASSERT_EQ(otr_pause(engine.get()), OTR_OK);
    for (size_t i = 0; i < requests_.size(); ++i) engine.submit(requests_[i], i);
    ASSERT_EQ(otr_resume(engine.get()), OTR_OK);
    ASSERT_EQ(otr_checkpoint_save(engine.get(), path.c_str(), nullptr, 0), OTR_OK) << otr_last_error(engine.get());
  }
  const TestEngine engine(create(trial));
  ASSERT_EQ(otr_checkpoint_load(engine.get(), path.c_str()), OTR_OK) << otr_last_error(engine.get());
  EXPECT_EQ(difference(expected, engine.collect()), "");
}

// Sequences go from one device to the other and back, and their pages with them, beneath samples that draft.
TEST_F(EngineSm90, PagesFollowTheirSequenceToAnotherDevice) {
  if (!CudaDevice::open(1).ok()) GTEST_SKIP() << "one device alone";
  std::vector<Request> requests;
  for (uint64_t i = 0; i < 3; ++i) {
    requests.emplace_back(random_tokens(static_cast<uint32_t>(i), 140, 97));
    requests.back().stream = i;
    requests.back().sampling.max_new_tokens = 12;
    requests.back().sampling.ignore_eos = 1;
  }
  Outputs expected;
  {
    const TestEngine engine(create({}));
    ASSERT_EQ(status_, OTR_OK) << otr_last_error(nullptr);
    expected = engine.run(requests);
  }
  for (const RebuildMode mode : {RebuildMode::kTransfer, RebuildMode::kBothEnds, RebuildMode::kRecompute}) {
    EngineOptions o;
    o.device = {.isa = kCudaPath,
                .num_threads = 1,
                .target = {.path = model_.path(), .kv_bytes = model_.kv_bytes(kMappedPages), .bucket = {}}};
    o.gpus = {0, 1};
    o.num_workers = 2;
    o.policy = "fixed:self:2";
    o.max_batch = 8;
    o.prefill_chunk = 64;
    o.proofs.migrate_every = 3;
    o.proofs.rebuild.mode = mode;
    const Result<std::unique_ptr<Engine>> engine = Engine::create(o);
    ASSERT_TRUE(engine.ok()) << engine.status().message();
    for (size_t i = 0; i < requests.size(); ++i) submit(engine.value().get(), requests[i], i);
    EXPECT_EQ(difference(expected, collect(engine.value().get())), "");
    const nlohmann::json stats = nlohmann::json::parse(engine.value()->stats_json());
    EXPECT_GT(stats["migrations"], 0);
    if (mode == RebuildMode::kRecompute) {
      EXPECT_EQ(stats["kv_copied_tokens"], 0);
    } else {
      EXPECT_GT(stats["kv_copied_tokens"], 0) << static_cast<int>(mode);
    }
  }
}

// What is launched may lack memory of the host's: the stream then captures no more, and works.
TEST_F(EngineSm90, ACaptureThatThrowsEnds) {
  const std::shared_ptr<CudaDevice> device = CudaDevice::open(0).value();
  void* const data = device->allocate(64);
  EXPECT_THROW((void)device->capture([&] {
    device->clear(data, 64);
    throw std::bad_alloc();
  }),
               std::bad_alloc);
  const std::vector<std::byte> zeros(64);
  device->clear(data, 64);
  ASSERT_TRUE(device->wait().ok());
  std::vector<std::byte> found;
  EXPECT_TRUE(CudaDevice::fetch(data, 64, &found).ok());
  EXPECT_EQ(found, zeros);
  const Result<Capture> capture = device->capture([&] { device->clear(data, 64); });
  ASSERT_TRUE(capture.ok()) << capture.status().message();
  device->destroy(capture.value());
  device->release(data);
}

}  // namespace
}  // namespace otr
