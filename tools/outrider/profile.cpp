// outrider profile: measures what passes cost on this machine, fits the cost model, and says how well it fits and what drafters
// are worth: the ladder, which can also be had of a profile that there is.
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "kernels/base/clock.h"
#include "kernels/base/fp_env.h"
#include "loader/file.h"
#include "loader/weight_source.h"
#include "runtime/profiler.h"
#include "runtime/speculator.h"
#include "tools/outrider/commands.h"
#include "tools/outrider/failure.h"
#include "tools/outrider/flags.h"
#include "tools/outrider/named_files.h"
#include "tools/outrider/output_file.h"
#include "tools/outrider/profile_plot.h"
#include "tools/outrider/progress_bar.h"
#include "tools/outrider/status_failure.h"

namespace otr::cli {
namespace {

using nlohmann::ordered_json;

constexpr const char* kUsage =
    "Usage: outrider profile --model PATH [--drafter NAME=model:PATH|NAME=w4:PATH]… -o PROFILE.json [FLAGS]\n"
    "       outrider profile --ladder PROFILE.json [--context N] [--plot FILE.svg] [--json]\n\n"
    "Times passes of the model, of its verifications and of its drafters over batch and context, fits their costs, and writes "
    "both.\n"
    "It takes at most about five minutes. If it is interrupted, the same command goes on where it was (PROFILE.json.part).\n"
    "The ladder says of each drafter, batch and acceptance how deep it should draft and what that is foretold to bring; with "
    "--ladder "
    "of\n"
    "a profile's costs alone: no model is needed.\n";
constexpr const char* kNotes =
    "\nThe drafter 'lookup' is any that runs no model (ngram, history). Depth 0: no draft is worth its time.\nExit codes: 0, 2 "
    "usage, 3 a model or an unfinished profile that cannot be used, 4 failure.\n";
constexpr int32_t kShownContext = 1024;  // of the ladder
constexpr double kSavedEvery = 1;        // seconds

const Flag kTable[] = {
    {"model", "PATH", "a Hugging Face folder or an .otr file (required)"},
    {"drafter", "NAME=model:PATH",
     "a smaller model that policies may name, w4: in 4 bits; may be repeated (self is always profiled)"},
    {"o", "FILE.json", "the profile (required)"},
    {"max-batch", "N", "samples of the largest passes (default 64)"},
    {"max-context", "N", "tokens of the longest contexts (default 4096, or what the model has)"},
    {"threads", "N", "default: one per CPU that affinity and the container's quota allow"},
    {"isa", "NAME", "force a path: cpu-amx, cpu-avx512, cpu-avx2, cpu-scalar or cuda-sm90a (default auto: the CPU's best)"},
    {"plot", "FILE.svg", "draw measured against predicted times and where speculation pays; with --ladder, the ladder"},
    {"ladder", "PROFILE.json", "time nothing: the ladder by the costs of this profile"},
    {"context", "N", "tokens of the ladder's samples (default 1024, or what the profile has)"},
    {"json", nullptr, "print one JSON object instead of tables"},
};

ProfilerOptions options_of(const Flags& flags) {
  ProfilerOptions o;
  o.model = flags.required("model");
  for (const std::string& text : flags.all("drafter")) {
    Result<DrafterModel> drafter = parse_drafter_model(text);
    if (!drafter.ok()) throw Failure(kExitUsage, "--" + drafter.status().message());
    for (const DrafterModel& other : o.drafters) {
      if (other.name == drafter.value().name) throw Failure(kExitUsage, "--drafter " + text + ": the name is taken");
    }
    o.drafters.push_back(std::move(drafter).value());
  }
  o.isa = flags.text("isa", "auto");
  choice_flag("isa", o.isa, {"auto", "cpu-amx", "cpu-avx512", "cpu-avx2", "cpu-scalar", "cuda-sm90a"});
  if (flags.given("threads")) o.num_threads = int_flag("threads", flags.required("threads"), 1);
  if (flags.given("max-batch")) o.max_batch = int_flag("max-batch", flags.required("max-batch"), 1);
  o.max_context = flags.given("max-context")
                      ? int_flag("max-context", flags.required("max-context"), 1)
                      : std::min(o.max_context, Profiler::most_context(check_model(open_model(o.model)).config));
  return o;
}

std::string minutes(double seconds) {
  const long whole = std::lround(seconds);
  char text[32];
  std::snprintf(text, sizeof text, "%ld:%02ld", whole / 60, whole % 60);
  return text;
}

void resume(Profiler* profiler, const std::string& part) {
  if (!path_exists(part)) return;
  const Profile profile = check_model(load_profile(part));
  if (const Status status = profiler->resume(profile); !status.ok()) {
    throw Failure(kExitBadInput, part + ": " + status.message() + "; remove it to begin anew");
  }
}

void sweep(Profiler* profiler, const std::string& part) {
  check(profiler->plan());
  Stopwatch since_saved;
  while (!profiler->done()) {
    show_status("sweep " + std::to_string(100 * profiler->num_done() / profiler->num_planned()) + " %  " +
                std::to_string(profiler->num_done()) + " of " + std::to_string(profiler->num_planned()) + " visits  " +
                minutes(profiler->seconds_left()) + " left");
    profiler->step();
    if (since_saved.seconds() < kSavedEvery) continue;
    check(save_profile(profiler->profile(), part));
    since_saved = Stopwatch();
  }
  show_status("");
}

const char* role_name(CostRole role) {
  return role == CostRole::kTarget ? "target" : role == CostRole::kVerify ? "verify" : "draft";
}

// Every role once: the target's, then each drafter's.
template <typename Visit>
void for_each_role(const Profile& profile, const Visit& visit) {
  visit(size_t{0}, CostRole::kTarget);
  visit(size_t{0}, CostRole::kVerify);
  for (size_t d = 0; d < profile.subject.drafters.size(); ++d) visit(d, CostRole::kDraft);
}

void print_ladder(const ProfileLadder& l) {
  std::printf(
      "\nPredicted speed-up at %d tokens of context (and the depth), if tokens are kept with probability\n\n| drafter | "
      "samples |",
      l.context);
  for (const double p : l.ladder.acceptances) std::printf(" %g |", p);
  std::printf("\n|---|---|");
  for (size_t a = 0; a < l.ladder.acceptances.size(); ++a) std::printf("---|");
  std::printf("\n");
  for (size_t d = 0; d < l.drafters.size(); ++d) {
    for (size_t b = 0; b < l.ladder.batches.size(); ++b) {
      std::printf("| %s | %d |", l.drafters[d].c_str(), l.ladder.batches[b]);
      for (size_t a = 0; a < l.ladder.acceptances.size(); ++a) {
        const Rung& rung = l.ladder.at(d, b, a);
        std::printf(" %.2f (%d) |", rung.speedup, rung.depth);
      }
      std::printf("\n");
    }
  }
}

ordered_json ladder_json(const ProfileLadder& l) {
  ordered_json json = ordered_json::array();
  for (size_t d = 0; d < l.drafters.size(); ++d) {
    for (size_t b = 0; b < l.ladder.batches.size(); ++b) {
      for (size_t a = 0; a < l.ladder.acceptances.size(); ++a) {
        const Rung& rung = l.ladder.at(d, b, a);
        json.push_back({{"drafter", l.drafters[d]},
                        {"batch", l.ladder.batches[b]},
                        {"context", l.context},
                        {"acceptance", l.ladder.acceptances[a]},
                        {"depth", rung.depth},
                        {"speedup", rung.speedup}});
      }
    }
  }
  return json;
}

void print_tables(const Profiler& profiler) {
  const Profile& p = profiler.profile();
  const auto calibrated = profiler.calibration_goodness();
  std::printf(
      "| role | drafter | shapes | R2 | median error | worst error | of the calibration: median | worst |\n"
      "|---|---|---|---|---|---|---|---|\n");
  for_each_role(p, [&](size_t d, CostRole role) {
    const size_t r = static_cast<size_t>(role);
    const Goodness &g = p.fits[d].goodness[r], &c = calibrated[d][r];
    std::printf("| %s | %s | %lld | %.3f | %.1f %% | %.1f %% | %.1f %% | %.1f %% |\n", role_name(role),
                role == CostRole::kDraft ? p.subject.drafters[d].name.c_str() : "", static_cast<long long>(g.points), g.r2,
                100 * g.median_error, 100 * g.worst_error, 100 * c.median_error, 100 * c.worst_error);
  });
  print_ladder(ladder_of(p, std::min(kShownContext, p.max_context)));
}

ordered_json goodness_json(const Goodness& g) {
  return {{"shapes", g.points}, {"r2", g.r2}, {"median_error", g.median_error}, {"worst_error", g.worst_error}};
}

void print_json(const Profiler& profiler, double seconds) {
  const Profile& p = profiler.profile();
  const auto calibrated = profiler.calibration_goodness();
  ordered_json json = {{"seconds", seconds},
                       {"shapes_timed", medians_of(p.passes).size()},
                       {"visits", p.passes.size()},
                       {"shapes_left_out", profiler.num_left_out()}};
  for_each_role(p, [&](size_t d, CostRole role) {
    const size_t r = static_cast<size_t>(role);
    ordered_json one = {{"role", role_name(role)}};
    one["drafter"] = role == CostRole::kDraft ? ordered_json(p.subject.drafters[d].name) : ordered_json(nullptr);
    one["fit"] = goodness_json(p.fits[d].goodness[r]);
    one["calibration"] = goodness_json(calibrated[d][r]);
    json["roles"].push_back(std::move(one));
  });
  json["ladder"] = ladder_json(ladder_of(p, std::min(kShownContext, p.max_context)));
  std::printf("%s\n", json.dump().c_str());
}

void write_plot(OutputFile* plot, const std::string& svg) {
  plot->start();
  plot->write_line(svg);
  plot->close();
}

// Of a profile that there is.
int ladder_command(const Flags& flags) {
  for (const Flag& flag : kTable) {
    const std::string name = flag.name;
    const bool taken = name == "ladder" || name == "context" || name == "plot" || name == "json";
    if (!taken && flags.given(name)) throw Failure(kExitUsage, "--" + name + " does not go with --ladder");
  }
  const std::string path = flags.required("ladder");
  const Profile profile = check_model(load_profile(path));
  if (profile.fits.empty()) throw Failure(kExitBadInput, path + ": fits: there are none: the sweep is not complete");
  const int32_t context =
      flags.given("context") ? int_flag("context", flags.required("context"), 1) : std::min(kShownContext, profile.max_context);
  std::optional<OutputFile> plot;
  if (flags.given("plot")) plot.emplace(flags.required("plot"));
  refuse_shared_files(flags, {"ladder"}, {"plot"});
  const ProfileLadder ladder = ladder_of(profile, context);
  if (plot) write_plot(&*plot, ladder_svg(profile, context));
  if (flags.given("json")) std::printf("%s\n", ordered_json{{"ladder", ladder_json(ladder)}}.dump().c_str());
  else print_ladder(ladder);
  return kExitOk;
}

}  // namespace

int profile_command(int argc, char** argv) {
  if (printed_help(kTable, argc, argv, kUsage, kNotes)) return kExitOk;
  const Flags flags(kTable, argc, argv);
  if (flags.given("ladder")) return ladder_command(flags);
  if (flags.given("context")) throw Failure(kExitUsage, "--context goes with --ladder");
  const std::string path = flags.required("o"), part = path + ".part";
  const FpEnvGuard pinned;
  const Stopwatch time;
  Result<std::unique_ptr<Profiler>> created = Profiler::create(options_of(flags));
  if (!created.ok() && created.status().code() == StatusCode::kInvalidArgument)
    throw Failure(kExitUsage, "--" + created.status().message());
  const std::unique_ptr<Profiler> profiler = check_model(std::move(created));
  std::optional<OutputFile> plot;
  if (flags.given("plot")) plot.emplace(flags.required("plot"));
  refuse_shared_files(flags, {"model"}, {"o", "plot"}, drafter_files(flags));
  resume(profiler.get(), part);
  check(save_profile(profiler->profile(), part));  // a place that cannot be written to fails at once
  sweep(profiler.get(), part);
  check(profiler->fit());
  check(save_profile(profiler->profile(), path));
  ::unlink(part.c_str());
  if (plot) write_plot(&*plot, profile_svg(profiler->profile()));
  if (profiler->num_left_out() > 0) {
    std::fprintf(stderr, "outrider profile: %zu of the slowest shapes were left out, to take no longer than five minutes\n",
                 profiler->num_left_out());
  }
  if (profiler->num_done() < profiler->num_planned()) {
    std::fprintf(stderr, "outrider profile: %zu of %zu visits were made: the machine was slower than foretold\n",
                 profiler->num_done(), profiler->num_planned());
  }
  if (flags.given("json")) print_json(*profiler, time.seconds());
  else print_tables(*profiler);
  return kExitOk;
}

}  // namespace otr::cli
