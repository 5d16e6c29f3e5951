// Requests to an Engine, and what comes of them: for tests that need options which the C ABI does not have.
#pragma once

#include "runtime/engine.h"
#include "tests/runtime/rollouts.h"

namespace otr {

inline Result<uint64_t> try_submit(Engine* e, const Request& request, uint64_t tag) {
  otr_group_request g;
  otr_group_request_init(&g, sizeof g);
  otr_sampling_params sampling = request.sampling;
  sampling.stop_token_ids = request.stop_ids.data();
  sampling.num_stop_token_ids = request.stop_ids.size();
  g.prompt_token_ids = request.prompt.data();
  g.num_prompt_tokens = request.prompt.size();
  g.n = request.n;
  g.first_sample = request.first_sample;
  g.stream = request.stream;
  g.tag = tag;
  g.sampling = &sampling;
  return e->submit(g);
}

inline uint64_t submit(Engine* e, const Request& request, uint64_t tag) {
  const Result<uint64_t> id = try_submit(e, request, tag);
  EXPECT_TRUE(id.ok()) << id.status().message();
  return id.ok() ? id.value() : 0;
}

// Takes every result until nothing is outstanding.
inline Outputs collect(Engine* e) {
  Outputs outputs;
  for (;;) {
    const Result<std::unique_ptr<Sequence>> finished = e->wait(120'000);
    if (!finished.ok()) {
      EXPECT_EQ(finished.status().code(), StatusCode::kIdle) << finished.status().message();
      return outputs;
    }
    const Sequence& s = *finished.value();
    const size_t prompt = static_cast<size_t>(s.num_prompt());
    const size_t n = s.group->is_score ? s.raw_logprobs.size() : s.tokens.size() - prompt;
    const Output output{{s.tokens.begin() + s.num_prompt(), s.tokens.end()},
                        bits_of(s.logprobs.data(), n),
                        bits_of(s.raw_logprobs.data(), n),
                        s.finish_reason,
                        s.error};
    EXPECT_TRUE(outputs.emplace(std::pair(s.group->tag, s.sample), output).second) << "a sample came twice";
  }
}

}  // namespace otr
