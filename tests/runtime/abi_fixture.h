// What the tests of the C ABI share: an engine of a tiny model, requests that are right until a test spoils them, and the
// checks that a refusal had no effect.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "tests/runtime/test_engine.h"

namespace otr {

inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN(), kInf = std::numeric_limits<float>::infinity();
inline constexpr int32_t kIntMin = std::numeric_limits<int32_t>::min(), kIntMax = std::numeric_limits<int32_t>::max();

class AbiFixture : public testing::Test {
 protected:
  AbiFixture() {
    otr_group_request_init(&group_, sizeof group_);
    otr_score_request_init(&score_, sizeof score_);
    otr_sampling_params_init(&sampling_, sizeof sampling_);
    otr_engine_options_init(&options_, sizeof options_);
    group_.prompt_token_ids = score_.token_ids = tokens_.data();
    group_.num_prompt_tokens = score_.num_tokens = tokens_.size();
    sampling_.max_new_tokens = 5;
    group_.sampling = &sampling_;
    score_.tag = 1;
    options_.model_path = model_.path().c_str();
    options_.num_threads = 1;
    options_.max_batch = 8;
    options_.prefill_chunk = 32;
    options_.kv_bytes = model_.kv_bytes(32);
  }

  otr_engine* engine() const { return engine_.get(); }
  uint64_t submitted() const { return engine_.stats()["outstanding_samples"]; }

  // The call was refused with a text and nothing was queued.
  void expect_refused(otr_status status, otr_status wanted, const std::string& what) const {
    EXPECT_EQ(status, wanted) << what << ": " << otr_last_error(engine());
    if (status != OTR_OK) {
      EXPECT_NE(std::string(otr_last_error(engine())), "") << what;
    }
    EXPECT_EQ(submitted(), 0u) << what;
  }
  // Whatever was done to the engine, it gives what an untouched one gives.
  void expect_usable() const {
    Request r(tokens_);
    r.n = 3;
    r.sampling.max_new_tokens = 40;
    const Outputs outputs = engine_.run({r});
    ASSERT_EQ(outputs.size(), 3u);
    EXPECT_EQ(outputs.at({0, 0}).error, "");
    EXPECT_EQ(difference(TestEngine(model_).run({r}), outputs), "");
  }

  const TinyModel model_;
  const TestEngine engine_{model_};
  std::vector<int32_t> tokens_ = {1, 2, 3};
  otr_group_request group_;
  otr_score_request score_;
  otr_sampling_params sampling_;
  otr_engine_options options_;
  uint64_t id_ = 77;
};

}  // namespace otr
