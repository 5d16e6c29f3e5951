// outrider emulate: a rollout whose passes take as long as a profile says: real workers, queues, moves and tokens, and another
// machine's times (runtime/pace.h).
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "runtime/abi_structs.h"
#include "runtime/engine.h"
#include "runtime/profile_file.h"
#include "spec/policy.h"
#include "tools/outrider/commands.h"
#include "tools/outrider/engine_handle.h"
#include "tools/outrider/failure.h"
#include "tools/outrider/flags.h"
#include "tools/outrider/history_flags.h"
#include "tools/outrider/json_text.h"
#include "tools/outrider/line_reader.h"
#include "tools/outrider/model_tokenizer.h"
#include "tools/outrider/named_files.h"
#include "tools/outrider/output_file.h"
#include "tools/outrider/rollout_lines.h"
#include "tools/outrider/stats_file.h"
#include "tools/outrider/status_failure.h"
#include "tools/outrider/workload.h"

namespace otr::cli {
namespace {

using nlohmann::ordered_json;

constexpr const char* kUsage =
    "Usage: outrider emulate --profile FILE --model PATH --prompts FILE|- [FLAGS]\n\n"
    "A rollout with the engine's own workers, each of whose passes takes as long as the profile's costs say: how long a "
    "cluster would\n"
    "need, with a small model on few cores. Samples are those of 'outrider rollout'.\n";
constexpr const char* kNotes = R"(
Seconds are modelled ones, unless they are called wall seconds. Exit codes: 0, 2 usage, 3 bad input, 4 failure at run time, or passes
that were not done when they were due: then the times are not to be trusted, and a scale that leaves enough time is named.
)";
constexpr double kMostLate = 0.05;      // of the passes
constexpr double kRoom = 1.25;          // of a scale that is proposed, over what all but kMostLate / 2 of the passes needed
constexpr int64_t kWaitMs = 3'600'000;  // for the next sample

std::vector<Flag> flag_table() {
  std::vector<Flag> table;
  for (const Flag& flag : kEngineFlagTable) {
    const std::string name = flag.name;
    if (name == "profile")
      table.push_back({"profile", "FILE.json", "what passes of the target and of drafters take (required)"});
    else if (name == "worker-processes")
      table.push_back(
          {flag.name, nullptr, "each worker is a process, paced by the wall clock; one that dies or hangs is replaced"});
    else if (name != "nccl" && name != "device") table.push_back(flag);
  }
  const Flag own[] = {
      {"prompts", "FILE|-", "JSON lines, as rollout reads them (required)"},
      {"time-scale", "S",
       "wall seconds of a modelled second; 0 (default): time stands still while workers compute, so that none is ever late"},
      {"kv-transfer-ms", "X", "to move a token's keys and values to another worker (default 0: they are computed anew)"},
      {"keep", "DRAFTER=SHARE[:DEVIATION]",
       "spoils drafts: only this share of the tokens is left as the drafter proposed it (default 1); may be repeated"},
      {"dial", "KEEP",
       "spoils drafts of all drafters, looked up or of a model: only this share of the tokens is left (default 1)"},
      {"race", "HOW", "policy (default: as the policy says), off, fastest or leapfrog: what workers without samples do"},
      {"decouple", nullptr, "draft workers do draft for the others, whatever the plan says"},
      {"stay", nullptr, "samples that run go to no other worker, whoever is idle: replicas do"},
      {"reconfigure-every", "N", "levels of a draft worker between two reconfigurations (algorithm 2); 0: none (default 1000)"},
      {"samples", "FILE.jsonl", "write when each sample finished: lines that 'simulate --samples' reads"},
      {"policy", "POLICY", "as for rollout (default auto); drafters with a model that the profile does not have are left out"},
      {"drafter", "NAME=model:PATH",
       "a smaller model that the policy may name, NAME=w4:PATH for it in 4 bits; may be repeated"},
      {"explain", nullptr, "say on stderr which workers draft for others, and why"},
      {"trace", "FILE.json", "write what every tick chose, expected and did, in modelled time"},
  };
  table.insert(table.end(), std::begin(own), std::end(own));
  table.insert(table.end(), kHistoryFlagTable.begin(), kHistoryFlagTable.end());
  table.insert(table.end(), kSamplingFlagTable.begin(), kSamplingFlagTable.end());
  return table;
}

double real_flag(const Flags& flags, const char* name, double most) {
  return flags.given(name) ? number_flag(name, flags.required(name), 0, most) : 0;
}

PaceOptions pace_options(const Flags& flags) {
  const std::string path = flags.required("profile");
  const Profile profile = check_model(load_profile(path));
  if (profile.fits.empty()) throw Failure(kExitBadInput, path + ": the profile is not complete");
  PaceOptions pace{.scale = real_flag(flags, "time-scale", 1e6),
                   .target = profile.fits.front().model,
                   .drafters = {},
                   .kv_transfer_ms = real_flag(flags, "kv-transfer-ms", 1e6)};
  if (flags.given("reconfigure-every"))
    pace.reconfigure_every = int_flag("reconfigure-every", flags.required("reconfigure-every"), 0);
  for (size_t d = 0; d < profile.subject.drafters.size(); ++d) {
    pace.drafters.push_back({.name = profile.subject.drafters[d].name, .cost = profile.fits[d].model});
  }
  for (const std::string& text : flags.all("keep")) {
    const AcceptanceLaw law = parse_acceptance("keep", text, /*deviation=*/0);
    const auto at = std::find_if(pace.drafters.begin(), pace.drafters.end(),
                                 [&law](const PacedDrafter& d) { return d.name == law.drafter; });
    if (at == pace.drafters.end()) throw Failure(kExitUsage, "--keep " + text + ": the profile has no such drafter");
    at->dial = {.keep = law.mean, .deviation = law.deviation, .salt = static_cast<uint32_t>(at - pace.drafters.begin())};
  }
  return pace;
}

RaceMode race_mode(const Flags& flags) {
  const std::string text = flags.text("race", "policy");
  choice_flag("race", text, {"policy", "off", "fastest", "leapfrog"});
  if (text == "off") return RaceMode::kOff;
  if (text == "fastest") return RaceMode::kFastestOfN;
  return text == "leapfrog" ? RaceMode::kLeapfrog : RaceMode::kByPolicy;
}

EngineOptions paced_engine_options(const Flags& flags, const EngineFlags& engine_flags) {
  Result<EngineOptions> options = engine_options(engine_flags.options);
  if (!options.ok()) throw Failure(kExitUsage, options.status().message());
  EngineOptions o = std::move(options.value());
  o.profile.clear();  // it is of another machine
  o.pace = pace_options(flags);
  o.race = race_mode(flags);
  if (flags.given("dial")) o.dial.keep = number_flag("dial", flags.required("dial"), 0, 1);
  if (o.worker_processes && o.pace->scale == 0)
    throw Failure(kExitUsage, "--worker-processes needs --time-scale: time cannot stand still for other processes");
  if (o.dial.on() && (o.worker_processes || o.num_draft_workers > 0))
    throw Failure(kExitUsage, "--dial is for workers that draft for themselves in this process");
  o.always_decouples = flags.given("decouple");
  o.samples_stay = flags.given("stay");
  return o;
}

std::unique_ptr<Engine> make_engine(const EngineOptions& options) {
  Result<std::unique_ptr<Engine>> engine = Engine::create(options);
  if (engine.ok()) return std::move(engine.value());
  throw_not_created(static_cast<otr_status>(engine.status().code()), engine.status().message());
}

// What no other command has; for --stats.
ordered_json own_settings(const Flags& flags, const EngineOptions& o) {
  return {{"kv_transfer_ms", o.pace->kv_transfer_ms},      {"keep", flags.all("keep")},      {"dial", o.dial.keep},
          {"race", flags.text("race", "policy")},          {"decouple", o.always_decouples}, {"stay", o.samples_stay},
          {"reconfigure_every", o.pace->reconfigure_every}};
}

HistoryFlags::Answer answer_of(const Status& status) { return {static_cast<otr_status>(status.code()), status.message()}; }

std::string only_drafter(const std::string& policy) {
  const Result<Policy> parsed = parse_policy(policy);
  return parsed.ok() && parsed.value().drafters.size() == 1 ? parsed.value().drafters[0] : "";
}

struct Prompts {
  struct Line {
    RolloutLine line;
    int64_t number = 0;  // in the file
  };
  std::string name;  // of the file
  std::vector<Line> lines;
  int64_t num_bad = 0;

