// The input lines of `rollout` and `score`: which keys there are, their types and ranges.
//
// A key that is not known is refused, so that a misspelt one does not silently do nothing. Exceptions: `answer`, `kind` and
// `metadata`, which belong to whoever checks the samples, and in `score` the other keys of a rollout's output line.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/outrider.h"

namespace otr::cli {

// What flags give to every line and a line may override.
struct SamplingSettings {
  SamplingSettings();
  // The parameters as the ABI wants them; they borrow stop_token_ids.
  otr_sampling_params abi() const;

  otr_sampling_params params;  // stop_token_ids is unset here
  std::vector<int32_t> stop_token_ids;
  int32_t n;
};

// Sets a parameter by the name it has in a line. Returns the rule that `value` breaks, or "". REQUIRES: is_sampling_key(key).
std::string set_sampling_key(std::string_view key, const nlohmann::json& value, SamplingSettings* settings);
bool is_sampling_key(std::string_view key);
// Those that shape the distribution: all that `score` takes.
bool is_distribution_key(std::string_view key);

struct LineId {
  std::string text;  // what the noise stream is made of
  std::string json;  // as it was given
};

struct RolloutLine {
  LineId id;
  std::optional<std::string> prompt;
  std::vector<int32_t> prompt_token_ids;  // if there is no prompt
  std::optional<uint64_t> stream;
  SamplingSettings sampling;
};

struct ScoreLine {
  LineId id;
  std::string sample_json;  // as it was given, or ""
  std::vector<int32_t> prompt_token_ids;
  std::vector<int32_t> token_ids;
  bool has_sampling = false;
  SamplingSettings sampling;
};

// Both throw BadLine. A line without id has its number as id.
RolloutLine parse_rollout_line(std::string_view text, int64_t line_number, const SamplingSettings& defaults);
ScoreLine parse_score_line(std::string_view text, int64_t line_number);

// The noise stream of a line that gives none: unique per (step, id).
uint64_t stream_of(uint64_t step, std::string_view id);

}  // namespace otr::cli
