// What benches of whole steps share: prompts of a file, and a step whose batch is the same from beginning to end.
//
// Errors: std::runtime_error with the text. Thread safety: an engine's.
#pragma once

#include <cstdint>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "bench/engine_run.h"
#include "loader/tokenizer.h"

namespace otr {

// The first `count` prompts of a file of JSON lines, as the model's tokens.
inline std::vector<std::vector<int32_t>> read_prompts(const std::string& model, const std::string& path, size_t count) {
  const Tokenizer tokenizer = value_of(Tokenizer::load(model + "/tokenizer.json"));
  std::vector<std::vector<int32_t>> prompts;
  std::ifstream lines(path);
  for (std::string line; prompts.size() < count && std::getline(lines, line);) {
    prompts.push_back(value_of(tokenizer.encode(nlohmann::json::parse(line).at("prompt").get<std::string>())));
  }
  if (prompts.size() < count) throw std::runtime_error(path + ": fewer prompts than requests");
  return prompts;
}

struct StepRun {
  double seconds = 0;
  std::map<uint64_t, std::vector<int32_t>> samples;  // by the prompt's number: all of its tokens
};

// A step of a sample a prompt, each of so many new tokens: the batch is the same from beginning to end. Equal `streams`, equal
// samples. REQUIRES: nothing is outstanding.
inline StepRun run_step(Engine* e, std::span<const std::vector<int32_t>> prompts, int32_t new_tokens, uint64_t streams = 0) {
  if (const Status paused = e->pause(); !paused.ok()) throw std::runtime_error(paused.message());
  otr_sampling_params sampling;
  otr_sampling_params_init(&sampling, sizeof sampling);
  sampling.max_new_tokens = new_tokens;
  sampling.ignore_eos = 1;
  for (size_t i = 0; i < prompts.size(); ++i) {
    otr_group_request r;
    otr_group_request_init(&r, sizeof r);
    r.prompt_token_ids = prompts[i].data();
    r.num_prompt_tokens = prompts[i].size();
    r.stream = streams * prompts.size() + i;
    r.tag = i;
    r.sampling = &sampling;
    value_of(e->submit(r));
  }
  const Stopwatch time;
  e->resume();
  StepRun run;
  for (size_t i = 0; i < prompts.size(); ++i) {
    const std::unique_ptr<Sequence> s = value_of(e->wait(600'000));
    run.samples[s->group->tag] = s->tokens;
  }
  run.seconds = time.seconds();
  return run;
}

}  // namespace otr