  void refuse(int64_t number, const std::string& reason) {
    ++num_bad;
    std::fprintf(stderr, "%s:%lld: %s\n", name.c_str(), static_cast<long long>(number), reason.c_str());
  }
};

Prompts read_prompts(LineReader* input, const SamplingSettings& defaults, const Tokenizer* tokenizer) {
  Prompts prompts{.name = input->name(), .lines = {}};
  RolloutReader reader(defaults, tokenizer);
  std::string_view text;
  for (LineReader::Next next; (next = input->next(/*may_block=*/true, &text)) != LineReader::Next::kEnd;) {
    if (next == LineReader::Next::kLine && text.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    try {
      if (next == LineReader::Next::kTooLong) throw BadLine("longer than " + std::to_string(kMaxLineBytes) + " bytes");
      prompts.lines.push_back({reader.read(text, input->line_number()), input->line_number()});
      reader.accept(prompts.lines.back().line);
    } catch (const BadLine& bad) {
      prompts.refuse(input->line_number(), bad.what());
    }
  }
  return prompts;
}

// All samples of an engine, from the moment when it begins with all prompts at once.
class Emulation {
 public:
  Emulation(Engine* engine, const Tokenizer* tokenizer) : engine_(*engine), tokenizer_(tokenizer) {}

  void run(Prompts* prompts, uint64_t step);
  void write_rollouts(OutputFile* out) const;
  // `drafter`: the only one that there was, or "".
  void write_samples(const std::string& drafter, OutputFile* out) const;
  ordered_json json(double scale, const PaceStats& pace) const;
  void print(const PaceStats& pace) const;
  int64_t num_failed() const { return num_failed_; }

 private:
  struct Done {
    std::unique_ptr<Sequence> sample;
    double seconds = 0;  // since the beginning
  };
  struct Line {
    std::string id_json, prompt_json;
  };
  void submit(Prompts* prompts, uint64_t step);
  void collect(double began_ms);

  Engine& engine_;
  const Tokenizer* const tokenizer_;
  std::vector<Line> lines_;                             // by tag
  std::map<std::pair<uint64_t, uint32_t>, Done> done_;  // by tag and sample
  double makespan_s_ = 0, wall_s_ = 0;
  int64_t num_tokens_ = 0, num_failed_ = 0;
};

void Emulation::submit(Prompts* prompts, uint64_t step) {
  for (const auto& [line, number] : prompts->lines) {
    const otr_sampling_params sampling = line.sampling.abi();
    const Result<uint64_t> group = engine_.submit(group_request(line, step, lines_.size(), &sampling));
    try {
      if (!group.ok()) throw_refused(static_cast<otr_status>(group.status().code()), group.status().message());
    } catch (const BadLine& bad) {
      prompts->refuse(number, bad.what());
      continue;
    }
    lines_.push_back({line.id.json, ""});
    append_json_array(&lines_.back().prompt_json, line.prompt_token_ids);
  }
}

void Emulation::run(Prompts* prompts, uint64_t step) {
  PaceClock& clock = *engine_.pace_clock();
  check(engine_.pause());
  submit(prompts, step);
  const auto wall = std::chrono::steady_clock::now();
  clock.enter();  // until all workers have heard of it
  const double began_ms = clock.now_ms();
  engine_.resume();
  clock.leave();
  collect(began_ms);
  wall_s_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - wall).count();
}

void Emulation::collect(double began_ms) {
  for (;;) {
    Result<std::unique_ptr<Sequence>> next = engine_.wait(kWaitMs);
    if (next.status().code() == StatusCode::kIdle) return;
    std::unique_ptr<Sequence> s = check(std::move(next));
    const double seconds = 1e-3 * (s->finished_ms - began_ms);
    makespan_s_ = std::max(makespan_s_, seconds);
    num_tokens_ += s->num_tokens() - s->num_prompt();
    num_failed_ += s->finish_reason == OTR_FINISH_ERROR;
    const std::pair key(s->group->tag, s->sample);
    done_[key] = {.sample = std::move(s), .seconds = seconds};
  }
}

void Emulation::write_rollouts(OutputFile* out) const {
  for (const auto& [key, done] : done_) {
    const Line& line = lines_[key.first];
    out->write_line(sample_line(line.id_json, line.prompt_json, result_view(*done.sample), tokenizer_));
  }
}

void Emulation::write_samples(const std::string& drafter, OutputFile* out) const {
  for (const auto& [key, done] : done_) {
    const Sequence& s = *done.sample;
    ordered_json line = {{"id", ordered_json::parse(lines_[key.first].id_json)},
                         {"sample", s.sample},
                         {"prompt_tokens", s.num_prompt()},
                         {"tokens", s.num_tokens() - s.num_prompt()},
                         {"seconds", done.seconds},
                         {"draft_tokens", s.spec.draft_tokens},
                         {"judged_tokens", s.spec.judged_tokens},
                         {"accepted_tokens", s.spec.accepted_tokens}};
    if (!drafter.empty() && s.spec.judged_tokens > 0) {
      line["p"][drafter] = static_cast<double>(s.spec.accepted_tokens) / static_cast<double>(s.spec.judged_tokens);
    }
    out->write_line(line.dump());
  }
}

ordered_json Emulation::json(double scale, const PaceStats& pace) const {
  return {{"samples", done_.size()},
          {"failed_samples", num_failed_},
          {"tokens", num_tokens_},
          {"makespan_seconds", makespan_s_},
          {"wall_seconds", wall_s_},
          {"time_scale", scale},
          {"pace", ordered_json::parse(pace.json())}};
}

void Emulation::print(const PaceStats& pace) const {
  std::printf("%zu samples, %lld tokens in %.3f modelled seconds (%.1f here); %lld passes, %.2f %% late\n", done_.size(),
              static_cast<long long>(num_tokens_), makespan_s_, wall_s_, static_cast<long long>(pace.passes),
              100 * pace.late_share());
}

// Whether two cores, or however many there are, kept up. Says on stderr what would help if not.
bool kept_up(const PaceStats& pace, double scale, bool processes) {
  if (pace.late_share() <= kMostLate) return true;
  std::fprintf(stderr,
               "outrider emulate: %.1f %% of the passes were not done when they were due: these times are not to be trusted; "
               "--time-scale %.2g would leave them time%s\n",
               100 * pace.late_share(), scale * kRoom * pace.stretch(kMostLate / 2),
               processes ? "" : ", 0 takes as long as it takes");
  return false;
}

}  // namespace

