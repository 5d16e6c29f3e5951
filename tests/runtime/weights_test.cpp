// New weights for a live engine: what it gives then is what an engine created with them gives, and misuse is refused without
// effect.

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "tests/runtime/every_path.h"
#include "tests/runtime/test_engine.h"
#include "tests/runtime/trainer_tensors.h"

namespace otr {
namespace {

std::vector<Request> requests() {
  std::vector<Request> all;
  for (uint32_t i = 0; i < 3; ++i) {
    Request r(random_tokens(i, 40 + 50 * i, 97));  // prompts of more than a page come from the prefix cache the second time
    r.n = 3;
    r.stream = i;
    r.sampling.max_new_tokens = 25;
    r.sampling.ignore_eos = 1;
    all.push_back(std::move(r));
  }
  return all;
}

// hidden_size and intermediate_size are no multiples of a block: gate and up share one.
TinyShape odd_shape(uint32_t seed, bool tied) {
  return {.hidden_size = 40,
          .intermediate_size = 72,
          .num_layers = 2,
          .num_heads = 3,
          .num_kv_heads = 1,
          .seed = seed,
          .tied = tied};
}

class Weights : public EveryPath {};

TEST_P(Weights, AnUpdatedEngineIsAFreshOne) {
  for (const bool tied : {false, true}) {
    const TinyModel old_model(odd_shape(1, tied)), new_model(odd_shape(2, tied));
    EngineSetup s = setup();
    s.policy = "fixed:self:4:2:6";
    s.num_threads = 2;
    const TestEngine fresh(new_model, s), engine(old_model, s);
    const Outputs expected = fresh.run(requests()), before = engine.run(requests());
    EXPECT_NE(difference(before, expected), "");
    // Several times over, to and fro, in every order.
    std::vector<TrainerTensor> old_tensors = trainer_tensors(old_model), new_tensors = trainer_tensors(new_model);
    uint64_t version = 0;
    for (const auto& [dtype, misalignment] : {std::pair(OTR_DTYPE_BF16, 1), std::pair(OTR_DTYPE_F32, 0)}) {
      ASSERT_EQ(otr_weights_begin(engine.get(), ++version), OTR_OK) << otr_last_error(engine.get());
      put_all(engine.get(), new_tensors, dtype, static_cast<size_t>(misalignment));
      ASSERT_EQ(otr_weights_commit(engine.get()), OTR_OK) << otr_last_error(engine.get());
      EXPECT_EQ(engine.count("weight_version"), static_cast<int64_t>(version));
      const int64_t drafted = engine.stats()["speculation"]["drafters"]["self"]["drafted"];
      EXPECT_EQ(difference(engine.run(requests()), expected), "") << "tied " << tied << " dtype " << dtype;
      EXPECT_GT(engine.stats()["speculation"]["drafters"]["self"]["drafted"].get<int64_t>(), drafted);
      std::reverse(new_tensors.begin(), new_tensors.end());
      ASSERT_EQ(otr_weights_begin(engine.get(), ++version), OTR_OK);
      put_all(engine.get(), old_tensors);
      ASSERT_EQ(otr_weights_commit(engine.get()), OTR_OK);
      EXPECT_EQ(difference(engine.run(requests()), before), "");
      std::reverse(old_tensors.begin(), old_tensors.end());
    }
  }
}
OTR_INSTANTIATE_EVERY_PATH(Weights);

// The 4-bit drafter is the new weights': its drafts are kept as often as a fresh engine's. (The old weights' would never be.)
TEST(WeightUpdate, TheSelfDrafterIsMadeAgain) {
  const TinyModel old_model(odd_shape(1, false)), new_model(odd_shape(2, false));
  const EngineSetup setup{.policy = "fixed:self:6"};
  const TestEngine fresh(new_model, setup), engine(old_model, setup);
  const auto accepted = [](const TestEngine& e) {
    return e.stats()["speculation"]["drafters"]["self"]["accepted"].get<int64_t>();
  };
  ASSERT_EQ(otr_weights_begin(engine.get(), 7), OTR_OK);
  put_all(engine.get(), trainer_tensors(new_model));
  ASSERT_EQ(otr_weights_commit(engine.get()), OTR_OK);
  const Outputs expected = fresh.run(requests());
  EXPECT_EQ(difference(engine.run(requests()), expected), "");
  EXPECT_EQ(accepted(engine), accepted(fresh));
  EXPECT_GT(accepted(fresh), 100);
  EXPECT_GT(engine.stats()["quantize_seconds"].get<double>(), 0.0);
}

// What is not put stays; an update of nothing changes nothing but the version.
TEST(WeightUpdate, MayBePartial) {
  const TinyModel old_model(odd_shape(1, false)), new_model(odd_shape(2, false));
  const TestEngine fresh(new_model), engine(old_model);
  const Outputs expected = fresh.run(requests()), before = engine.run(requests());
  const std::vector<TrainerTensor> tensors = trainer_tensors(new_model);
  for (size_t half = 0; half < 2; ++half) {
    ASSERT_EQ(otr_weights_begin(engine.get(), half + 1), OTR_OK);
    for (size_t i = half; i < tensors.size(); i += 2) ASSERT_EQ(put(engine.get(), tensors[i]), OTR_OK);
    ASSERT_EQ(otr_weights_commit(engine.get()), OTR_OK);
    const Outputs after = engine.run(requests());
    EXPECT_NE(difference(after, before), "");
    EXPECT_EQ(difference(after, expected) == "", half == 1);
  }
  ASSERT_EQ(otr_weights_begin(engine.get(), 3), OTR_OK);
  ASSERT_EQ(otr_weights_commit(engine.get()), OTR_OK);
  EXPECT_EQ(difference(engine.run(requests()), expected), "");
}

// f16 is rounded to bf16 as it is at load.
TEST(WeightUpdate, TakesF16) {
  const TinyModel model(odd_shape(1, false));
  const TestEngine engine(model), reference(model);
  TrainerTensor tensor = trainer_tensors(model).front();
  std::vector<uint16_t> halves(tensor.values.size());
  for (size_t i = 0; i < halves.size(); ++i) {
    // Between 2^-3 and 2^-1, with all ten bits of an f16's mantissa in use: bf16 keeps seven.
    const uint16_t mantissa = static_cast<uint16_t>(i * 131 % 1024), exponent = static_cast<uint16_t>(12 + i % 3);
    halves[i] = static_cast<uint16_t>((i % 2) << 15 | exponent << 10 | mantissa);
    tensor.values[i] = (i % 2 ? -1.0f : 1.0f) * std::ldexp(1.0f + static_cast<float>(mantissa) / 1024.0f, exponent - 15);
  }
  const otr_tensor t = tensor_of(tensor, OTR_DTYPE_F16, halves.data(), 2 * halves.size());
  for (const TestEngine* e : {&engine, &reference}) {
    ASSERT_EQ(otr_weights_begin(e->get(), 1), OTR_OK);
    ASSERT_EQ(e == &engine ? otr_weights_put(e->get(), &t) : put(e->get(), tensor), OTR_OK) << otr_last_error(e->get());
    ASSERT_EQ(otr_weights_commit(e->get()), OTR_OK);
  }
  EXPECT_EQ(difference(engine.run(requests()), reference.run(requests())), "");
}

// What is expected and not put is named, also after the update was begun again; what is put draws as a new engine would.
TEST(WeightUpdate, AForgottenTensorIsNamed) {
  const TinyModel old_model, new_model({.seed = 5});
  const Outputs expected = TestEngine(new_model).run(requests());
  const TestEngine engine(old_model);
  EXPECT_EQ(otr_weights_expect_all(engine.get()), OTR_INVALID_ARGUMENT);
  ASSERT_EQ(otr_weights_begin(engine.get(), 1), OTR_OK);
  ASSERT_EQ(otr_weights_expect_all(engine.get()), OTR_OK);
  std::vector<TrainerTensor> tensors = trainer_tensors(new_model);
  const TrainerTensor last = tensors.back();
  tensors.pop_back();
  put_all(engine.get(), tensors);
  ASSERT_EQ(otr_weights_begin(engine.get(), 2), OTR_OK);
  EXPECT_EQ(otr_weights_commit(engine.get()), OTR_INVALID_ARGUMENT);
  EXPECT_NE(std::string(otr_last_error(engine.get())).find("1 tensors are missing, '" + last.name + "'"), std::string::npos)
      << otr_last_error(engine.get());
  ASSERT_EQ(put(engine.get(), last), OTR_OK);
  ASSERT_EQ(otr_weights_commit(engine.get()), OTR_OK) << otr_last_error(engine.get());
  EXPECT_EQ(difference(engine.run(requests()), expected), "");
  EXPECT_EQ(engine.stats()["weight_version"], 2);
}

TEST(WeightUpdate, ResultsCarryTheVersion) {
  const TinyModel model;
  const TestEngine engine(model);
  for (const uint64_t version : {uint64_t{0}, ~uint64_t{0}, uint64_t{5}}) {
    if (version != 0) {
      ASSERT_EQ(otr_weights_begin(engine.get(), version), OTR_OK);
      ASSERT_EQ(otr_weights_commit(engine.get()), OTR_OK);
    }
    Request r({1, 2, 3});
    engine.submit(r, 0);
    otr_result* result = nullptr;
    otr_result_view view;
    ASSERT_EQ(otr_wait(engine.get(), -1, &result), OTR_OK);
    ASSERT_EQ(otr_result_get(result, &view, sizeof view), OTR_OK);
    EXPECT_EQ(view.weight_version, version);
    otr_result_destroy(result);
  }
}

TEST(WeightUpdate, MisuseIsRefusedAndHasNoEffect) {
  const TinyModel model(odd_shape(1, true));
  const TestEngine engine(model);
  const Outputs expected = engine.run(requests());
  const std::vector<TrainerTensor> tensors = trainer_tensors(model);
  const TrainerTensor& embedding = tensors.front();
  const auto refused = [&](otr_status status, otr_status wanted, const char* text) {
    EXPECT_EQ(status, wanted) << text;
    EXPECT_NE(std::string(otr_last_error(engine.get())).find(text), std::string::npos) << otr_last_error(engine.get());
  };
  refused(put(engine.get(), embedding), OTR_INVALID_ARGUMENT, "no update of the weights has begun");
  refused(otr_weights_commit(engine.get()), OTR_INVALID_ARGUMENT, "no update of the weights has begun");
  EXPECT_EQ(otr_weights_begin(nullptr, 1), OTR_INVALID_HANDLE);

  Request endless({1, 2, 3});
  endless.n = 512;  // seconds of work, were it not cancelled
  endless.sampling.max_new_tokens = 900;
  endless.sampling.ignore_eos = 1;
  const uint64_t group = engine.submit(endless, 0);
  refused(otr_weights_begin(engine.get(), 1), OTR_BUSY, "1 groups are unfinished");
  otr_cancel(engine.get(), group);
  engine.collect();

  ASSERT_EQ(otr_weights_begin(engine.get(), 1), OTR_OK);
  uint64_t id = 0;
  refused(engine.try_submit(requests()[0], 0, &id), OTR_BUSY, "commit them first");
  EXPECT_EQ(id, 0u);

  const std::vector<std::byte> data = embedding.as(OTR_DTYPE_BF16);
  const otr_tensor good = tensor_of(embedding, OTR_DTYPE_BF16, data.data(), data.size());
  const int64_t transposed[] = {embedding.shape[1], embedding.shape[0]},
                one_more[] = {embedding.shape[0], embedding.shape[1], 1};
  const int64_t negative[] = {-embedding.shape[0], -embedding.shape[1]}, huge[] = {int64_t{1} << 62, int64_t{1} << 62};
  const auto with = [&](auto spoil, otr_status wanted, const char* text) {
    otr_tensor t = good;
    spoil(t);
    refused(otr_weights_put(engine.get(), &t), wanted, text);
  };
  with([](otr_tensor& t) { t.name = nullptr; }, OTR_INVALID_ARGUMENT, "tensor.name is NULL");
  with([](otr_tensor& t) { t.name = "model.embed_tokens"; }, OTR_INVALID_ARGUMENT,
       "'model.embed_tokens': the model has no such tensor");
  with([](otr_tensor& t) { t.name = "model.layers.2.mlp.up_proj.weight"; }, OTR_INVALID_ARGUMENT, "no such tensor");
  with([](otr_tensor& t) { t.name = "module.base.model.norm.weight"; }, OTR_INVALID_ARGUMENT,
       "'module.base.model.norm.weight': the model has no such tensor, but it has 'model.norm.weight'");
  with([](otr_tensor& t) { t.dtype = static_cast<otr_dtype>(3); }, OTR_INVALID_ARGUMENT, "dtype is unknown: 3");
  with([](otr_tensor& t) { t.shape = nullptr; }, OTR_INVALID_ARGUMENT, "shape is missing");
  with([](otr_tensor& t) { t.num_dims = 0; }, OTR_INVALID_ARGUMENT, "shape is missing");
  with([](otr_tensor& t) { t.num_dims = 9; }, OTR_INVALID_ARGUMENT, "more than 8");
  with([&](otr_tensor& t) { t.shape = transposed; }, OTR_INVALID_ARGUMENT, "expected shape [97, 40], found [40, 97]");
  with(
      [&](otr_tensor& t) {
        t.shape = one_more;
        t.num_dims = 3;
      },
      OTR_INVALID_ARGUMENT, "found [97, 40, 1]");
  with([&](otr_tensor& t) { t.shape = negative; }, OTR_INVALID_ARGUMENT, "impossible");
  with([&](otr_tensor& t) { t.shape = huge; }, OTR_INVALID_ARGUMENT, "impossible");
  with([](otr_tensor& t) { t.data = nullptr; }, OTR_INVALID_ARGUMENT, "data is NULL");
  with([](otr_tensor& t) { --t.data_bytes; }, OTR_INVALID_ARGUMENT, "shape and dtype come to 7760");
  with([](otr_tensor& t) { t.struct_size = 3; }, OTR_INVALID_ARGUMENT, "struct_size");
  refused(otr_weights_put(engine.get(), nullptr), OTR_INVALID_ARGUMENT, "tensor is NULL");
  // A tied model's lm_head is in checkpoints, and never read.
  const std::vector<int64_t> head_shape = {model.shape().vocab_size, model.shape().hidden_size};
  TrainerTensor head{"lm_head.weight", head_shape, std::vector<float>(static_cast<size_t>(head_shape[0] * head_shape[1]))};
  EXPECT_EQ(put(engine.get(), head), OTR_OK) << otr_last_error(engine.get());
  head.shape = {head_shape[1], head_shape[0]};
  refused(put(engine.get(), head), OTR_INVALID_ARGUMENT, "'lm_head.weight': expected shape");
  EXPECT_EQ(otr_weights_commit(engine.get()), OTR_OK);
  EXPECT_EQ(difference(engine.run(requests()), expected), "");
}

// Puts from several threads are serialised; an engine may be destroyed in the middle.
TEST(WeightUpdate, ManyThreadsAndADestroyedEngine) {
  const TinyModel old_model(odd_shape(1, false)), new_model(odd_shape(2, false));
  const TestEngine fresh(new_model);
  const Outputs expected = fresh.run(requests());
  const std::vector<TrainerTensor> tensors = trainer_tensors(new_model);
  for (const bool destroy : {false, true}) {
    const TestEngine engine(old_model, {.num_threads = 2});
    ASSERT_EQ(otr_weights_begin(engine.get(), 1), OTR_OK);
    std::vector<std::thread> threads;
    std::atomic<size_t> next{0};
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&, i] {
        for (size_t at; (at = next++) < tensors.size();) {
          const otr_status status = put(engine.get(), tensors[at]);
          if (destroy && at == tensors.size() / 2) otr_engine_destroy(engine.get());
          EXPECT_TRUE(status == OTR_OK || (destroy && status == OTR_INVALID_HANDLE)) << otr_last_error(engine.get());
          if (!destroy && i == 0) engine.stats();
        }
      });
    }
    for (std::thread& t : threads) t.join();
    if (destroy) continue;
    ASSERT_EQ(otr_weights_commit(engine.get()), OTR_OK);
    EXPECT_EQ(difference(engine.run(requests()), expected), "");
  }
}

