// Requests to an Engine, and what comes of them: for tests that need options which the C ABI does not have.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "runtime/engine.h"
#include "tests/runtime/mixed_requests.h"
#include "tests/runtime/rollouts.h"

namespace otr {

inline Result<uint64_t> try_submit(Engine* e, const Request& request, uint64_t tag) {
  const otr_sampling_params sampling = sampling_of(request);
  return e->submit(group_request(request, sampling, tag));
}

inline uint64_t submit(Engine* e, const Request& request, uint64_t tag) {
  const Result<uint64_t> id = try_submit(e, request, tag);
  EXPECT_TRUE(id.ok()) << id.status().message();
  return id.ok() ? id.value() : 0;
}

// Teacher-forced scores of what was rolled out: tag i is of the i-th output.
inline void submit_scores(Engine* e, const std::vector<Request>& requests, const Outputs& outputs) {
  uint64_t tag = 0;
  for (const auto& [key, output] : outputs) {
    const Request& r = requests[key.first];
    otr_score_request s;
    otr_score_request_init(&s, sizeof s);
    s.prompt_token_ids = r.prompt.data();
    s.num_prompt_tokens = r.prompt.size();
    s.token_ids = output.tokens.data();
    s.num_tokens = output.tokens.size();
    s.tag = tag++;
    s.sampling = &r.sampling;
    EXPECT_TRUE(e->score(s).ok());
  }
}

inline Output output_of(const Sequence& s) {
  const size_t n = s.group->is_score ? s.raw_logprobs.size() : s.tokens.size() - static_cast<size_t>(s.num_prompt());
  return {{s.tokens.begin() + s.num_prompt(), s.tokens.end()},
          bits_of(s.logprobs.data(), n),
          bits_of(s.raw_logprobs.data(), n),
          s.finish_reason,
          s.error};
}

// Takes at most `most` results, or as many as are outstanding.
inline Outputs collect(Engine* e, size_t most = SIZE_MAX) {
  Outputs outputs;
  while (most-- > 0) {
    const Result<std::unique_ptr<Sequence>> finished = e->wait(120'000);
    if (!finished.ok()) {
      EXPECT_EQ(finished.status().code(), StatusCode::kIdle) << finished.status().message();
      return outputs;
    }
    const Sequence& s = *finished.value();
    EXPECT_TRUE(outputs.emplace(std::pair(s.group->tag, s.sample), output_of(s)).second) << "a sample came twice";
  }
  return outputs;
}

// The sum over the workers that draft for others.
inline int64_t drafting_sum(const nlohmann::json& stats, const char* key) {
  int64_t sum = 0;
  for (const nlohmann::json& w : stats["workers"]) {
    if (w.contains("drafting")) sum += w["drafting"].at(key).get<int64_t>();
  }
  return sum;
}

// Waits, a bounded time, until the workers' last messages are through. Then no page is held.
inline nlohmann::json settled_stats(const Engine& e) {
  const auto open = [](const nlohmann::json& stats) {
    int64_t opened = 0;
    for (const nlohmann::json& w : stats["workers"]) {
      opened += w.value("drafts_elsewhere", int64_t{0}) + w["replicas"].get<int64_t>() - w["lost_replicas"].get<int64_t>();
    }
    return opened - drafting_sum(stats, "ended_requests");
  };
  const auto pages = [](const nlohmann::json& stats) {
    return stats["kv_pages_in_use"].get<int64_t>() + drafting_sum(stats, "kv_pages_in_use");
  };
  nlohmann::json stats = nlohmann::json::parse(e.stats_json());
  for (int i = 0; i < 5000 && (open(stats) > 0 || pages(stats) > 0); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    stats = nlohmann::json::parse(e.stats_json());
  }
  EXPECT_EQ(open(stats), 0) << stats["workers"];
  EXPECT_EQ(stats["kv_pages_in_use"], 0) << stats["workers"];
  EXPECT_EQ(drafting_sum(stats, "kv_pages_in_use"), 0) << stats["workers"];
  return stats;
}

}  // namespace otr
