// outrider score: the log-probabilities of given tokens, through the C ABI.
#include <chrono>
#include <nlohmann/json.hpp>

#include "runtime/outrider.h"
#include "tools/outrider/commands.h"
#include "tools/outrider/engine_handle.h"
#include "tools/outrider/failure.h"
#include "tools/outrider/flags.h"
#include "tools/outrider/json_text.h"
#include "tools/outrider/named_files.h"
#include "tools/outrider/pipeline.h"
#include "tools/outrider/request_line.h"
#include "tools/outrider/stats_file.h"

namespace otr::cli {
namespace {

constexpr const char* kUsage =
    "Usage: outrider score --model PATH --in FILE|- [FLAGS]\n\n"
    "Log-probabilities of given tokens, equal to a rollout's to the last bit.\n";

constexpr const char* kNotes = R"(
Input lines: {"id", "token_ids"}, or an output line of rollout, whose prompt_token_ids come before token_ids and are not scored.
  id        a string or an integer; default: the line's number. Ids may repeat.
  sampling  temperature, top_k, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty: if any is there, logprobs
            of that distribution are given too
  ignored   text, logprobs, raw_logprobs, finish_reason, error (of a rollout's line); answer, kind, metadata. Any other key is
            refused. sample is given back.
Output lines, in the order of the input: id, sample (if the line has it), raw_logprobs, logprobs (if asked for), one number for
each of token_ids. Without a prompt the first is null; in logprobs null also stands for a token that the filters remove.
Exit codes: 0, 2 usage, 3 bad input (the good lines are still done), 4 failure at run time.
)";

class Score : public LineCommand {
 public:
  explicit Score(otr_engine* engine) : engine_(engine) {}
  PendingLine submit(std::string_view text, int64_t line_number, uint64_t tag) override;
  std::string render(const PendingLine& pending, const otr_result_view& result) const override;

 private:
  otr_engine* engine_;
};

PendingLine Score::submit(std::string_view text, int64_t line_number, uint64_t tag) {
  const ScoreLine line = parse_score_line(text, line_number);
  const otr_sampling_params sampling = line.sampling.abi();
  otr_score_request request;
  otr_score_request_init(&request, sizeof request);
  request.prompt_token_ids = line.prompt_token_ids.data();
  request.num_prompt_tokens = line.prompt_token_ids.size();
  request.token_ids = line.token_ids.data();
  request.num_tokens = line.token_ids.size();
  request.tag = tag;
  request.sampling = line.has_sampling ? &sampling : nullptr;
  uint64_t group = 0;
  const otr_status status = otr_score(engine_, &request, &group);
  if (status != OTR_OK) throw_refused(engine_, status);
  PendingLine pending;
  pending.id_json = line.id.json;
  pending.sample_json = line.sample_json;
  return pending;
}

std::string Score::render(const PendingLine& pending, const otr_result_view& result) const {
  std::string out = "{\"id\":" + pending.id_json;
  if (!pending.sample_json.empty()) out += ",\"sample\":" + pending.sample_json;
  out += ",\"raw_logprobs\":";
  append_json_array(&out, std::span(result.raw_logprobs, result.num_tokens));
  if (result.logprobs) {
    out += ",\"logprobs\":";
    append_json_array(&out, std::span(result.logprobs, result.num_tokens));
  }
  if (result.finish_reason == OTR_FINISH_ERROR) out += ",\"error\":" + json_string(result.error);
  return out + "}";
}

}  // namespace

int score_command(int argc, char** argv) {
  std::vector<Flag> table = kEngineFlagTable;
  std::erase_if(table, [](const Flag& flag) {
    return std::string_view(flag.name) == "draft-workers" || std::string_view(flag.name) == "profile";
  });
  table.insert(table.begin() + 1, {"in", "FILE|-", "JSON lines; - is standard input (required)"});
  if (printed_help(table, argc, argv, kUsage, kNotes)) return kExitOk;
  const Flags flags(table, argc, argv);
  const EngineFlags engine_flags(flags, "off");  // scores draft nothing

  LineReader input(flags.required("in"));
  OutputFile output(flags.text("out", "-"));
  StatsFile stats(flags);
  refuse_shared_files(flags, {"model", "in"}, {"out", "stats"});
  const auto load_start = std::chrono::steady_clock::now();
  EngineHandle engine(engine_flags.options);
  const double load_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - load_start).count();

  output.start();
  ProgressBar progress("never");
  Score command(engine.get());
  Pipeline pipeline(engine.get(), &input, &output, &command, &progress, outstanding_for(engine_flags.options.max_batch));
  const PipelineCounts counts = pipeline.run();
  output.close();
  nlohmann::ordered_json settings = engine_flags.settings();
  settings["in"] = input.name();
  stats.write("score", engine, counts, load_seconds, settings);
  return counts.exit_code();
}

}  // namespace otr::cli
