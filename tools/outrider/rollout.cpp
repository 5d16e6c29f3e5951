// outrider rollout: draws samples for a file of prompts, through the C ABI.
#include <chrono>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "loader/tokenizer.h"
#include "runtime/outrider.h"
#include "tools/outrider/commands.h"
#include "tools/outrider/engine_handle.h"
#include "tools/outrider/failure.h"
#include "tools/outrider/flags.h"
#include "tools/outrider/history_flags.h"
#include "tools/outrider/json_text.h"
#include "tools/outrider/model_tokenizer.h"
#include "tools/outrider/named_files.h"
#include "tools/outrider/pipeline.h"
#include "tools/outrider/request_line.h"
#include "tools/outrider/rollout_lines.h"
#include "tools/outrider/stats_file.h"

namespace otr::cli {
namespace {

constexpr const char* kUsage =
    "Usage: outrider rollout --model PATH --prompts FILE|- [FLAGS]\n\nDraws samples for a file of prompts.\n";

constexpr const char* kNotes = R"(
Input lines: {"id", "prompt"} or {"id", "prompt_token_ids"}. A prompt is raw text: no template and no token is added.
  id       a string or an integer; default: the line's number. Two lines with one id need a "stream" of their own.
  flags    n, max_new_tokens, temperature, top_k, top_p, min_p, seed: override the flag for this line
  further  repetition_penalty, presence_penalty, frequency_penalty, stop_token_ids, ignore_eos,
           stream (the noise of this line; default: made of --step and id)
  ignored  answer, kind, metadata: carried for checkers. Any other key is refused.
Output lines, in the order of the input, then by sample: id, sample, prompt_token_ids, token_ids, logprobs (of the distribution
that was sampled from), raw_logprobs, text, finish_reason (stop, length or error), and error where there is one.
Exit codes: 0, 2 usage, 3 bad input (the good lines are still done), 4 failure at run time.
)";

class Rollout : public LineCommand {
 public:
  Rollout(otr_engine* engine, const Tokenizer* tokenizer, const SamplingSettings& defaults, uint64_t step)
      : engine_(engine), tokenizer_(tokenizer), reader_(defaults, tokenizer), step_(step) {}

  PendingLine submit(std::string_view text, int64_t line_number, uint64_t tag) override;
  PendingLine known(std::string_view text, int64_t line_number) override;
  std::string render(const PendingLine& pending, const otr_result_view& result) const override;

 private:
  PendingLine accept(const RolloutLine& line);

  otr_engine* engine_;
  const Tokenizer* tokenizer_;  // may be null
  RolloutReader reader_;
  uint64_t step_;
};

PendingLine Rollout::accept(const RolloutLine& line) {
  reader_.accept(line);
  PendingLine pending;
  pending.id_json = line.id.json;
  append_json_array(&pending.prompt_json, line.prompt_token_ids);
  pending.num_samples = line.sampling.n;
  return pending;
}

PendingLine Rollout::known(std::string_view text, int64_t line_number) { return accept(reader_.read(text, line_number)); }

PendingLine Rollout::submit(std::string_view text, int64_t line_number, uint64_t tag) {
  const RolloutLine line = reader_.read(text, line_number);
  const otr_sampling_params sampling = line.sampling.abi();
  const otr_group_request request = group_request(line, step_, tag, &sampling);
  uint64_t group = 0;
  const otr_status status = otr_submit(engine_, &request, &group);
  if (status != OTR_OK) throw_refused(engine_, status);
  return accept(line);
}

std::string Rollout::render(const PendingLine& pending, const otr_result_view& result) const {
  return sample_line(pending.id_json, pending.prompt_json, result, tokenizer_);
}

HistoryFlags::Answer answer_of(const EngineHandle& engine, otr_status status) {
  return {status, status == OTR_OK ? "" : otr_last_error(engine.get())};
}

void explain_plan(const EngineHandle& engine) {
  const nlohmann::json stats = nlohmann::json::parse(engine.stats());
  const std::string plan = stats.value("plan", "");
  std::fprintf(
      stderr, "%s",
      plan.empty() ? "outrider: there is no plan: no worker may draft for others, or the policy is fixed\n" : plan.c_str());
}

// A trace that could not be written to its end costs no sample.
void report_trace_error(const EngineHandle& engine) {
  const nlohmann::json stats = nlohmann::json::parse(engine.stats());
  if (stats.contains("trace_error"))
    std::fprintf(stderr, "outrider: trace: %s\n", stats["trace_error"].get<std::string>().c_str());
}

// What a run that goes on must have in common with the one before, beside model, path and prompts.
std::string what_shapes_samples(const SamplingSettings& defaults, uint64_t step) {
  nlohmann::ordered_json settings = sampling_settings(defaults);
  settings["step"] = step;
  return settings.dump();
}

// Null without --checkpoint.
std::unique_ptr<RunCheckpoint> make_checkpoint(const Flags& flags, std::string settings) {
  const std::string path = flags.text("checkpoint", "");
  if (path.empty()) {
    if (flags.given("checkpoint-seconds")) throw Failure(kExitUsage, "--checkpoint-seconds goes with --checkpoint");
    return nullptr;
  }
  if (flags.text("out", "-") == "-") throw Failure(kExitUsage, "--checkpoint needs --out FILE");
  const int32_t seconds = int_flag("checkpoint-seconds", flags.text("checkpoint-seconds", "10"), 1);
  return std::make_unique<RunCheckpoint>(path, seconds, std::move(settings));
}

std::vector<Flag> flag_table() {
  std::vector<Flag> table = kEngineFlagTable;
  table.insert(table.begin() + 1, {"prompts", "FILE|-", "JSON lines; - is standard input (required)"});
  table.insert(table.end(), kSamplingFlagTable.begin(), kSamplingFlagTable.end());
  const Flag own[] = {
      {"policy", "POLICY",
       "what is speculated: auto (default), off, specactor, rhymerl, tlt, efficientrollout, or "
       "fixed:DRAFTER[+DRAFTER…]:DEPTH[:TOP_K[:VERIFY_TOKENS[:q]] | :decoupled]"},
      {"drafter", "NAME=model:PATH",
       "a smaller model that the policy may name, NAME=w4:PATH for it in 4 bits; may be repeated (self, ngram and history are "
       "always there)"},
      {"explain", nullptr, "say on stderr which workers draft for others, and why"},
      {"checkpoint", "FILE",
       "written while the run goes on; the same command with this file there goes on where a killed one was (needs --out "
       "FILE)"},
      {"checkpoint-seconds", "S",
       "at least every so often; finished samples are there sooner, as long as that costs under 1 % (default 10)"},
      {"trace", "FILE.json", "write what every tick chose, expected and did: for 'outrider report' and Perfetto"},
      {"progress", "WHEN", "a bar on stderr: auto (on a terminal), always, never"},
  };
  table.insert(table.end(), std::begin(own), std::end(own));
  table.insert(table.end(), kHistoryFlagTable.begin(), kHistoryFlagTable.end());
  return table;
}

}  // namespace

