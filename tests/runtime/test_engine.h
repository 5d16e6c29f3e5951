// An engine behind the C ABI that is destroyed with its object.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "runtime/outrider.h"
#include "tests/runtime/rollouts.h"
#include "tests/runtime/tiny_model.h"

namespace otr {

struct EngineSetup {
  std::string isa = "auto";
  int32_t max_batch = 64;
  int32_t prefill_chunk = 512;
  int32_t num_threads = 1;
  int64_t num_pages = 2048;
  std::string policy = "off";
  std::string trace_path = "";
  int32_t num_workers = 1;
};

class TestEngine {
 public:
  explicit TestEngine(const TinyModel& model, const EngineSetup& setup = {}) {
    otr_engine_options options;
    otr_engine_options_init(&options, sizeof options);
    options.model_path = model.path().c_str();
    options.isa = setup.isa.c_str();
    options.max_batch = setup.max_batch;
    options.prefill_chunk = setup.prefill_chunk;
    options.num_threads = setup.num_threads;
    options.kv_bytes = model.kv_bytes(setup.num_pages);
    options.policy = setup.policy.c_str();
    options.trace_path = setup.trace_path.c_str();
    options.num_workers = setup.num_workers;
    EXPECT_EQ(otr_engine_create(&options, &engine_), OTR_OK) << otr_last_error(nullptr);
  }
  explicit TestEngine(otr_engine* engine) : engine_(engine) {}  // takes it
  ~TestEngine() { otr_engine_destroy(engine_); }
  TestEngine(const TestEngine&) = delete;
  TestEngine& operator=(const TestEngine&) = delete;

  otr_engine* get() const { return engine_; }

  otr_status try_submit(const Request& request, uint64_t tag, uint64_t* group) const {
    const otr_sampling_params sampling = sampling_of(request);
    const otr_group_request r = group_request(request, sampling, tag);
    return otr_submit(engine_, &r, group);
  }
  uint64_t submit(const Request& request, uint64_t tag) const {
    uint64_t group = 0;
    EXPECT_EQ(try_submit(request, tag, &group), OTR_OK) << otr_last_error(engine_);
    return group;
  }
  // `sampling` null: raw_logprobs only.
  uint64_t score(const std::vector<int32_t>& prompt, const std::vector<int32_t>& tokens, const otr_sampling_params* sampling,
                 uint64_t tag) const {
    otr_score_request r;
    otr_score_request_init(&r, sizeof r);
    r.prompt_token_ids = prompt.data();
    r.num_prompt_tokens = prompt.size();
    r.token_ids = tokens.data();
    r.num_tokens = tokens.size();
    r.tag = tag;
    r.sampling = sampling;
    uint64_t group = 0;
    EXPECT_EQ(otr_score(engine_, &r, &group), OTR_OK) << otr_last_error(engine_);
    return group;
  }

  // Takes every result until nothing is outstanding.
  Outputs collect() const {
    Outputs outputs;
    otr_result* result = nullptr;
    otr_status status;
    while ((status = otr_wait(engine_, 120'000, &result)) == OTR_OK) {
      otr_result_view view;
      EXPECT_EQ(otr_result_get(result, &view, sizeof view), OTR_OK);
      Output output{std::vector<int32_t>(view.token_ids, view.token_ids + view.num_tokens),
                    bits_of(view.logprobs, view.num_tokens), bits_of(view.raw_logprobs, view.num_tokens), view.finish_reason,
                    view.error};
      EXPECT_TRUE(outputs.emplace(std::pair(view.tag, view.sample), std::move(output)).second) << "a sample came twice";
      EXPECT_EQ(otr_result_destroy(result), OTR_OK);
    }
    EXPECT_EQ(status, OTR_IDLE) << otr_last_error(engine_);
    return outputs;
  }

  // What `submit_all` submits arrives together, however long submitting takes.
  template <typename SubmitAll>
  void submit_together(const SubmitAll& submit_all) const {
    EXPECT_EQ(otr_pause(engine_), OTR_OK);
    submit_all();
    EXPECT_EQ(otr_resume(engine_), OTR_OK);
  }
  // Submits all together, tag = index, and collects.
  Outputs run(const std::vector<Request>& requests) const {
    submit_together([&] {
      for (size_t i = 0; i < requests.size(); ++i) submit(requests[i], i);
    });
    return collect();
  }

  nlohmann::json stats() const {
    size_t size = 0;
    std::string text(8192, '\0');
    EXPECT_EQ(otr_stats(engine_, text.data(), text.size(), &size), OTR_OK) << otr_last_error(engine_);
    return nlohmann::json::parse(text.c_str());
  }
  int64_t count(const char* key) const { return stats().at(key).get<int64_t>(); }

 private:
  otr_engine* engine_ = nullptr;
};

}  // namespace otr
