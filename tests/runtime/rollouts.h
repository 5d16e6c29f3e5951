// What engine tests share: requests as values, outputs that compare bit for bit.
#pragma once

#include <cstdint>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "runtime/outrider.h"

namespace otr {

struct Request {
  Request() { otr_sampling_params_init(&sampling, sizeof sampling); }
  explicit Request(std::vector<int32_t> prompt_tokens) : Request() { prompt = std::move(prompt_tokens); }

  std::vector<int32_t> prompt;
  int32_t n = 1;
  uint32_t first_sample = 0;
  uint64_t stream = 0;
  otr_sampling_params sampling;
  std::vector<int32_t> stop_ids;
};

// What a request is to the ABI; its pointers are the request's own.
inline otr_sampling_params sampling_of(const Request& r) {
  otr_sampling_params s = r.sampling;
  s.stop_token_ids = r.stop_ids.data();
  s.num_stop_token_ids = r.stop_ids.size();
  return s;
}

// `sampling`: sampling_of(r).
inline otr_group_request group_request(const Request& r, const otr_sampling_params& sampling, uint64_t tag) {
  otr_group_request g;
  otr_group_request_init(&g, sizeof g);
  g.prompt_token_ids = r.prompt.data();
  g.num_prompt_tokens = r.prompt.size();
  g.n = r.n;
  g.first_sample = r.first_sample;
  g.stream = r.stream;
  g.tag = tag;
  g.sampling = &sampling;
  return g;
}

// A sample or a score, its floats as bits.
struct Output {
  std::vector<int32_t> tokens;
  std::vector<uint32_t> logprobs, raw_logprobs;
  otr_finish_reason reason = OTR_FINISH_ERROR;
  std::string error;

  bool operator==(const Output&) const = default;
};

using Outputs = std::map<std::pair<uint64_t, uint32_t>, Output>;  // by (tag, sample)

inline std::vector<uint32_t> bits_of(const float* x, size_t n) {
  std::vector<uint32_t> bits(x == nullptr ? 0 : n);
  if (!bits.empty()) std::memcpy(bits.data(), x, n * sizeof(float));
  return bits;
}

// Says where two runs differ; "" if nowhere.
inline std::string difference(const Outputs& a, const Outputs& b) {
  if (a.size() != b.size()) return std::to_string(a.size()) + " and " + std::to_string(b.size()) + " outputs";
  for (const auto& [key, x] : a) {
    const auto it = b.find(key);
    const std::string where = "request " + std::to_string(key.first) + " sample " + std::to_string(key.second) + ": ";
    if (it == b.end()) return where + "missing";
    const Output& y = it->second;
    if (x == y) continue;
    if (x.reason != y.reason || x.error != y.error) {
      return where + otr_finish_reason_text(x.reason) + " '" + x.error + "' and " + otr_finish_reason_text(y.reason) + " '" +
             y.error + "'";
    }
    size_t t = 0;
    while (t < x.tokens.size() && t < y.tokens.size() && x.tokens[t] == y.tokens[t] && x.logprobs[t] == y.logprobs[t] &&
           x.raw_logprobs[t] == y.raw_logprobs[t]) {
      ++t;
    }
    return where + "from token " + std::to_string(t) + " of " + std::to_string(x.tokens.size()) + " and " +
           std::to_string(y.tokens.size());
  }
  return "";
}

// `size` tokens that depend on `seed`, none below `low`.
inline std::vector<int32_t> random_tokens(uint32_t seed, size_t size, int32_t vocab_size, int32_t low = 0) {
  std::mt19937 random(seed);
  std::vector<int32_t> tokens(size);
  for (int32_t& t : tokens) t = low + static_cast<int32_t>(random() % static_cast<uint32_t>(vocab_size - low));
  return tokens;
}

}  // namespace otr
