// RunCheckpoint: what `rollout --checkpoint FILE` writes while it runs, and goes on from.
//
// The engine's part of the file is what it owes; this part, JSON, is what the program knows of the results it has taken: how
// far the input is read and the output written, and the lines that wait for an earlier one. What was written later than the
// last checkpoint is cut off when the run goes on, and comes again, the same bytes.
//
// Single-threaded. Everything that fails throws Failure: bad input for a file that is torn, or of another run.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/outrider.h"

namespace otr::cli {

// A line of the output that waits for an earlier one.
struct HeldLine {
  uint64_t tag = 0;
  uint32_t sample = 0;
  std::string text;
};

struct RunState {
  int64_t lines_read = 0;          // of the input
  uint64_t input_hash = 0;         // of these: see hash_line
  std::vector<int64_t> bad_lines;  // their numbers
  int64_t output_bytes = 0;
  uint64_t first_tag = 0;    // the accepted line that is written next; those before are written
  uint64_t num_written = 0;  // of its samples
  std::vector<HeldLine> held;
  int64_t num_samples = 0, num_failed_samples = 0, num_tokens = 0;
};

// The hash of the lines so far with one more.
uint64_t hash_line(uint64_t hash, std::string_view line);

class RunCheckpoint {
 public:
  // `settings`: what must be equal when the run goes on. `seconds`: the longest time between two checkpoints.
  RunCheckpoint(std::string path, double seconds, std::string settings);

  // The state of an earlier run, whose samples are now in the engine; nullopt if there is no file.
  std::optional<RunState> resume(otr_engine* engine) const;
  // Whether it is time: the period is over, or there are new results and checkpoints have cost less than a hundredth of the
  // time.
  bool is_due(int64_t num_samples) const;
  // `take` gives the state, with the output up to it on disk: what that takes counts as the checkpoint's cost.
  void save(otr_engine* engine, const std::function<RunState()>& take);
  // The run is complete.
  void remove() const;

  const std::string& path() const { return path_; }
  int64_t num_saved() const { return num_saved_; }
  double seconds() const { return seconds_; }  // spent saving

 private:
  using Clock = std::chrono::steady_clock;

  const std::string path_;
  const double period_;
  const std::string settings_;
  Clock::time_point last_ = Clock::now();
  double last_cost_ = 0, seconds_ = 0;
  int64_t saved_samples_ = 0, num_saved_ = 0;
};

}  // namespace otr::cli
