// The lines of a rollout: prompts that come in, samples that go out. `rollout` and `emulate` write the same bytes.
//
// Thread safety: functions of their arguments, but for the reader, which is single-threaded.
#pragma once

#include <string>
#include <string_view>
#include <unordered_set>

#include "loader/tokenizer.h"
#include "runtime/outrider.h"
#include "tools/outrider/request_line.h"

namespace otr::cli {

class RolloutReader {
 public:
  // `tokenizer`, which outlives it, may be null.
  RolloutReader(const SamplingSettings& defaults, const Tokenizer* tokenizer) : defaults_(defaults), tokenizer_(tokenizer) {}
  // A line with its prompt as token ids. Throws BadLine: its id is another one's too, and it has no stream of its own.
  RolloutLine read(std::string_view text, int64_t line_number) const;
  // The line is accepted: nobody else has its id.
  void accept(const RolloutLine& line) { ids_.insert(line.id.text); }

 private:
  const SamplingSettings defaults_;
  const Tokenizer* const tokenizer_;
  std::unordered_set<std::string> ids_;  // of all lines so far
};

// Borrows the line's prompt and `sampling`.
otr_group_request group_request(const RolloutLine& line, uint64_t step, uint64_t tag, const otr_sampling_params* sampling);

// The output line of a sample. `prompt_json`: its token ids.
std::string sample_line(const std::string& id_json, const std::string& prompt_json, const otr_result_view& result,
                        const Tokenizer* tokenizer);

}  // namespace otr::cli