// An update meets a thread that submits: either it begins, or it is told that samples are unfinished; and nobody waits for
// ever.
TEST(WeightUpdate, BeginMeetsSubmit) {
  const TinyModel model;
  const TestEngine engine(model);
  std::atomic<bool> done{false};
  std::thread submitter([&] {
    for (int i = 0; i < 300; ++i) {
      Request r({1, 2, 3});
      r.sampling.max_new_tokens = 2;
      uint64_t group = 0;
      const otr_status status = engine.try_submit(r, static_cast<uint64_t>(i), &group);
      EXPECT_TRUE(status == OTR_OK || status == OTR_BUSY) << otr_last_error(engine.get());
    }
    done = true;
  });
  uint64_t version = 0, busy = 0;
  while (!done || version == 0) {
    const otr_status status = otr_weights_begin(engine.get(), version + 1);
    EXPECT_TRUE(status == OTR_OK || status == OTR_BUSY) << otr_last_error(engine.get());
    if (status != OTR_OK) {
      ++busy;
      continue;
    }
    ++version;
    EXPECT_EQ(otr_weights_commit(engine.get()), OTR_OK);
  }
  submitter.join();
  engine.collect();
  EXPECT_EQ(engine.count("weight_version"), static_cast<int64_t>(version)) << busy;
}

}  // namespace
}  // namespace otr
