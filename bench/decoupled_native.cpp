// Is decoupled drafting on this machine as fast as the model says? One core that drafts and one that verifies, against two
// cores that draft and verify in turns, with equal windows: interleaved pairs of rollouts of the same requests.
//
//     decoupled_native MODEL DRAFTER PROMPTS.jsonl [WINDOW [REQUESTS [NEW_TOKENS [PAIRS]]]]
//
// The model is spec/window_speed.h. What it is given was measured in the rollouts themselves: milliseconds of a level of the
// draft and of a verification in either arrangement, and the chance that a drafted token is kept. So the comparison judges what
// the model says of windows, queues and waiting, and not how well costs are calibrated. Printed: the median of the pairs'
// ratios, the model's, their difference, and what `auto` and `specactor` choose. Exit code 1: they differ by more than 15 %, or
// samples differ.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "bench/step_run.h"
#include "spec/window_speed.h"

namespace otr {
namespace {

constexpr double kMostOff = 0.15;
constexpr uint64_t kKvBytes = uint64_t{512} << 20;

struct Question {
  std::string model, drafter;
  std::vector<std::vector<int32_t>> prompts;
  int32_t window = 4, new_tokens = 256, pairs = 7;
};

struct Run {
  StepRun step;
  nlohmann::json stats;
};

std::unique_ptr<Engine> make_engine(const Question& q, const std::string& policy, int32_t draft_workers) {
  EngineOptions o;
  o.device.target.path = q.model;
  o.device.target.kv_bytes = kKvBytes;
  o.device.num_threads = 2;
  o.num_workers = 2;
  o.num_draft_workers = draft_workers;
  o.max_batch = 2 * static_cast<int32_t>(q.prompts.size());  // all of them fit one worker
  o.policy = policy;
  o.race = RaceMode::kOff;
  o.drafters = {"small=model:" + q.drafter};
  return value_of(Engine::create(o));
}

Run roll(const Question& q, Engine* e) {
  return {run_step(e, q.prompts, q.new_tokens), nlohmann::json::parse(e->stats_json())};
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// What grew between two stats.
double grown(const nlohmann::json& before, const nlohmann::json& after, const std::string& pointer) {
  const nlohmann::json::json_pointer at(pointer);
  return after.at(at).get<double>() - before.at(at).get<double>();
}

struct Measured {
  WindowTimes coupled, decoupled;
  double p = 0;
};

Measured measure(const Question& q, const nlohmann::json (&coupled)[2], const nlohmann::json (&decoupled)[2]) {
  Measured m;
  const auto both = [&](const char* key) { return grown(coupled[0], coupled[1], std::string("/") + key); };
  const double busy = both("busy_seconds"), drafting = both("draft_seconds"), ticks = both("ticks");
  m.coupled = {.draft_ms = 1e3 * drafting / ticks / q.window, .verify_ms = 1e3 * (busy - drafting) / ticks};
  const auto drafter = [&](const char* key) {
    return grown(decoupled[0], decoupled[1], std::string("/workers/0/drafting/") + key);
  };
  m.decoupled = {.draft_ms = 1e3 * drafter("busy_seconds") / drafter("ticks"),
                 .verify_ms = 1e3 * grown(decoupled[0], decoupled[1], "/workers/1/busy_seconds") /
                              grown(decoupled[0], decoupled[1], "/workers/1/ticks")};
  m.p = drafter("kept_tokens") / (drafter("kept_tokens") + drafter("rollbacks"));
  return m;
}

void print_choice(const Question& q, const char* policy) {
  const std::unique_ptr<Engine> e = make_engine(q, policy, 1);
  const std::string plan = roll(q, e.get()).stats["plan"];
  const size_t begin = plan.find("Chosen: ");
  std::printf("%s, after a step: %s\n", policy, plan.substr(begin, plan.find('\n', begin) - begin).c_str());
}

int run(const Question& q) {
  const std::string policy = "fixed:small:" + std::to_string(q.window);
  const std::unique_ptr<Engine> two = make_engine(q, policy, 0), split = make_engine(q, policy + ":decoupled", 1);
  bool same = roll(q, two.get()).step.samples == roll(q, split.get()).step.samples;  // and whatever is done once is done
  const nlohmann::json two_before = nlohmann::json::parse(two->stats_json()),
                       split_before = nlohmann::json::parse(split->stats_json());
  nlohmann::json two_after, split_after;
  std::vector<double> ratios;
  for (int32_t i = 0; i < q.pairs; ++i) {
    const bool first = i % 2 == 0;
    Run a = roll(q, first ? two.get() : split.get()), b = roll(q, first ? split.get() : two.get());
    if (!first) std::swap(a, b);
    same = same && a.step.samples == b.step.samples;
    ratios.push_back(a.step.seconds / b.step.seconds);
    two_after = a.stats, split_after = b.stats;
  }
  const nlohmann::json coupled[] = {two_before, two_after}, decoupled[] = {split_before, split_after};
  const Measured m = measure(q, coupled, decoupled);
  const double batch = static_cast<double>(q.prompts.size());
  const double coupled_speed = window_speed(WindowForm::kCoupled, m.p, q.window, m.coupled);
  const double decoupled_speed = window_speed(form_in(WindowForm::kDecoupled, batch), m.p, q.window, m.decoupled);
  const double predicted = decoupled_speed / coupled_speed, measured = median(ratios), off = measured / predicted - 1;
  std::printf("%s: %zu requests of %d tokens, windows of %d, p %.3f\n", q.model.c_str(), q.prompts.size(), q.new_tokens,
              q.window, m.p);
  std::printf("coupled on 2 cores: a level %.3f ms, a verification %.3f ms; decoupled on 1 + 1: %.3f ms, %.3f ms\n",
              m.coupled.draft_ms, m.coupled.verify_ms, m.decoupled.draft_ms, m.decoupled.verify_ms);
  std::printf("decoupled against coupled: measured %.3f (%d pairs, %.3f to %.3f), predicted %.3f: %+.1f %%\n", measured,
              q.pairs, *std::min_element(ratios.begin(), ratios.end()), *std::max_element(ratios.begin(), ratios.end()),
              predicted, 100 * off);
  for (const char* chooser : {"auto", "specactor"}) print_choice(q, chooser);
  std::printf("samples bit-equal: %s\n", same ? "yes" : "NO");
  return same && std::abs(off) <= kMostOff ? 0 : 1;
}

Question read_question(int argc, char** argv) {
  Question q{.model = argv[1], .drafter = argv[2], .prompts = {}};
  const auto number = [&](int at, int32_t otherwise) { return argc > at ? std::max(1, std::atoi(argv[at])) : otherwise; };
  q.window = number(4, q.window);
  q.prompts = read_prompts(q.model, argv[3], static_cast<size_t>(number(5, 8)));
  q.new_tokens = number(6, q.new_tokens);
  q.pairs = number(7, q.pairs);
  return q;
}

}  // namespace
}  // namespace otr

int main(int argc, char** argv) {
  if (argc < 4 || argc > 8) {
    std::fprintf(stderr, "Usage: decoupled_native MODEL DRAFTER PROMPTS.jsonl [WINDOW [REQUESTS [NEW_TOKENS [PAIRS]]]]\n");
    return 2;
  }
  return otr::run_bench("decoupled_native", [&] { return otr::run(otr::read_question(argc, argv)); });
}
