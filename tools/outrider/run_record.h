// A run as `outrider report` knows it: read from a trace, from a --stats file, or from both.
//
// Thread safety: pure functions. Whatever is wrong with a file throws Failure (bad input) that names file, line and reason.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace otr::cli {

struct TickRecord {
  double begin, seconds;  // since the run's first tick began
  int32_t batch;
  int32_t strategy;  // of TraceRecord::strategies; 0: nothing was drafted, whoever was asked
  bool prefills;
  int64_t drafted, accepted, tokens;
  double expected_ms, expected_tokens;  // 0: none
};

struct Strategy {
  std::string drafters;  // joined by "+"; "": none
  int32_t depth = 0;
  bool operator==(const Strategy&) const = default;
};

// What one worker did.
struct TraceRecord {
  std::string policy, isa;
  int32_t worker = 0;
  int32_t num_threads = 0;
  std::vector<Strategy> strategies = {{}};
  std::vector<TickRecord> ticks;       // at least one
  std::vector<int64_t> sample_tokens;  // of the samples that finished
  double seconds() const { return ticks.back().begin + ticks.back().seconds; }
};

struct StatsRecord {
  std::string policy, isa, trace;  // trace: the path that the run was told; "": none
  int32_t num_threads = 0;
  int64_t ticks = 0, samples = 0, tokens = 0, batch_peak = 0;
  int64_t drafted = 0, accepted = 0, decode_steps = 0, decode_tokens = 0;
  double seconds = 0;
};

struct RunRecord {
  std::string name;                 // the file's, without folder and ending
  std::vector<TraceRecord> traces;  // of the workers that ran; empty: no trace
  std::optional<StatsRecord> stats;
};

// Reads the files, in their order; a trace that a stats file names joins it.
std::vector<RunRecord> read_runs(const std::vector<std::string>& paths);

}  // namespace otr::cli
