// The picture of `outrider simulate --steps --plot`: who works on which step when, a panel a mode.
//
// Thread safety: pure function.
#pragma once

#include <span>
#include <string>

#include "sched/step_simulator.h"

namespace otr::cli {

// `results`: [kNumStepModes]
std::string steps_svg(const std::string& title, int32_t workers, std::span<const StepResult> results);

}  // namespace otr::cli
