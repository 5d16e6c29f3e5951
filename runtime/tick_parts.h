// What a tick of a worker keeps from one of its phases to the next: see Worker::step().
//
// Thread safety: values of the worker's thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/outrider.h"
#include "runtime/pace.h"

namespace otr {

// Where a run of the tick has its rows, its logits and its draws.
struct RunPlace {
  int32_t row, root;  // its first and last
  int32_t logit, draw;
  int32_t first_path;  // of the forest's second path, among the tick's
};

// What a tick began with, for the trace; parts in seconds from its beginning.
struct TickMarks {
  PacedStopwatch clock;
  double draft_at = 0, verify_at = 0;
  int64_t generated_tokens = 0, prefill_tokens = 0, verify_steps = 0, draft_tokens = 0, accepted_tokens = 0;
  int64_t rows_behind = 0;  // that it runs, without the newest tokens of their sequences
};

// Whether a sequence ends with the token just committed, and how.
struct Ending {
  bool ended = false;
  otr_finish_reason reason = OTR_FINISH_STOP;
  const char* error = "";
};

// The sample that is on trial (suspects.h), once it runs.
struct Alone {
  int32_t slot = -1;     // -1: there is none
  size_t accepted = 0;   // when it began
  bool has_run = false;  // a row of it has
  bool is_said = false;
};

}  // namespace otr
