// The lines of a rollout: prompts that come in, samples that go out. `rollout` and `emulate` write the same bytes.
//
// Thread safety: pure functions.
#pragma once

#include <string>
#include <string_view>

#include "loader/tokenizer.h"
#include "runtime/outrider.h"
#include "tools/outrider/request_line.h"

namespace otr::cli {

// With its prompt as token ids. Throws BadLine. `tokenizer` may be null.
RolloutLine read_rollout_line(std::string_view text, int64_t line_number, const SamplingSettings& defaults, const Tokenizer* tokenizer);

// Borrows the line's prompt and `sampling`.
otr_group_request group_request(const RolloutLine& line, uint64_t step, uint64_t tag, const otr_sampling_params* sampling);

// The output line of a sample. `prompt_json`: its token ids.
std::string sample_line(const std::string& id_json, const std::string& prompt_json, const otr_result_view& result,
                        const Tokenizer* tokenizer);

}  // namespace otr::cli
