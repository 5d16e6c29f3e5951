// A batch with every kind of request in it.
#pragma once

#include <vector>

#include "tests/runtime/rollouts.h"
#include "tests/runtime/sanitized.h"
#include "tests/runtime/tiny_model.h"

namespace otr {

// Requests of every kind: prompts around page boundaries and with common beginnings, all sampling parameters, stops and limits.
inline std::vector<Request> mixed_requests(int32_t vocab) {
  std::vector<Request> requests;
  const int lengths[] = {1, 2, 17, 63, 64, 65, 100, 127, 128, 129, 190, 200, 40, 130, 135, 260};
  for (const int length : lengths) {
    if (kSanitized && requests.size() == 9) break;
    Request r;
    const size_t i = requests.size();
    r.prompt = random_tokens(static_cast<uint32_t>(i % 3), static_cast<size_t>(length), vocab);  // three families of prefixes
    r.prompt.back() = static_cast<int32_t>(i);
    r.n = 1 + static_cast<int32_t>(i % 4);
    r.first_sample = i % 5 == 4 ? 1000 : 0;
    r.stream = 77 + i;
    otr_sampling_params& s = r.sampling;
    s.seed = i % 2 == 0 ? 5 : 0xfedcba9876543210u;
    s.max_new_tokens = 5 + static_cast<int32_t>(i * 37 % 70);
    s.ignore_eos = i % 3 == 0;
    if (i % 4 == 1) s.temperature = 0.5f;
    if (i % 4 == 2) s.temperature = 1.5f;
    if (i % 8 == 3) s.temperature = 0.0f;
    if (i % 5 == 1) s.top_k = 7;
    if (i % 5 == 2) s.top_p = 0.8f;
    if (i % 5 == 3) s.min_p = 0.05f;
    if (i % 7 == 4) s.top_k = 20, s.top_p = 0.9f, s.min_p = 0.01f;
    if (i % 3 == 1) s.repetition_penalty = 1.3f;
    if (i % 6 == 5) s.presence_penalty = 0.4f, s.frequency_penalty = 0.2f;
    if (i % 6 == 4) r.stop_ids = {11, 60};
    requests.push_back(r);
  }
  return requests;
}

inline std::vector<Request> mixed_requests(const TinyModel& model) { return mixed_requests(model.shape().vocab_size); }

}  // namespace otr
