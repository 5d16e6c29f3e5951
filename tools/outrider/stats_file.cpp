#include "tools/outrider/stats_file.h"

#include <nlohmann/json.hpp>

#include "tools/outrider/json_text.h"

namespace otr::cli {

nlohmann::ordered_json sampling_settings(const SamplingSettings& defaults) {
  const otr_sampling_params& p = defaults.params;
  return {{"n", defaults.n},
          {"max_new_tokens", p.max_new_tokens},
          {"temperature", p.temperature},
          {"top_k", p.top_k},
          {"top_p", p.top_p},
          {"min_p", p.min_p},
          {"seed", p.seed}};
}

StatsFile::StatsFile(const Flags& flags) {
  if (!flags.given("stats")) return;
  path_ = flags.required("stats");
  file_.emplace(path_);
  if (file_->is_new()) file_.reset();
}

void StatsFile::write(const char* command, const EngineHandle& engine, const PipelineCounts& counts, double load_seconds,
                      const nlohmann::ordered_json& settings) {
  if (path_.empty()) return;
  if (!file_) file_.emplace(path_);
  nlohmann::ordered_json stats = nlohmann::ordered_json::parse(engine.stats());
  stats["command"] = command;
  stats["lines"] = counts.num_lines;
  stats["bad_lines"] = counts.num_bad_lines;
  stats["samples"] = counts.num_samples;
  stats["failed_samples"] = counts.num_failed_samples;
  stats["tokens"] = counts.num_tokens;
  stats["load_seconds"] = load_seconds;
  stats["wall_seconds"] = counts.wall_seconds;
  stats["tokens_per_second"] = counts.wall_seconds > 0 ? static_cast<double>(counts.num_tokens) / counts.wall_seconds : 0.0;
  stats["settings"] = settings;
  file_->start();
  file_->write_line(json_dump(stats, 2));
  file_->close();
}

}  // namespace otr::cli
