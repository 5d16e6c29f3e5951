// `outrider simulate --steps`: many training steps on a cluster of rollout workers, in RhymeRL's parts.
//
// Thread safety: one thread.
#pragma once

#include "tools/outrider/flags.h"

namespace otr::cli {

// Prints what it simulated and returns the exit code. Throws Failure.
int simulate_steps_command(const Flags& flags);
// Throws Failure (usage) for a flag that only --steps has a use for.
void refuse_step_flags(const Flags& flags);

}  // namespace otr::cli