int rollout_command(int argc, char** argv) {
  const std::vector<Flag> table = flag_table();
  if (printed_help(table, argc, argv, kUsage, kNotes)) return kExitOk;
  const Flags flags(table, argc, argv);
  EngineFlags engine_flags(flags, "auto");
  const HistoryFlags history(flags);
  history.set(&engine_flags.options);
  const auto [defaults, step] = sampling_flags(flags);
  const std::string show_progress = flags.text("progress", "auto");
  choice_flag("progress", show_progress, {"auto", "always", "never"});

  const std::unique_ptr<RunCheckpoint> checkpoint = make_checkpoint(flags, what_shapes_samples(defaults, step));
  engine_flags.options.keep_checkpoints = checkpoint != nullptr;

  LineReader input(flags.required("prompts"));
  OutputFile output(flags.text("out", "-"));
  StatsFile stats(flags);
  refuse_shared_files(flags, {"model", "prompts", "profile"}, {"out", "stats", "trace", "history", "checkpoint"},
                      drafter_files(flags));
  if (checkpoint != nullptr && !output.is_regular()) throw Failure(kExitUsage, "--checkpoint needs --out FILE, a regular one");
  const auto load_start = std::chrono::steady_clock::now();
  const std::unique_ptr<Tokenizer> tokenizer = load_model_tokenizer(engine_flags.model);
  EngineHandle engine(engine_flags.options);
  if (flags.given("explain")) explain_plan(engine);
  const double load_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - load_start).count();

  history.load([&engine](const std::string& path) { return answer_of(engine, otr_history_load(engine.get(), path.c_str())); });
  ProgressBar progress(show_progress);
  Rollout command(engine.get(), tokenizer.get(), defaults, step);
  Pipeline pipeline(engine.get(), &input, &output, &command, &progress, outstanding_for(engine_flags.options.max_batch));
  pipeline.keep(checkpoint.get());
  const std::optional<RunState> earlier = checkpoint != nullptr ? checkpoint->resume(engine.get()) : std::nullopt;
  if (earlier) {
    pipeline.resume(*earlier);
    output.start_behind(earlier->output_bytes);
  } else {
    output.start();
  }
  const PipelineCounts counts = pipeline.run();
  if (checkpoint != nullptr) output.sync();  // before the checkpoint goes, without which nothing brings it back
  output.close();
  const std::optional<Failure> lost = history.save(
      [&engine](const std::string& path) { return answer_of(engine, otr_history_save(engine.get(), path.c_str())); });
  if (!engine_flags.trace.empty()) report_trace_error(engine);
  nlohmann::ordered_json settings = engine_flags.settings();
  settings["prompts"] = input.name();
  settings.update(sampling_settings(defaults));
  settings["step"] = step;
  history.add_settings(&settings);
  if (checkpoint != nullptr) {
    settings.update({{"checkpoint", checkpoint->path()},
                     {"checkpoints_written", checkpoint->num_saved()},
                     {"checkpoint_seconds_spent", checkpoint->seconds()}});
  }
  stats.write("rollout", engine, counts, load_seconds, settings);
  if (lost) throw *lost;
  if (checkpoint != nullptr) checkpoint->remove();
  return counts.exit_code();
}

}  // namespace otr::cli
