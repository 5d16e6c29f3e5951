// An engine on cuda-sm90a behind the C ABI, for tests: how it is made, requests that every test runs, and the device's memory.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/cuda_kernels.h"
#include "runtime/engine.h"
#include "tests/cuda/device_buffer.h"
#include "tests/runtime/test_engine.h"
#include "tests/runtime/trainer_tensors.h"

namespace otr {

// By how much the memory that is free may differ from what was given and taken: an emulated device counts bytes, CUDA keeps
// pieces of its own and hands them out later.
#if defined(OUTRIDER_TEST_EMULATED)
inline constexpr size_t kAround = 0;
inline constexpr int64_t kMappedPages = 48;
#else
inline constexpr size_t kAround = size_t{64} << 20;
inline constexpr int64_t kMappedPages = 4096;  // of a small model: several of the device's units, so that memory is mapped
#endif

struct Trial {
  const char* policy = "off";
  int32_t max_batch = 8;
  int32_t prefill_chunk = 64;
  int64_t num_pages = 24;
  const char* device = "cuda";
  int32_t num_workers = 1;
  const TinyModel* drafter = nullptr;  // "other"
  bool drafter_in_4_bits = false;
  int32_t num_draft_workers = 0;
  int32_t keep_checkpoints = 0;
};

class EngineSm90 : public testing::Test {
 protected:
  void SetUp() override {
    if (const Result<std::shared_ptr<CudaDevice>> device = CudaDevice::open(0); !device.ok())
      GTEST_SKIP() << device.status().message();
  }
  otr_engine* create(const Trial& s) {
    otr_engine_options options;
    otr_engine_options_init(&options, sizeof options);
    options.model_path = options_model_->path().c_str();
    options.device = s.device;
    options.policy = s.policy;
    options.max_batch = s.max_batch;
    options.prefill_chunk = s.prefill_chunk;
    options.num_threads = 1;
    options.num_workers = s.num_workers;
    options.num_draft_workers = s.num_draft_workers;
    options.keep_checkpoints = s.keep_checkpoints;
    options.kv_bytes = options_model_->kv_bytes(s.num_pages * s.num_workers);
    const std::string drafter =
        s.drafter != nullptr ? std::string("other=") + (s.drafter_in_4_bits ? "w4:" : "model:") + s.drafter->path() : "";
    const char* const drafters[] = {drafter.c_str()};
    options.drafters = drafters;
    options.num_drafters = s.drafter != nullptr ? 1 : 0;
    otr_engine* engine = nullptr;
    status_ = otr_engine_create(&options, &engine);
    return engine;
  }
  Outputs run(const Trial& s, nlohmann::json* stats = nullptr) {
    const TestEngine engine(create(s));
    EXPECT_EQ(status_, OTR_OK) << otr_last_error(nullptr);
    if (status_ != OTR_OK) return {};
    const Outputs outputs = engine.run(requests_);
    if (stats != nullptr) *stats = engine.stats();
    return outputs;
  }

  // Of requests_, by number, with other kernels than the engine's own.
  std::map<uint64_t, std::vector<uint32_t>> logprobs_by(const KernelTable& kernels, const TinyModel& model, int32_t max_batch) {
    EngineOptions o;
    o.device = {.isa = kCudaPath,
                .kernels = &kernels,
                .num_threads = 1,
                .target = {.path = model.path(), .kv_bytes = model.kv_bytes(24), .bucket = {}}};
    o.gpus = {0};
    o.policy = "off";
    o.max_batch = max_batch;
    o.prefill_chunk = 64;
    Result<std::unique_ptr<Engine>> engine = Engine::create(o);
    EXPECT_TRUE(engine.ok()) << engine.status().message();
    std::map<uint64_t, std::vector<uint32_t>> logprobs;
    for (size_t i = 0; i < requests_.size(); ++i) {
      otr_group_request r;
      otr_group_request_init(&r, sizeof r);
      r.prompt_token_ids = requests_[i].prompt.data(), r.num_prompt_tokens = requests_[i].prompt.size();
      r.stream = requests_[i].stream, r.tag = i, r.sampling = &requests_[i].sampling;
      EXPECT_TRUE(engine.value()->submit(r).ok());
    }
    for (size_t i = 0; i < requests_.size(); ++i) {
      Result<std::unique_ptr<Sequence>> done = engine.value()->wait(120'000);
      if (!done.ok()) throw std::runtime_error(done.status().message());
      const Sequence& s = *done.value();
      logprobs[s.group->tag] = bits_of(s.raw_logprobs.data(), s.raw_logprobs.size());
    }
    return logprobs;
  }

  // From the host's memory and from the device's.
  static void put_weights_of(const TinyModel& model, const TestEngine& engine) {
    ASSERT_EQ(otr_weights_begin(engine.get(), 1), OTR_OK) << otr_last_error(engine.get());
    bool on_device = false;
    for (const TrainerTensor& tensor : trainer_tensors(model)) {
      on_device = !on_device;
      const otr_dtype dtype = !on_device && tensor.name.find("mlp") != std::string::npos ? OTR_DTYPE_F32 : OTR_DTYPE_BF16;
      const std::vector<std::byte> data = tensor.as(dtype);
      const testing_util::DeviceBuffer<std::byte> copy(data);
      const otr_tensor t = tensor_of(tensor, dtype, on_device ? copy.data() : data.data(), data.size());
      EXPECT_EQ(otr_weights_put(engine.get(), &t), OTR_OK) << tensor.name << ": " << otr_last_error(engine.get());
    }
    ASSERT_EQ(otr_weights_commit(engine.get()), OTR_OK) << otr_last_error(engine.get());
  }
  static size_t free_memory() {
    size_t free = 0, total = 0;
    EXPECT_EQ(cudaMemGetInfo(&free, &total), cudaSuccess);
    return free;
  }

  static void expect_free(size_t expected) {
    const size_t free = free_memory();
    EXPECT_LE(free > expected ? free - expected : expected - free, kAround);
  }
  // Everything that is free, as somebody else would take it: seldom in one piece.
  static std::vector<void*> take_all() {
    std::vector<void*> pieces;
    for (size_t size = free_memory(); size >= size_t{2} << 20; size /= 2) {
      void* piece = nullptr;
      while (cudaMalloc(&piece, size) == cudaSuccess) pieces.push_back(piece);
      (void)cudaGetLastError();
    }
    return pieces;
  }

  // Filters, penalties, greedy draws and groups, around a page boundary; few tokens: a pass takes a fifth of a second here.
  static std::vector<Request> make_requests() {
    std::vector<Request> requests;
    for (const int length : {62, 5, 70}) {
      Request r(random_tokens(static_cast<uint32_t>(requests.size() % 2), static_cast<size_t>(length), 97));
      r.n = requests.empty() ? 2 : 1;
      r.stream = 7 + requests.size();
      r.sampling.max_new_tokens = 5 + static_cast<int32_t>(requests.size());
      r.sampling.ignore_eos = 1;
      if (requests.size() == 1) r.sampling.temperature = 0.7f, r.sampling.top_k = 11, r.sampling.repetition_penalty = 1.2f;
      if (requests.size() == 2) r.sampling.temperature = 0.0f;
      requests.push_back(r);
    }
    return requests;
  }

  const TinyModel model_{
      {.hidden_size = 64, .intermediate_size = 72, .num_heads = 4, .num_kv_heads = 2, .max_position_embeddings = 512}};
  std::vector<Request> requests_ = make_requests();
  const TinyModel* options_model_ = &model_;  // what create() loads
  otr_status status_ = OTR_OK;
};

}  // namespace otr
