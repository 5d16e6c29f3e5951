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

// Opens the file before the work begins, so that a path that cannot be written fails at once.
class StatsFile {
 public:
  explicit StatsFile(const Flags& flags);
  // Does nothing without --stats. `load_seconds`: until the model was ready; not part of wall_seconds.
  void write(const char* command, const EngineHandle& engine, const PipelineCounts& counts, double load_seconds,
             const nlohmann::ordered_json& settings);

 private:
  std::optional<OutputFile> file_;
};

}  // namespace otr::cli
