// outrider simulate: how long a rollout would take on a cluster of workers, by the costs of a profile, in the paper's steps
// from plain decoding to racing drafters, and with ours.
#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "sched/simulator.h"
#include "spec/policy.h"
#include "tools/outrider/commands.h"
#include "tools/outrider/failure.h"
#include "tools/outrider/flags.h"
#include "tools/outrider/named_files.h"
#include "tools/outrider/output_file.h"
#include "tools/outrider/simulate_flags.h"
#include "tools/outrider/simulate_plot.h"
#include "tools/outrider/simulate_steps.h"
#include "tools/outrider/status_failure.h"
#include "tools/outrider/workload.h"

namespace otr::cli {
namespace {

using nlohmann::ordered_json;

constexpr const char* kUsage =
    "Usage: outrider simulate --profile [GPUS:]FILE… --workers N [FLAGS]\n\n"
    "Simulates a rollout on a cluster: plain decoding, one strategy for all, drafting and verifying apart, windows by "
    "request,\n"
    "racing drafters, and racers that exchange what they find. With --steps many training steps: on and off policy, prompts "
    "ranked\n"
    "by the last epoch's lengths, workers by group, migration, drafts from history. Costs come from profiles ('outrider "
    "profile').\n";
constexpr const char* kNotes = "\nExit codes: 0, 2 usage, 3 a file that cannot be used, 4 failure.\n";
constexpr int32_t kRequestsAWorker = 128;

const Flag kTable[] = {
    {"profile", "[GPUS:]FILE",
     "costs of the target on so many GPUs (default 1); may be repeated, the first is the plain worker's"},
    {"drafters", "FILE", "a profile to take the drafters from, each on one GPU (default: the first --profile)"},
    {"workers", "N", "of plain decoding; the cluster has so many times the first profile's GPUs (required)"},
    {"requests", "N", "default 128 a worker; with --samples as many as it has"},
    {"samples", "FILE.jsonl",
     "requests: a rollout's output, or lines of {\"tokens\", \"prompt_tokens\", \"p\": {DRAFTER: NUMBER}}"},
    {"seed", "N", "of what is drawn (default 0)"},
    {"prompt-tokens", "N", "default 512"},
    {"median-tokens", "N", "of responses, which are log-normal (default 2048)"},
    {"sigma", "X", "of their logarithm (default 1)"},
    {"max-tokens", "N", "of a response (default 20480)"},
    {"n", "N", "samples of a prompt, on one worker and of similar lengths (default 1, with --steps 16)"},
    {"acceptance", "DRAFTER=MEAN[:DEVIATION]",
     "the chance that a drafted token is kept, over requests (default 0.7:0.12); may be repeated; ngram and history exist if "
     "named"},
    {"stats", "FILE", "take the means from a rollout's --stats"},
    {"form", "NAME", "the model of decoupled speed that plans believe in: renewal (default) or paper"},
    {"window", "N", "the widest (default 16)"},
    {"race-batch", "N", "requests of a racing worker (default 16)"},
    {"shared", "X", "the share of places that are as hard for all drafters, for racers that exchange (default 0.5)"},
    {"kv-transfer-ms", "X", "to move a token's keys and values to another worker (default 0: they are computed anew)"},
    {"draft-workers", "N",
     "so many workers draft for all others, as the engine does it (default 0: groups as algorithm 1 makes them)"},
    {"draft-with", "DRAFTER[:WINDOW]", "what they draft with, and in which windows (default: what is fastest)"},
    {"reconfigure-every", "N", "iterations between two reconfigurations (default 1000)"},
    {"moves", nullptr, "a worker that runs dry takes half of what the busiest one runs, as in the engine"},
    {"steps", "N",
     "simulate so many training steps instead of one rollout; --requests (default 128 a worker) are those of a step"},
    {"train-seconds", "X", "a training takes; this or the next is required with --steps"},
    {"train-token-us", "X", "and takes for each token of the step's responses, in microseconds"},
    {"epochs", "N",
     "that the steps are divided into, each over the same prompts (default 3); or give --samples once an epoch, with lines "
     "that "
     "have an id"},
    {"groups", "N", "ranking groups (default 8)"},
    {"group-workers", "LEAST:MOST", "workers of a group (default: 1, and as many as leave one to all others)"},
    {"max-batch", "N", "samples that a worker runs at once (default 256)"},
    {"put-off", nullptr, "outliers of the longer groups go to the next step"},
    {"prompt-share", "X", "of the variance of lengths, with --steps (default 0.97)"},
    {"growth", "X", "of lengths from one epoch to the next (default 1.05)"},
    {"drift", "X", "standard deviation of the logarithm of a prompt's own growth (default 0.05)"},
    {"strays", "X", "the share of samples whose length has nothing to do with their prompt's (default 0.01)"},
    {"explain", nullptr, "print what was decided and why"},
    {"plot", "FILE.svg", "draw the requests under way over time, with --steps who works on which step"},
    {"json", nullptr, "print one JSON object instead of tables"},
};

struct Setting {
  SimulationOptions options;
  std::vector<AcceptanceLaw> acceptance;  // by drafter
  WorkloadLaw law;
  std::vector<SimulatedRequest> requests;
  std::vector<ReadFile> profiles;
};

void read_costs(const Flags& flags, Setting* s) {
  std::vector<std::string> profiles = flags.all("profile");
  if (profiles.empty()) flags.required("profile");
  std::string first;
  for (const std::string& text : profiles) {
    const auto [gpus, path] = profile_flag(text);
    if (first.empty()) first = path;
    s->profiles.push_back({"--profile", path});
    s->options.verifiers.push_back({gpus, fitted_profile(path).fits.front().model});
  }
  const Profile drafters = fitted_profile(flags.text("drafters", first));
  for (size_t d = 0; d < drafters.subject.drafters.size(); ++d) {
    s->options.drafters.push_back({drafters.subject.drafters[d].name, true, drafters.fits[d].model, 0});
  }
}

void read_acceptances(const Flags& flags, Setting* s) {
  std::vector<AcceptanceLaw> given;
  for (const std::string& text : flags.all("acceptance"))
    given.push_back(parse_acceptance("acceptance", text, AcceptanceLaw().deviation));
  for (const AcceptanceLaw& law : given) {
    auto& all = s->options.drafters;
    if (std::any_of(all.begin(), all.end(), [&law](const DrafterChoice& d) { return d.name == law.drafter; })) continue;
    if (law.drafter != "ngram" && law.drafter != "history") {
      throw Failure(kExitUsage, "--acceptance " + law.drafter + ": the profile has no such drafter");
    }
    all.push_back({law.drafter, false, {}, 0});
  }
  if (s->options.drafters.empty()) throw Failure(kExitUsage, "--drafters: the profile has none, and --acceptance names none");
  for (const DrafterChoice& d : s->options.drafters) {
    AcceptanceLaw law;
    law.drafter = d.name;
    for (const AcceptanceLaw& g : given) {
      if (g.drafter == d.name) law = g;
    }
    s->acceptance.push_back(law);
  }
  if (flags.given("stats")) read_acceptance(flags.required("stats"), &s->acceptance);
}

void read_draft_with(const std::string& text, SimulationOptions* o) {
  const size_t colon = text.find(':');
  const std::string name = text.substr(0, colon);
  const auto at =
      std::find_if(o->drafters.begin(), o->drafters.end(), [&name](const DrafterChoice& d) { return d.name == name; });
  if (at == o->drafters.end() || !at->has_model)
    throw Failure(kExitUsage, "--draft-with " + text + ": the profile has no such drafter");
  o->drafter = static_cast<int32_t>(at - o->drafters.begin());
  if (colon == std::string::npos) return;
  o->window = int_flag("draft-with", text.substr(colon + 1), 1);
  if (o->window > kMaxDraftDepth)
    throw Failure(kExitUsage, "--draft-with " + text + ": windows have at most " + std::to_string(kMaxDraftDepth) + " tokens");
}

Setting setting_of(const Flags& flags) {
  Setting s;
  SimulationOptions& o = s.options;
  read_costs(flags, &s);
  read_acceptances(flags, &s);
  const int32_t workers = int_flag("workers", flags.required("workers"), 1);
  if (workers > (1 << 20) / o.verifiers.front().gpus) throw Failure(kExitUsage, "--workers: more than a million GPUs");
  o.gpus = workers * o.verifiers.front().gpus;
  o.most = whole_flag(flags, "window", o.most);
  const std::string form = flags.text("form", "renewal");
  choice_flag("form", form, {"renewal", "paper"});
  o.form = form == "paper" ? WindowForm::kPaperDecoupled : WindowForm::kDecoupled;
  o.max_race_batch = whole_flag(flags, "race-batch", o.max_race_batch);
  o.shared = number_or(flags, "shared", o.shared, 0, 1);
  if (flags.given("draft-workers")) o.draft_workers = int_flag("draft-workers", flags.required("draft-workers"), 0);
  if (flags.given("draft-with") && o.draft_workers == 0)
    throw Failure(kExitUsage, "--draft-with: nobody drafts for others without --draft-workers");
  if (flags.given("draft-with")) read_draft_with(flags.required("draft-with"), &o);
  o.reconfigure_every = whole_flag(flags, "reconfigure-every", static_cast<int32_t>(o.reconfigure_every));
  o.moves = flags.given("moves");
  o.kv_transfer_ms = number_or(flags, "kv-transfer-ms", 0, 0, 1e6);
  s.law.seed = flags.given("seed") ? u64_flag("seed", flags.required("seed")) : 0;
  s.law.prompt = whole_flag(flags, "prompt-tokens", s.law.prompt);
  s.law.median = whole_flag(flags, "median-tokens", s.law.median);
  s.law.most = whole_flag(flags, "max-tokens", s.law.most);
  s.law.samples = whole_flag(flags, "n", 1);
  s.law.sigma = number_or(flags, "sigma", s.law.sigma, 0, 10);
  if (flags.given("samples")) {
    s.requests = read_requests(flags.required("samples"), s.law, s.acceptance);
    const size_t count = static_cast<size_t>(whole_flag(flags, "requests", static_cast<int32_t>(s.requests.size())));
    const size_t lines = s.requests.size();
    s.requests.resize(count);
    for (size_t i = lines; i < count; ++i) s.requests[i] = s.requests[i % lines];
  } else {
    const size_t count = flags.given("requests") ? static_cast<size_t>(whole_flag(flags, "requests", 1))
                                                 : static_cast<size_t>(workers) * kRequestsAWorker;
    if (count > size_t{1} << 26) throw Failure(kExitUsage, "--requests: more than 67 million");
    s.requests = drawn_requests(s.law, s.acceptance, count);
  }
  return s;
}

using Results = std::vector<SimulationResult>;

void print_explained(const Results& results) {
  for (size_t m = 0; m < results.size(); ++m) {
    std::printf("%s\n", simulation_mode_name(static_cast<SimulationMode>(m)));
    for (const std::string& line : results[m].decisions) std::printf("%s\n", line.c_str());
  }
}

void print_table(const Setting& s, const Results& results) {
  std::printf("%zu requests, %lld tokens, %d GPUs\n\n", s.requests.size(), static_cast<long long>(results[0].tokens),
              s.options.gpus);
  std::printf(
      "| mode | workers | plan | seconds | speed-up | over the row above | GPUs busy | wasted drafts a token | racers |\n");
  std::printf("|---|---|---|---|---|---|---|---|---|\n");
  for (size_t m = 0; m < results.size(); ++m) {
    const SimulationResult& r = results[m];
    std::printf("| %s | %d | %s | %.1f | %.2f | %.2f | %.0f %% | %.2f | %lld |\n",
                simulation_mode_name(static_cast<SimulationMode>(m)), r.num_workers,
                plan_name(s.options.drafters, r.plan).c_str(), r.makespan_ms / 1e3, results[0].makespan_ms / r.makespan_ms,
                results[m == 0 ? 0 : m - 1].makespan_ms / r.makespan_ms, 100 * r.busy_share,
                r.wasted_drafts / static_cast<double>(r.tokens), static_cast<long long>(r.num_racers));
  }
}

void print_json(const Setting& s, const Results& results, bool explained) {
  ordered_json json = {{"requests", s.requests.size()}, {"tokens", results[0].tokens}, {"gpus", s.options.gpus}};
  for (const AcceptanceLaw& law : s.acceptance)
    json["acceptance"][law.drafter] = {{"mean", law.mean}, {"deviation", law.deviation}};
  for (size_t m = 0; m < results.size(); ++m) {
    const SimulationResult& r = results[m];
    ordered_json one = {
        {"mode", simulation_mode_name(static_cast<SimulationMode>(m))},
        {"workers", r.num_workers},
        {"plan", plan_name(s.options.drafters, r.plan)},
        {"drafter", r.plan.drafter < 0 ? ordered_json(nullptr)
                                       : ordered_json(s.options.drafters[static_cast<size_t>(r.plan.drafter)].name)},
        {"verify_gpus", r.plan.verify_gpus},
        {"draft_gpus", r.plan.draft_gpus},
        {"window", r.plan.drafter < 0 ? 0 : r.plan.setting.window},
        {"makespan_s", r.makespan_ms / 1e3},
        {"speedup", results[0].makespan_ms / r.makespan_ms},
        {"busy_share", r.busy_share},
        {"wasted_drafts", r.wasted_drafts},
        {"raced_tokens", r.raced_tokens},
        {"reconfigured", r.num_reconfigured},
        {"racers", r.num_racers},
        {"moves", r.num_moves}};
    if (explained) one["decisions"] = r.decisions;
    json["modes"].push_back(std::move(one));
  }
  std::printf("%s\n", json.dump().c_str());
}

}  // namespace

int simulate_command(int argc, char** argv) {
  if (printed_help(kTable, argc, argv, kUsage, kNotes)) return kExitOk;
  const Flags flags(kTable, argc, argv);
  if (flags.given("steps")) return simulate_steps_command(flags);
  refuse_step_flags(flags);
  const Setting s = setting_of(flags);
  std::optional<OutputFile> plot;
  if (flags.given("plot")) plot.emplace(flags.required("plot"));
  refuse_shared_files(flags, {"drafters", "samples", "stats"}, {"plot"}, s.profiles);
  Results results;
  for (int m = 0; m < kNumSimulationModes; ++m) {
    Result<SimulationResult> result = simulate(static_cast<SimulationMode>(m), s.options, s.requests);
    if (!result.ok()) throw Failure(kExitUsage, result.status().message());
    results.push_back(std::move(result.value()));
  }
  if (plot) {
    std::vector<SimulatedLine> lines;
    for (size_t m = 0; m < results.size(); ++m) {
      lines.push_back({simulation_mode_name(static_cast<SimulationMode>(m)), results[m].finish_ms});
    }
    plot->start();
    plot->write_line(simulation_svg(
        std::to_string(s.requests.size()) + " requests on " + std::to_string(s.options.gpus) + " GPUs, simulated", lines));
    plot->close();
  }
  const bool explained = flags.given("explain");
  if (flags.given("json")) {
    print_json(s, results, explained);
  } else {
    if (explained) print_explained(results);
    print_table(s, results);
  }
  return kExitOk;
}

}  // namespace otr::cli
