// Engine options, requests and numbers that a random trainer draws.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "tests/runtime/rollouts.h"

namespace otr {

class Dice {
 public:
  explicit Dice(uint32_t seed) : random_(seed) {}
  int32_t below(int32_t n) { return static_cast<int32_t>(random_() % static_cast<uint32_t>(n)); }
  int32_t between(int32_t low, int32_t high) { return low + below(high - low + 1); }
  bool chance(int32_t percent) { return below(100) < percent; }
  template <typename T>
  const T& one_of(const std::vector<T>& values) {
    return values[static_cast<size_t>(below(static_cast<int32_t>(values.size())))];
  }
  std::vector<int32_t> tokens(int32_t size, int32_t vocab) {
    return random_tokens(static_cast<uint32_t>(random_()), static_cast<size_t>(size), vocab);
  }

 private:
  std::mt19937 random_;
};

// Seeds 1 … `count`, or FIRST … LAST of OUTRIDER_TRAINER_SEEDS=FIRST:LAST.
inline std::vector<uint32_t> trainer_seeds(uint32_t count) {
  unsigned first = 1, last = count;
  const char* const text = std::getenv("OUTRIDER_TRAINER_SEEDS");
  if (text != nullptr && (std::sscanf(text, "%u:%u", &first, &last) != 2 || first > last)) {
    std::fprintf(stderr, "OUTRIDER_TRAINER_SEEDS is %s, not FIRST:LAST\n", text);
    std::exit(2);
  }
  std::vector<uint32_t> seeds;
  for (unsigned seed = first; seed <= last; ++seed) seeds.push_back(seed);
  return seeds;
}

// What engines run on.
struct TrainerHost {
  std::string isa = "auto", device = "auto";
  int32_t num_gpus = 0;
  bool is_slow = false;  // an emulated device: requests are few and short
};

// Of one life of an engine: all of them may differ from those of the life before, but for the path.
struct RandomOptions {
  std::string policy = "off";
  int32_t max_batch = 1, prefill_chunk = 1, num_threads = 1, num_workers = 1, num_draft_workers = 0, history = 0;
  bool processes = false;
  int64_t pages = 16;  // of each worker
  bool traced = false, pinned = false, waits_aside = false;
};

inline RandomOptions random_options(Dice& dice, const TrainerHost& host) {
  const std::vector<std::string> policies = {"off",
                                             "auto",
                                             "auto",
                                             "specactor",
                                             "rhymerl",
                                             "tlt",
                                             "efficientrollout",
                                             "fixed:self:3",
                                             "fixed:ngram:4",
                                             "fixed:history:8",
                                             "fixed:small:2",
                                             "fixed:small:3:1:3:q",
                                             "fixed:quick:5",
                                             "fixed:self+ngram+history:3:2:6",
                                             "fixed:small+ngram:4:2:8"};
  RandomOptions o;
  o.policy = dice.one_of(policies);
  o.processes = dice.chance(25);
  const int32_t most_workers = host.num_gpus == 0 ? 4 : o.processes ? host.num_gpus : 3;
  o.num_workers = dice.chance(40) ? 1 : dice.between(2, std::max(most_workers, 2));
  o.num_workers = std::clamp(o.num_workers, std::max(host.num_gpus, 1), most_workers);  // of several GPUs each gets one
  if (o.num_workers > 1 && dice.chance(40) && (o.policy == "auto" || o.policy == "specactor" || o.policy == "fixed:small:2")) {
    o.num_draft_workers = dice.between(1, o.num_workers / 2);
    if (o.policy == "fixed:small:2") o.policy = dice.chance(50) ? "fixed:small:2:decoupled" : "fixed:small:5:decoupled";
  }
  o.max_batch = o.num_workers * dice.between(1, dice.chance(30) ? 2 : 12);
  o.prefill_chunk = dice.one_of(std::vector<int32_t>{1, 7, 64, 65, 200, 512});
  o.num_threads = dice.between(1, 3);
  o.history = dice.below(3);
  o.pages = dice.one_of(std::vector<int64_t>{4, 9, 12, 40, 200});
  o.traced = dice.chance(20);
  o.pinned = dice.chance(10);
  o.waits_aside = dice.chance(30);
  return o;
}

inline std::string text_of(const RandomOptions& o) {
  return o.policy + (o.processes ? ", processes" : ", threads") + ", workers " + std::to_string(o.num_workers) +
         ", of them drafting " + std::to_string(o.num_draft_workers) + ", batch " + std::to_string(o.max_batch) + ", chunk " +
         std::to_string(o.prefill_chunk) + ", threads " + std::to_string(o.num_threads) + ", pages " + std::to_string(o.pages) +
         ", history " + std::to_string(o.history);
}

inline otr_sampling_params random_sampling(Dice& dice, const TrainerHost& host) {
  otr_sampling_params s;
  otr_sampling_params_init(&s, sizeof s);
  s.seed = dice.chance(50) ? 5 : 0xfedcba9876543210u;
  s.max_new_tokens = dice.chance(20) ? dice.between(1, 3) : dice.between(4, host.is_slow ? 9 : 80);
  s.ignore_eos = dice.chance(60);
  s.temperature = dice.one_of(std::vector<float>{0.0f, 0.3f, 1.0f, 1.0f, 1.0f, 2.0f});
  if (dice.chance(20)) s.top_k = dice.between(1, 20);
  if (dice.chance(20)) s.top_p = 0.8f;
  if (dice.chance(20)) s.min_p = 0.05f;
  if (dice.chance(15)) s.repetition_penalty = 1.3f;
  if (dice.chance(10)) s.presence_penalty = 0.4f;
  if (dice.chance(10)) s.frequency_penalty = -0.2f;
  return s;
}

// Prompts come in a few families, so that their beginnings are cached, at lengths around pages' ends.
inline Request random_request(Dice& dice, const TrainerHost& host, int32_t vocab) {
  Request r;
  const int32_t length = dice.chance(40)   ? 64 * dice.between(1, host.is_slow ? 1 : 3) + dice.between(-1, 1)
                         : dice.chance(30) ? dice.between(1, 4)
                                           : dice.between(5, host.is_slow ? 70 : 240);
  r.prompt = random_tokens(static_cast<uint32_t>(dice.below(3)), static_cast<size_t>(length), vocab);
  if (dice.chance(70)) r.prompt.back() = dice.below(vocab);
  r.n = dice.chance(50) ? 1 : dice.between(2, host.is_slow ? 3 : 9);
  r.first_sample = dice.chance(20) ? 1000 : 0;
  r.stream = static_cast<uint64_t>(dice.below(1 << 20));
  r.sampling = random_sampling(dice, host);
  if (dice.chance(20)) r.stop_ids = {dice.below(vocab), dice.below(vocab)};
  return r;
}

}  // namespace otr
