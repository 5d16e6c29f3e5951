// How long a worker takes from one role to the other: it drafts for another worker in one step and verifies in the next.
//
//     role_switch_bench MODEL DRAFTER [MOST_MS]
//
// Two workers, one thread each. The order to change comes when a step has ended; the time is from the next request's submit,
// which the worker finds with that order, to the end of its first tick. As a verifier: to the result of a request of one token.
// As a drafter: to its report after the first drafts, which ends a burst of them. Beside it the same request at a worker that
// keeps its role. The program ends with 1 if one change in twenty or more takes longer than MOST_MS (5), or if any of them has
// moved a byte of weights.
#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "bench/engine_run.h"

namespace otr {
namespace {

constexpr int32_t kRounds = 201;
constexpr int32_t kDraftedTokens = 6;  // what a window of 4 and the target's own token make: a longer request is one long burst

std::unique_ptr<Engine> make_engine(const std::string& model, const std::string& drafter, bool alternates, const char* policy) {
  EngineOptions o;
  o.device.target.path = model;
  o.device.target.kv_bytes = uint64_t{64} << 20;
  o.device.num_threads = 2;
  o.num_workers = 2;
  o.num_draft_workers = std::string(policy) == "off" ? 0 : 1;
  o.max_batch = 8;
  o.policy = policy;
  o.drafters = {"small=model:" + drafter};
  o.proofs.alternate_roles = alternates;
  return value_of(Engine::create(o));
}

nlohmann::json stats_of(const Engine& e) { return nlohmann::json::parse(e.stats_json()); }
int64_t draft_ticks(const nlohmann::json& stats) {  // none are told of a worker that has not drafted yet
  return stats.value(nlohmann::json::json_pointer("/workers/0/drafting/ticks"), int64_t{0});
}

double roll(Engine* e, int32_t new_tokens) {
  const int32_t prompt[] = {1};
  return run_request(e, prompt, new_tokens).ms;
}

// From the submit to the drafting worker's report, of a request that it drafts for. Who looks for that sleeps in between, so
// that both workers have a core to themselves: what it sees is up to 0.2 ms late.
double first_drafts(Engine* e) {
  const int64_t before = draft_ticks(stats_of(*e));
  const Stopwatch time;
  std::atomic<bool> over = false;
  std::thread other([e, &over] { roll(e, kDraftedTokens), over = true; });
  while (draft_ticks(stats_of(*e)) == before && !over) std::this_thread::sleep_for(std::chrono::microseconds(200));
  const double ms = 1e3 * time.seconds();
  other.join();
  return ms;
}

bool parse_ms(const char* text, double* ms) {
  const char* const end = text + std::strlen(text);
  const auto [rest, error] = std::from_chars(text, end, *ms);
  return error == std::errc() && rest == end && std::isfinite(*ms) && *ms > 0;
}

struct Times {
  std::vector<double> ms;
  double at(double share) {
    std::sort(ms.begin(), ms.end());
    return ms[static_cast<size_t>(share * static_cast<double>(ms.size() - 1))];
  }
  void print(const char* what) { std::printf("| %s | %.3f | %.3f | %.3f |\n", what, at(0.5), at(0.95), at(1)); }
};

int run(const std::string& model, const std::string& drafter, double most_ms) {
  const auto rest = [] { std::this_thread::sleep_for(std::chrono::milliseconds(2)); };
  Times to_verify, to_draft, verifies, drafts;
  const std::unique_ptr<Engine> changing = make_engine(model, drafter, true, "fixed:small:4:decoupled");
  const std::unique_ptr<Engine> decoupled = make_engine(model, drafter, false, "fixed:small:4:decoupled");
  const std::unique_ptr<Engine> coupled = make_engine(model, drafter, false, "off");
  const nlohmann::json before = stats_of(*changing);
  for (int32_t round = 0; round < 2 * kRounds; ++round) {
    rest();
    if (stats_of(*changing)["decoupled"]) {
      to_draft.ms.push_back(first_drafts(changing.get()));
      rest();
      drafts.ms.push_back(first_drafts(decoupled.get()));
    } else {
      to_verify.ms.push_back(roll(changing.get(), 1));
      rest();
      verifies.ms.push_back(roll(coupled.get(), 1));
    }
  }
  const nlohmann::json after = stats_of(*changing);
  std::printf(
      "| from the order to the end of the first tick, ms (%d changes each way) | median | 95 %% | slowest "
      "|\n|---|---|---|---|\n",
      kRounds);
  to_verify.print("a drafting worker verifies");
  verifies.print("a worker that has always verified");
  to_draft.print("a verifying worker drafts (to the report of its first burst)");
  drafts.print("a worker that has always drafted");
  const auto written = [](const nlohmann::json& stats) { return stats["weight_bytes_written"].get<int64_t>(); };
  std::printf("\nweights held: %.1f MB; moved by the changes: %lld bytes\n",
              (before["weight_bytes"].get<double>() + before["drafter_weight_bytes"].get<double>()) / 1e6,
              static_cast<long long>(written(after) - written(before)));
  const bool good = written(after) == written(before) && to_verify.at(0.95) <= most_ms && to_draft.at(0.95) <= most_ms;
  std::printf("%s\n", good ? "as promised" : "NOT as promised");
  return good ? 0 : 1;
}

}  // namespace
}  // namespace otr

int main(int argc, char** argv) {
  double most_ms = 5;
  if (argc < 3 || argc > 4 || (argc == 4 && !otr::parse_ms(argv[3], &most_ms))) {
    std::fprintf(stderr, "Usage: role_switch_bench MODEL DRAFTER [MOST_MS]: MOST_MS is a number above 0\n");
    return 2;
  }
  return otr::run_bench("role_switch_bench", [&] { return otr::run(argv[1], argv[2], most_ms); });
}
