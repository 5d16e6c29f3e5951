// The history drafter alone: how fast an index is built, how large it is, and how long a proposal takes.
//
//   history_speed EPOCH_1.jsonl EPOCH_2.jsonl      two outputs of `outrider rollout` for the same prompts, with different --step
//
// Builds the histories of the first file on one thread, with and without log-probs, and replays the second: before every token
// that its samples say, a chain of at most 32 tokens is proposed, and what comes true of it is taken at once. Sequences take
// turns, 32 at a time, so that a proposal finds its history as cold as it would in an engine.
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/base/clock.h"
#include "spec/history_drafter.h"

namespace otr {
namespace {

struct Sample {
  std::vector<int32_t> prompt;
  HistoryResponse response;
};

std::vector<Sample> read_samples(const char* path) {
  std::ifstream in(path);
  std::vector<Sample> samples;
  for (std::string line; std::getline(in, line);) {
    const nlohmann::json j = nlohmann::json::parse(line);
    samples.push_back({j.at("prompt_token_ids").get<std::vector<int32_t>>(),
                       {j.at("token_ids").get<std::vector<int32_t>>(), j.at("logprobs").get<std::vector<float>>()}});
  }
  return samples;
}

std::shared_ptr<const HistoryIndex> build(const std::vector<Sample>& samples, bool logprobs, double* seconds) {
  std::map<std::vector<int32_t>, std::vector<HistoryResponse>> groups;
  for (const Sample& s : samples) {
    groups[s.prompt].push_back(s.response);
    if (!logprobs) groups[s.prompt].back().logprobs.clear();
  }
  const Stopwatch time;
  auto index = std::make_shared<HistoryIndex>();
  for (const auto& [prompt, responses] : groups) index->put(prompt, std::make_shared<const PromptHistory>(prompt, responses));
  *seconds = time.seconds();
  return index;
}

// A sample of the second epoch on its way.
struct Replay {
  const Sample* sample;
  std::vector<int32_t> tokens;
  size_t said = 0;

  bool done() const { return said == sample->response.tokens.size(); }
  DraftSequence view(int32_t slot) const {
    return {.slot = slot, .group = 1, .tokens = tokens, .num_prompt = static_cast<int32_t>(sample->prompt.size()), .noise = {}};
  }
};

// Proposes and says what comes true, and one token more. Returns the microseconds of the proposal.
double step(HistoryDrafter* drafter, int32_t slot, Replay* r, Forest* forest) {
  constexpr int32_t kDepth = 32;
  forest->clear();
  const DraftRow row = {r->view(slot), kDepth, forest};
  const Stopwatch time;
  drafter->propose({&row, 1}, {.top_k = 1, .max_nodes = kDepth});
  const double microseconds = 1e6 * time.seconds();
  const std::vector<int32_t>& truth = r->sample->response.tokens;
  std::vector<int32_t> accepted;
  int32_t node = Forest::kRoot, num_new = 0;
  while (r->said < truth.size()) {
    r->tokens.push_back(truth[r->said++]);
    ++num_new;
    node = forest->child(node, r->tokens.back());
    if (node == Forest::kNone) break;
    accepted.push_back(node);
  }
  accepted.resize(std::min(accepted.size(), static_cast<size_t>(num_new)));
  drafter->observe({r->view(slot), num_new, forest, accepted});
  return microseconds;
}

std::vector<double> replay(const std::vector<Sample>& samples, const std::shared_ptr<const HistoryIndex>& index) {
  constexpr size_t kAtOnce = 32;
  HistoryDrafter drafter(0, [&index] { return index; });
  std::vector<double> times;
  Forest forest;
  forest.reserve(kMaxDraftNodes);
  for (size_t first = 0; first < samples.size(); first += kAtOnce) {
    std::vector<Replay> running;
    for (size_t i = first; i < std::min(samples.size(), first + kAtOnce); ++i) {
      running.push_back({&samples[i], samples[i].prompt});
      drafter.join(running.back().view(static_cast<int32_t>(i - first)));
    }
    for (bool any = true; any;) {
      any = false;
      for (size_t i = 0; i < running.size(); ++i) {
        if (running[i].done()) continue;
        times.push_back(step(&drafter, static_cast<int32_t>(i), &running[i], &forest));
        any = true;
      }
    }
    for (size_t i = 0; i < running.size(); ++i) drafter.leave(static_cast<int32_t>(i));
  }
  std::sort(times.begin(), times.end());
  return times;
}

}  // namespace
}  // namespace otr

int main(int argc, char** argv) {
  using namespace otr;
  if (argc != 3) return std::fprintf(stderr, "Usage: history_speed EPOCH_1.jsonl EPOCH_2.jsonl\n"), 2;
  try {
    const std::vector<Sample> first = read_samples(argv[1]), second = read_samples(argv[2]);
    for (const bool logprobs : {false, true}) {
      double seconds = 0;
      const auto index = build(first, logprobs, &seconds);
      const std::vector<double> times = replay(second, index);
      if (times.empty() || index->num_tokens() == 0) throw std::runtime_error("a file holds no tokens");
      const double tokens = static_cast<double>(index->num_tokens());
      std::printf(
          "%s log-probs: built %.0f tokens, %.1f M tokens/s, %.1f bytes a token; %zu proposals: p50 %.2f us, p99 %.2f us\n",
          logprobs ? "with" : "without", tokens, tokens / seconds * 1e-6, static_cast<double>(index->bytes()) / tokens,
          times.size(), times[times.size() / 2], times[times.size() * 99 / 100]);
    }
  } catch (const std::exception& e) {
    return std::fprintf(stderr, "history_speed: %s\n", e.what()), 1;
  }
  return 0;
}
