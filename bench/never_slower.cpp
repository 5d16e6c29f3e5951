// Is `auto` ever slower than plain decoding? Steps of one batch size under either, in interleaved pairs, with drafters as good
// as they are and with an acceptance dial (spec/acceptance_dial.h) that spoils what all of them propose, down to everything.
//
//     never_slower MODEL DRAFTER PROMPTS.jsonl [NEW_TOKENS [PAIRS [BATCH,… [KEEP,…]]]]
//
// DRAFTER runs in 4 bits; `ngram` and `self` are there too. KEEP: the share of drafted tokens that the dial leaves alone. An
// engine of `auto` is made for every batch and KEEP, so its first step, which is counted, begins with what costs were measured
// at create and nothing else. Printed: milliseconds a token of a sample, plain; (plain seconds / auto's), the geometric mean of
// the pairs with a two-sided 90 % interval, whose sides are one-sided 95 % bounds; the first pair's; the share of time in
// decisions and drafts. Exit code 1: samples differ.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "bench/step_run.h"

namespace otr {
namespace {

// Student's t, one-sided 95 %, by degrees of freedom from 1; beyond the last, that of the last, which is larger than theirs.
constexpr double kStudent95[] = {6.31, 2.92, 2.35, 2.13, 2.02, 1.94, 1.90, 1.86, 1.83, 1.81};

struct Question {
  std::string model, drafter, prompts;
  int32_t new_tokens = 48, pairs = 5;
  std::vector<int32_t> batches = {1, 2, 4, 8, 16, 32, 64};
  std::vector<double> keeps = {0, 0.3, 1};
};

std::unique_ptr<Engine> make_engine(const Question& q, const char* policy, int32_t batch, double keep) {
  constexpr uint64_t kKvBytes = uint64_t{512} << 20;
  EngineOptions o;
  o.device.target.path = q.model;
  o.device.target.kv_bytes = kKvBytes;
  o.max_batch = batch;
  o.policy = policy;
  o.drafters = {"small=w4:" + q.drafter};
  o.dial = {.keep = keep};
  return value_of(Engine::create(o));
}

struct Interval {
  double mean, low, high;
};

Interval interval_of(const std::vector<double>& ratios) {
  double sum = 0, squares = 0;
  const double n = static_cast<double>(ratios.size());
  for (const double r : ratios) sum += std::log(r);
  for (const double r : ratios) squares += (std::log(r) - sum / n) * (std::log(r) - sum / n);
  const size_t freedom = std::min(ratios.size() - 1, std::size(kStudent95));
  const double half = freedom == 0 ? INFINITY : kStudent95[freedom - 1] * std::sqrt(squares / (n - 1) / n);
  return {std::exp(sum / n), std::exp(sum / n - half), std::exp(sum / n + half)};
}

// True: samples are equal.
bool compare(const Question& q, int32_t batch, double keep) {
  const std::vector<std::vector<int32_t>> prompts = read_prompts(q.model, q.prompts, static_cast<size_t>(batch));
  const std::unique_ptr<Engine> plain = make_engine(q, "off", batch, 1), chosen = make_engine(q, "auto", batch, keep);
  std::vector<double> ratios, seconds;
  bool same = true;
  for (int32_t i = 0; i < q.pairs; ++i) {
    const uint64_t streams = static_cast<uint64_t>(i);  // other samples in every pair
    StepRun off, by_auto;
    if (i % 2 == 0) off = run_step(plain.get(), prompts, q.new_tokens, streams);
    by_auto = run_step(chosen.get(), prompts, q.new_tokens, streams);
    if (i % 2 == 1) off = run_step(plain.get(), prompts, q.new_tokens, streams);
    same = same && off.samples == by_auto.samples;
    ratios.push_back(off.seconds / by_auto.seconds);
    seconds.push_back(off.seconds);
  }
  std::nth_element(seconds.begin(), seconds.begin() + q.pairs / 2, seconds.end());
  const nlohmann::json stats = nlohmann::json::parse(chosen->stats_json());
  const double busy = stats["busy_seconds"];
  const Interval r = interval_of(ratios);
  std::printf("| %d | %.2f | %.1f | %.3f (%.3f to %.3f) | %.3f | %.2f %% | %.1f %% | %s |\n", batch, keep,
              1e3 * seconds[seconds.size() / 2] / q.new_tokens, r.mean, r.low, r.high, ratios[0],
              100 * stats["decide_seconds"].get<double>() / busy, 100 * stats["draft_seconds"].get<double>() / busy,
              same ? "yes" : "NO");
  std::fflush(stdout);
  return same;
}

int run(const Question& q) {
  std::printf(
      "%s: %d tokens a sample, %d pairs\n\n| samples | drafts kept by the dial | plain, ms a token | auto is faster by (90 %%) "
      "| first pair | deciding | drafting | "
      "equal |\n|---|---|---|---|---|---|---|---|\n",
      q.model.c_str(), q.new_tokens, q.pairs);
  bool same = true;
  for (const int32_t batch : q.batches) {
    for (const double keep : q.keeps) same = compare(q, batch, keep) && same;
  }
  return same ? 0 : 1;
}

template <typename T>
std::vector<T> numbers(const char* text, T least, T most) {
  std::vector<T> found;
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) {
    T number = 0;
    std::istringstream in(part);
    if (!(in >> number) || !in.eof() || number < least || number > most)
      throw std::runtime_error("'" + part + "' in '" + text + "' is no such number");
    found.push_back(number);
  }
  return found;
}

Question read_question(int argc, char** argv) {
  constexpr int32_t kMost = 4096;
  Question q{.model = argv[1], .drafter = argv[2], .prompts = argv[3]};
  if (argc > 4) q.new_tokens = numbers<int32_t>(argv[4], 1, kMost).at(0);
  if (argc > 5) q.pairs = numbers<int32_t>(argv[5], 1, kMost).at(0);
  if (argc > 6) q.batches = numbers<int32_t>(argv[6], 1, kMost);
  if (argc > 7) q.keeps = numbers<double>(argv[7], 0, 1);
  return q;
}

}  // namespace
}  // namespace otr

int main(int argc, char** argv) {
  if (argc < 4 || argc > 8) {
    std::fprintf(stderr, "Usage: never_slower MODEL DRAFTER PROMPTS.jsonl [NEW_TOKENS [PAIRS [BATCH,... [KEEP,...]]]]\n");
    return 2;
  }
  return otr::run_bench("never_slower", [&] { return otr::run(otr::read_question(argc, argv)); });
}