int emulate_command(int argc, char** argv) {
  const std::vector<Flag> table = flag_table();
  if (printed_help(table, argc, argv, kUsage, kNotes)) return kExitOk;
  const Flags flags(table, argc, argv);
  EngineFlags engine_flags(flags, "auto");
  const HistoryFlags history(flags);
  history.set(&engine_flags.options);
  const auto [defaults, step] = sampling_flags(flags);
  const EngineOptions options = paced_engine_options(flags, engine_flags);
  LineReader input(flags.required("prompts"));
  OutputFile output(flags.text("out", "-"));
  std::optional<OutputFile> samples, stats;
  if (flags.given("samples")) samples.emplace(flags.required("samples"));
  if (flags.given("stats")) stats.emplace(flags.required("stats"));
  refuse_shared_files(flags, {"model", "prompts", "profile"}, {"out", "samples", "stats", "trace", "history"},
                      drafter_files(flags));
  const std::unique_ptr<Tokenizer> tokenizer = load_model_tokenizer(engine_flags.model);
  Prompts prompts = read_prompts(&input, defaults, tokenizer.get());
  const std::unique_ptr<Engine> engine = make_engine(options);
  history.load([&engine](const std::string& path) { return answer_of(engine->history()->load(path)); });
  if (flags.given("explain")) std::fputs(engine->plan_text().c_str(), stderr);

  Emulation emulation(engine.get(), tokenizer.get());
  emulation.run(&prompts, step);
  output.start();
  emulation.write_rollouts(&output);
  output.close();
  const std::optional<Failure> lost =
      history.save([&engine](const std::string& path) { return answer_of(engine->history()->save(path)); });
  if (samples) {
    samples->start();
    emulation.write_samples(only_drafter(options.policy), &*samples);
    samples->close();
  }
  const bool trusted = kept_up(engine->pace_stats(), options.pace->scale, options.worker_processes);
  if (stats) {
    ordered_json json = ordered_json::parse(engine->stats_json());
    json["command"] = "emulate";
    json["emulation"] = emulation.json(options.pace->scale, engine->pace_stats());
    json["emulation"]["trusted"] = trusted;
    json["settings"] = engine_flags.settings();
    json["settings"]["prompts"] = input.name();
    json["settings"].update(sampling_settings(defaults));
    json["settings"]["step"] = step;
    json["settings"].update(own_settings(flags, options));
    history.add_settings(&json["settings"]);
    stats->start();
    stats->write_line(json_dump(json, 2));
    stats->close();
  }
  if (lost) throw *lost;
  if (flags.text("out", "-") != "-") emulation.print(engine->pace_stats());
  if (!trusted || emulation.num_failed() > 0) return kExitFailure;
  return prompts.num_bad > 0 ? kExitBadInput : kExitOk;
}

}  // namespace otr::cli
