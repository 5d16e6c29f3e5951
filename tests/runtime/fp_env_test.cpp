// Results do not depend on the floating-point environment of whoever calls, and callers find theirs as they left it.

#include "kernels/base/fp_env.h"

#include <gtest/gtest.h>
#include <xmmintrin.h>

#include <cmath>
#include <cstdlib>
#include <vector>

#include "tests/runtime/every_path.h"
#include "tests/runtime/test_engine.h"

namespace otr {
namespace {

constexpr unsigned kFlushToZero = 0x8000, kDenormalsAreZero = 0x0040, kRoundDown = 0x2000, kRoundUp = 0x4000,
                   kTowardZero = 0x6000;

constexpr uint16_t kX87RoundDown = 0x0400, kX87RoundUp = 0x0800, kX87Precision = 0x0300;  // the last: set in the pinned mode

struct Environment {
  const char* name;
  unsigned mxcsr;
  uint16_t x87;
};
constexpr Environment kEnvironments[] = {
    {"FTZ and DAZ", kPinnedMxcsr | kFlushToZero | kDenormalsAreZero, kPinnedX87Control},
    {"round down", kPinnedMxcsr | kRoundDown, kPinnedX87Control | kX87RoundDown},
    {"round up", kPinnedMxcsr | kRoundUp, kPinnedX87Control | kX87RoundUp},
    {"toward zero, FTZ", kPinnedMxcsr | kTowardZero | kFlushToZero, kPinnedX87Control},
    {"x87 alone: round up, 24 bits", kPinnedMxcsr, (kPinnedX87Control & ~kX87Precision) | kX87RoundUp},
};

// Sets the calling thread's environment for a scope.
class WithEnvironment {
 public:
  explicit WithEnvironment(const Environment& e) {
    _mm_setcsr(e.mxcsr);
    set_x87_control(e.x87);
  }
  WithEnvironment(const WithEnvironment&) = delete;
  WithEnvironment& operator=(const WithEnvironment&) = delete;

 private:
  const FpEnvGuard saved_;  // restores
};

// Temperature 0 on logits that are denormals: what is argmax, and what its log-prob, hangs on every bit of them.
class FpEnv : public EveryPath {
 protected:
  Outputs run(const TinyModel& model) {
    EngineSetup s = setup();
    s.num_threads = 2;
    const TestEngine engine(model, s);
    Request r;
    r.prompt = random_tokens(1, 100, 97);
    r.n = 2;
    r.sampling.max_new_tokens = 40;
    r.sampling.ignore_eos = 1;
    engine.submit(r, 0);
    r.sampling.temperature = 0.0f;
    engine.submit(r, 1);
    r.sampling.temperature = 0.7f;
    r.sampling.top_p = 0.9f;
    r.sampling.repetition_penalty = 1.1f;
    engine.submit(r, 2);
    engine.score({}, r.prompt, nullptr, 3);
    return engine.collect();
  }
};

TEST_P(FpEnv, TheCallersModeChangesNothing) {
  const TinyModel normal, denormal({.lm_head_scale = 0x1p-128f});
  for (const TinyModel* model : {&normal, &denormal}) {
    const Outputs expected = run(*model);
    for (const auto& environment : kEnvironments) {
      const WithEnvironment mode(environment);
      EXPECT_EQ(difference(expected, run(*model)), "") << environment.name;
    }
  }
}

OTR_INSTANTIATE_EVERY_PATH(FpEnv);

// The denormal model is a test of anything only if its logits are not all flushed to 0, where argmax is token 0 for ever.
TEST(FpEnvInverse, TheDenormalModelDrawsByItsLogits) {
  const TinyModel denormal({.lm_head_scale = 0x1p-128f});
  EngineSetup setup;
  setup.isa = "cpu-scalar";
  Request r;
  r.prompt = {1, 2, 3};
  r.sampling.temperature = 0.0f;
  r.sampling.max_new_tokens = 20;
  const std::vector<int32_t> tokens = TestEngine(denormal, setup).run({r}).at({0, 0}).tokens;
  EXPECT_NE(tokens, std::vector<int32_t>(tokens.size(), 0));
}

// strtod follows the rounding of the x87 unit, so pinning SSE alone would not do.
TEST(FpEnv, TheGuardPinsDecimalConversion) {
  const volatile char text[] = "0.1";  // between two doubles
  const auto convert = [&text] { return std::strtod(const_cast<const char*>(text), nullptr); };
  const double nearest = convert();
  const double next = std::nextafter(nearest, 0.0);
  const WithEnvironment mode({"x87 alone", kPinnedMxcsr, kPinnedX87Control | kX87RoundDown});
  EXPECT_EQ(convert(), next);  // the danger is there
  const FpEnvGuard guard;
  EXPECT_EQ(x87_control(), kPinnedX87Control);
  EXPECT_EQ(convert(), nearest);
}

TEST(FpEnv, EveryCallRestoresTheCallersMode) {
  const TinyModel model;
  const Environment mine = {"mine", kPinnedMxcsr | kRoundUp | kFlushToZero, kPinnedX87Control | kX87RoundDown};
  const WithEnvironment mode(mine);
  const auto expect_mine = [&mine](const char* call) {
    EXPECT_EQ(_mm_getcsr(), mine.mxcsr) << call;
    EXPECT_EQ(x87_control(), mine.x87) << call;
    _mm_setcsr(mine.mxcsr);  // gtest may have computed something
  };
  otr_engine_options options;
  otr_engine_options_init(&options, sizeof options);
  expect_mine("otr_engine_options_init");
  options.model_path = model.path().c_str();
  options.kv_bytes = model.kv_bytes(100);
  otr_engine* engine = nullptr;
  ASSERT_EQ(otr_engine_create(&options, &engine), OTR_OK);
  expect_mine("otr_engine_create");
  const std::vector<int32_t> prompt = {1, 2, 3};
  otr_group_request request;
  otr_group_request_init(&request, sizeof request);
  request.prompt_token_ids = prompt.data();
  request.num_prompt_tokens = prompt.size();
  uint64_t group = 0;
  ASSERT_EQ(otr_submit(engine, &request, &group), OTR_OK);
  expect_mine("otr_submit");
  EXPECT_EQ(otr_submit(engine, nullptr, &group), OTR_INVALID_ARGUMENT);
  expect_mine("a failed otr_submit");
  otr_score_request score;
  otr_score_request_init(&score, sizeof score);
  score.token_ids = prompt.data();
  score.num_tokens = prompt.size();
  ASSERT_EQ(otr_score(engine, &score, &group), OTR_OK);
  expect_mine("otr_score");
  otr_result* result = nullptr;
  ASSERT_EQ(otr_wait(engine, -1, &result), OTR_OK);
  expect_mine("otr_wait");
  otr_result_view view;
  ASSERT_EQ(otr_result_get(result, &view, sizeof view), OTR_OK);
  expect_mine("otr_result_get");
  otr_result_destroy(result);
  otr_cancel(engine, group);
  expect_mine("otr_cancel");
  size_t size = 0;
  otr_stats(engine, nullptr, 0, &size);
  expect_mine("otr_stats");
  otr_engine_destroy(engine);
  expect_mine("otr_engine_destroy");
}

}  // namespace
}  // namespace otr
