// The file of --stats: the engine's counters, the command's own, and its settings, as one JSON object.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>

#include "tools/outrider/engine_handle.h"
#include "tools/outrider/flags.h"
#include "tools/outrider/output_file.h"
#include "tools/outrider/pipeline.h"
#include "tools/outrider/request_line.h"

namespace otr::cli {

// The sampling flags as settings.
nlohmann::ordered_json sampling_settings(const SamplingSettings& defaults);

// Opens the file before the work begins, so that a path that cannot be written fails at once. One that is not there yet comes
// with its contents, at the end.
class StatsFile {
 public:
  explicit StatsFile(const Flags& flags);
  // Does nothing without --stats. `load_seconds`: until the model was ready; not part of wall_seconds.
  void write(const char* command, const EngineHandle& engine, const PipelineCounts& counts, double load_seconds,
             const nlohmann::ordered_json& settings);

 private:
  std::string path_;                // "": without --stats
  std::optional<OutputFile> file_;  // one that was there
};

}  // namespace otr::cli
