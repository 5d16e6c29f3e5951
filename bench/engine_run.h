// What benches of an engine share: results that end the program where they are errors, and a request that is run to its end.
//
// Errors: std::runtime_error with the text. Thread safety: an engine's.
#pragma once

#include <cstdint>
#include <cstdio>
#include <exception>
#include <memory>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

#include "kernels/base/clock.h"
#include "runtime/engine.h"

namespace otr {

template <typename T>
T value_of(Result<T> result) {
  if (!result.ok()) throw std::runtime_error(result.status().message());
  return std::move(result.value());
}

struct EngineRun {
  double ms = 0;  // from the submit to the result
  std::unique_ptr<Sequence> sample;
};

// One sample of so many new tokens. REQUIRES: nothing else is outstanding.
inline EngineRun run_request(Engine* e, std::span<const int32_t> prompt, int32_t new_tokens) {
  otr_sampling_params sampling;
  otr_sampling_params_init(&sampling, sizeof sampling);
  sampling.max_new_tokens = new_tokens;
  sampling.ignore_eos = 1;
  otr_group_request r;
  otr_group_request_init(&r, sizeof r);
  r.prompt_token_ids = prompt.data();
  r.num_prompt_tokens = prompt.size();
  r.sampling = &sampling;
  const Stopwatch time;
  value_of(e->submit(r));
  std::unique_ptr<Sequence> sample = value_of(e->wait(600'000));
  return {.ms = 1e3 * time.seconds(), .sample = std::move(sample)};
}

// The exit status of a program that runs `body`, which returns one.
template <typename Body>
int run_bench(const char* name, const Body& body) {
  try {
    return body();
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s: %s\n", name, e.what());
    return 4;
  }
}

}  // namespace otr
