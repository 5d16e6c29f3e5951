#include "tools/outrider/simulate_steps.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>

#include "sched/step_simulator.h"
#include "tools/outrider/failure.h"
#include "tools/outrider/named_files.h"
#include "tools/outrider/output_file.h"
#include "tools/outrider/simulate_flags.h"
#include "tools/outrider/simulate_steps_plot.h"
#include "tools/outrider/status_failure.h"
#include "tools/outrider/step_workload.h"

namespace otr::cli {
namespace {

using nlohmann::ordered_json;

constexpr int32_t kDefaultGroups = 8, kDefaultEpochs = 3, kDefaultSamples = 16, kRequestsAWorker = 128;
constexpr size_t kMostSamples = size_t{1} << 24;
constexpr double kDefaultAcceptance = 0.72, kDefaultDeviation = 0.1;  // of history

struct StepSetting {
  StepOptions options;
  WorkloadLaw law;
  EpochLaw epoch;
  AcceptanceLaw acceptance;
  StepWorkload work;
  std::vector<ReadFile> files;
  size_t samples = 0;
};

void read_options(const Flags& flags, StepSetting* s) {
  StepOptions& o = s->options;
  const std::vector<std::string> profiles = flags.all("profile");
  flags.required("profile");
  if (profiles.size() > 1) throw Failure(kExitUsage, "--profile: with --steps there is one kind of worker");
  const ProfileFlag profile = profile_flag(profiles[0]);
  s->files.push_back({"--profile", profile.path});
  o.cost = fitted_profile(profile.path).fits.front().model;
  o.workers = int_flag("workers", flags.required("workers"), 1);
  if (o.workers > 1 << 14) throw Failure(kExitUsage, "--workers: more than 16384");
  o.groups = whole_flag(flags, "groups", std::min(kDefaultGroups, o.workers));
  o.max_batch = whole_flag(flags, "max-batch", o.max_batch);
  if (flags.given("group-workers")) {
    const std::string text = flags.required("group-workers");
    const size_t colon = text.find(':');
    if (colon == std::string::npos) throw Failure(kExitUsage, "--group-workers " + text + ": must be LEAST:MOST");
    o.least_workers = int_flag("group-workers", text.substr(0, colon), 1);
    o.most_workers = int_flag("group-workers", text.substr(colon + 1), 1);
  }
  o.puts_off = flags.given("put-off");
  o.most = whole_flag(flags, "window", o.most);
  if (!flags.given("train-seconds") && !flags.given("train-token-us"))
    throw Failure(kExitUsage, "--train-seconds or --train-token-us is required with --steps");
  o.train_ms = 1e3 * number_or(flags, "train-seconds", 0, 0, 1e6);
  o.train_token_ms = 1e-3 * number_or(flags, "train-token-us", 0, 0, 1e6);
}

void read_laws(const Flags& flags, StepSetting* s) {
  s->law.seed = flags.given("seed") ? u64_flag("seed", flags.required("seed")) : 0;
  s->law.prompt = whole_flag(flags, "prompt-tokens", s->law.prompt);
  s->law.median = whole_flag(flags, "median-tokens", s->law.median);
  s->law.most = whole_flag(flags, "max-tokens", s->law.most);
  s->law.samples = whole_flag(flags, "n", kDefaultSamples);
  s->law.sigma = number_or(flags, "sigma", s->law.sigma, 0, 10);
  s->epoch.prompt_share = number_or(flags, "prompt-share", s->epoch.prompt_share, 0, 1);
  s->epoch.growth = number_or(flags, "growth", s->epoch.growth, 0.01, 100);
  s->epoch.drift = number_or(flags, "drift", s->epoch.drift, 0, 10);
  s->epoch.strays = number_or(flags, "strays", s->epoch.strays, 0, 1);
  s->acceptance = {"history", kDefaultAcceptance, kDefaultDeviation};
  for (const std::string& text : flags.all("acceptance")) {
    s->acceptance = parse_acceptance("acceptance", text, kDefaultDeviation);
    if (s->acceptance.drafter != "history")
      throw Failure(kExitUsage, "--acceptance " + text + ": with --steps only history drafts");
  }
}

void draw_work(const Flags& flags, int32_t steps, StepSetting* s) {
  const int32_t epochs = whole_flag(flags, "epochs", std::min(kDefaultEpochs, steps));
  if (steps % epochs != 0) throw Failure(kExitUsage, "--steps: cannot be divided into " + std::to_string(epochs) + " epochs");
  const size_t requests = flags.given("requests") ? static_cast<size_t>(whole_flag(flags, "requests", 1))
                                                  : static_cast<size_t>(s->options.workers) * kRequestsAWorker;
  const size_t samples = static_cast<size_t>(s->law.samples), prompts = requests / samples;
  if (prompts == 0 || requests % samples != 0) throw Failure(kExitUsage, "--requests: must be so many times --n");
  if (requests > kMostSamples / static_cast<size_t>(steps))
    throw Failure(kExitUsage, "--requests: more than 16 million in all steps");
  s->work =
      drawn_epochs(s->law, s->epoch, s->acceptance, static_cast<size_t>(epochs), prompts * static_cast<size_t>(steps / epochs));
  s->work.steps_per_epoch = steps / epochs;
}

void read_work(const Flags& flags, int32_t steps, StepSetting* s) {
  refuse_flags(flags,
               {"epochs", "requests", "n", "median-tokens", "sigma", "max-tokens", "prompt-share", "growth", "drift", "strays"},
               "with --samples, the files say that");
  const std::vector<std::string> paths = flags.all("samples");
  const int32_t epochs = static_cast<int32_t>(paths.size());
  if (steps % epochs != 0) throw Failure(kExitUsage, "--steps: cannot be divided into an epoch a --samples");
  for (const std::string& path : paths) s->files.push_back({"--samples", path});
  s->work = read_epochs(paths, s->law, s->acceptance);
  s->work.steps_per_epoch = steps / epochs;
}

StepSetting step_setting(const Flags& flags) {
  refuse_flags(flags,
               {"drafters", "stats", "form", "race-batch", "shared", "kv-transfer-ms", "draft-workers", "draft-with",
                "reconfigure-every", "moves"},
               "has no use with --steps");
  StepSetting s;
  const int32_t steps = int_flag("steps", flags.required("steps"), 1);
  read_options(flags, &s);
  read_laws(flags, &s);
  flags.given("samples") ? read_work(flags, steps, &s) : draw_work(flags, steps, &s);
  for (const auto& epoch : s.work.epochs) {
    for (const auto& samples : epoch) s.samples += samples.size();
  }
  return s;
}

using Results = std::vector<StepResult>;

const char* name_of(size_t mode) { return step_mode_name(static_cast<StepMode>(mode)); }
// In percent, of the samples that could.
double migrated_percent(const StepResult& r, int64_t count) {
  return r.num_ranked == 0 ? 0 : 100 * static_cast<double>(count) / static_cast<double>(r.num_ranked);
}

void print_table(const StepSetting& s, const Results& results) {
  const StepResult& last = results.back();
  std::printf("%d steps in %zu epochs, %zu samples, %d workers in %d groups\n", s.work.num_steps(), s.work.epochs.size(),
              s.samples, s.options.workers, s.options.groups);
  if (s.work.epochs.size() > 1) {
    std::printf(
        "ranking: %.1f %% of the samples stay in their group or a shorter one, %.1f %% rise into the next one's shorter half\n",
        100 * last.accuracy.held, 100 * last.accuracy.near);
  }
  std::printf(
      "\n| mode | seconds a step | speed-up | over the row above | over one_step | workers busy | migrated | put off | no plan "
      "|\n");
  std::printf("|---|---|---|---|---|---|---|---|---|\n");
  for (size_t m = 0; m < results.size(); ++m) {
    const StepResult& r = results[m];
    std::printf("| %s | %.1f | %.2f | %.2f | %.2f | %.0f %% | %.1f %% | %.1f %% | %d |\n", name_of(m), r.ms_a_step() / 1e3,
                results[0].ms_a_step() / r.ms_a_step(), results[m == 0 ? 0 : m - 1].ms_a_step() / r.ms_a_step(),
                results[static_cast<size_t>(StepMode::kOneStep)].ms_a_step() / r.ms_a_step(), 100 * r.busy_share,
                migrated_percent(r, r.num_within_step), migrated_percent(r, r.num_to_next_step), r.num_infeasible);
  }
}

ordered_json json_of(size_t mode, const Results& results) {
  const StepResult& r = results[mode];
  ordered_json one = {{"mode", name_of(mode)},
                      {"seconds", r.end_ms / 1e3},
                      {"first_epoch_seconds", r.warm_ms / 1e3},
                      {"seconds_a_step", r.ms_a_step() / 1e3},
                      {"speedup", results[0].ms_a_step() / r.ms_a_step()},
                      {"busy_share", r.busy_share},
                      {"ranked_samples", r.num_ranked},
                      {"migrated_within_step", r.num_within_step},
                      {"put_off", r.num_to_next_step},
                      {"plans_infeasible", r.num_infeasible}};
  for (const StepTimes& step : r.steps) {
    one["steps"].push_back({{"begin_s", step.begin_ms / 1e3},
                            {"rollout_end_s", step.rollout_ms / 1e3},
                            {"train_begin_s", step.train_begin_ms / 1e3},
                            {"train_end_s", step.train_end_ms / 1e3},
                            {"samples", step.samples},
                            {"tokens", step.tokens}});
  }
  return one;
}

void print_json(const StepSetting& s, const Results& results, bool explained) {
  const RankingAccuracy& accuracy = results.back().accuracy;
  ordered_json json = {{"steps", s.work.num_steps()},
                       {"epochs", s.work.epochs.size()},
                       {"samples", s.samples},
                       {"workers", s.options.workers},
                       {"groups", s.options.groups},
                       {"acceptance", s.acceptance.mean},
                       {"ranking", {{"held", accuracy.held}, {"near", accuracy.near}}}};
  if (s.work.epochs.size() == 1) json["ranking"] = nullptr;
  for (size_t m = 0; m < results.size(); ++m) {
    json["modes"].push_back(json_of(m, results));
    if (explained) json["modes"].back()["decisions"] = results[m].decisions;
  }
  std::printf("%s\n", json.dump().c_str());
}

}  // namespace

void refuse_step_flags(const Flags& flags) {
  refuse_flags(flags,
               {"epochs", "groups", "group-workers", "max-batch", "train-seconds", "train-token-us", "put-off", "prompt-share",
                "growth", "drift", "strays"},
               "has no use without --steps");
}

int simulate_steps_command(const Flags& flags) {
  const StepSetting s = step_setting(flags);
  std::optional<OutputFile> plot;
  if (flags.given("plot")) plot.emplace(flags.required("plot"));
  refuse_shared_files(flags, {}, {"plot"}, s.files);
  Results results;
  for (int m = 0; m < kNumStepModes; ++m) {
    Result<StepResult> result = simulate_steps(static_cast<StepMode>(m), s.options, s.work);
    if (!result.ok()) throw Failure(kExitUsage, result.status().message());
    results.push_back(std::move(result.value()));
  }
  if (plot) {
    plot->start();
    plot->write_line(steps_svg(std::to_string(s.work.num_steps()) + " training steps on " + std::to_string(s.options.workers) +
                                   " rollout workers, simulated",
                               s.options.workers, results));
    plot->close();
  }
  const bool explained = flags.given("explain");
  if (flags.given("json")) {
    print_json(s, results, explained);
    return kExitOk;
  }
  for (size_t m = 0; explained && m < results.size(); ++m) {
    std::printf("%s\n", name_of(m));
    for (const std::string& line : results[m].decisions) std::printf("%s\n", line.c_str());
  }
  print_table(s, results);
  return kExitOk;
}

}  // namespace otr::cli
