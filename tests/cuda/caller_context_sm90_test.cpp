// What is current on a caller's thread is the caller's: every call of the C interface that touches a GPU leaves the CUDA
// context of its thread as it was, none where there was none.
#include <cudaTypedefs.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/current_device.h"
#include "tests/cuda/device_buffer.h"
#include "tests/runtime/test_engine.h"
#include "tests/runtime/trainer_tensors.h"

namespace otr {
namespace {

struct Driver {
  PFN_cuCtxGetCurrent_v4000 get = nullptr;
  PFN_cuCtxSetCurrent_v4000 set = nullptr;
  PFN_cuCtxCreate_v3020 create = nullptr;
  PFN_cuCtxDestroy_v4000 destroy = nullptr;
  bool complete = find_driver_function("cuCtxGetCurrent", &get) && find_driver_function("cuCtxSetCurrent", &set) &&
                  find_driver_function("cuCtxCreate", &create) && find_driver_function("cuCtxDestroy", &destroy);
};

class CallerContextSm90 : public testing::Test {
 protected:
  void SetUp() override {
    if (const Result<std::shared_ptr<CudaDevice>> device = CudaDevice::open(0); !device.ok())
      GTEST_SKIP() << device.status().message();
    ASSERT_TRUE(driver_.complete);
  }

  // Every entry that touches a device, from a thread on which `context` is current.
  void call_all(CUcontext context) const {
    ASSERT_EQ(driver_.set(context), CUDA_SUCCESS);
    const auto expect_kept = [&](const char* call) {
      CUcontext now = nullptr;
      EXPECT_EQ(driver_.get(&now), CUDA_SUCCESS);
      EXPECT_EQ(now, context) << call;
      EXPECT_EQ(driver_.set(context), CUDA_SUCCESS);
    };
    otr_engine_options options;
    otr_engine_options_init(&options, sizeof options);
    options.model_path = model_.path().c_str();
    options.device = "cuda:0";
    options.policy = "off";
    options.num_threads = 1;
    options.max_batch = 2;
    options.keep_checkpoints = 1;
    options.kv_bytes = model_.kv_bytes(8);
    otr_engine* engine = nullptr;
    ASSERT_EQ(otr_engine_create(&options, &engine), OTR_OK) << otr_last_error(nullptr);
    expect_kept("create");

    const auto expect_ok = [&](const char* call, otr_status status) {
      EXPECT_EQ(status, OTR_OK) << call << ": " << otr_last_error(engine);
      expect_kept(call);
    };
    std::vector<int32_t> prompt(70, 5);
    otr_group_request request;
    otr_group_request_init(&request, sizeof request);
    request.prompt_token_ids = prompt.data();
    request.num_prompt_tokens = prompt.size();
    otr_sampling_params sampling;
    otr_sampling_params_init(&sampling, sizeof sampling);
    sampling.max_new_tokens = 2;
    request.sampling = &sampling;
    uint64_t group = 0;
    otr_result* result = nullptr;
    expect_ok("submit", otr_submit(engine, &request, &group));
    expect_ok("wait", otr_wait(engine, 120'000, &result));
    expect_ok("result_destroy", otr_result_destroy(result));

    size_t size = 0, covered = 0;
    EXPECT_EQ(otr_kv_export(engine, prompt.data(), prompt.size(), nullptr, 0, &size, &covered), OTR_INVALID_ARGUMENT);
    expect_kept("kv_export, too small");
    std::vector<std::byte> pages(size);
    expect_ok("kv_export", otr_kv_export(engine, prompt.data(), prompt.size(), pages.data(), size, &size, &covered));
    expect_ok("kv_import", otr_kv_import(engine, pages.data(), size, &covered));
    const std::filesystem::path path = std::filesystem::path(model_.path()) / "checkpoint";
    expect_ok("checkpoint_save", otr_checkpoint_save(engine, path.c_str(), nullptr, 0));
    expect_ok("checkpoint_load", otr_checkpoint_load(engine, path.c_str()));

    expect_ok("sleep", otr_sleep(engine, OTR_MEMORY_ALL));
    expect_ok("wake", otr_wake(engine, OTR_MEMORY_ALL));
    expect_ok("weights_begin", otr_weights_begin(engine, 1));
    bool on_device = false;
    for (const TrainerTensor& tensor : trainer_tensors(model_)) {
      on_device = !on_device;
      const std::vector<std::byte> data = tensor.as(OTR_DTYPE_BF16);
      const testing_util::DeviceBuffer<std::byte> copy(data);
      EXPECT_EQ(driver_.set(context), CUDA_SUCCESS);
      const otr_tensor t = tensor_of(tensor, OTR_DTYPE_BF16, on_device ? copy.data() : data.data(), data.size());
      expect_ok("weights_put", otr_weights_put(engine, &t));
    }
    expect_ok("weights_commit", otr_weights_commit(engine));
    expect_ok("destroy", otr_engine_destroy(engine));
  }

  const Driver driver_;
  const TinyModel model_;
};

TEST_F(CallerContextSm90, NoneStaysNone) {
  std::thread([this] { call_all(nullptr); }).join();
}

// One that the caller has made itself: no number of a device names it.
TEST_F(CallerContextSm90, OneOfTheCallersOwnStays) {
  CUcontext own = nullptr;
  ASSERT_EQ(driver_.create(&own, 0, 0), CUDA_SUCCESS);
  std::thread([this, own] { call_all(own); }).join();
  EXPECT_EQ(driver_.destroy(own), CUDA_SUCCESS);
}

TEST_F(CallerContextSm90, WhatIsFetchedChangesNothing) {
  Result<std::shared_ptr<CudaDevice>> device = CudaDevice::open(0);
  ASSERT_TRUE(device.ok()) << device.status().message();
  void* const data = device.value()->allocate(64);
  ASSERT_TRUE(device.value()->wait().ok());
  std::thread([this, data] {
    for (const void* from : {static_cast<const void*>(data), static_cast<const void*>(this)}) {
      std::vector<std::byte> copy;
      EXPECT_TRUE(CudaDevice::fetch(from, 64, &copy).ok());
      EXPECT_EQ(copy.size(), from == data ? 64u : 0u);
      CUcontext now = nullptr;
      EXPECT_EQ(driver_.get(&now), CUDA_SUCCESS);
      EXPECT_EQ(now, nullptr);
    }
  }).join();
  device.value()->release(data);
}

}  // namespace
}  // namespace otr
