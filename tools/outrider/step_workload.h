// The epochs that `outrider simulate --steps` runs: drawn at random, or read from a rollout's output for each epoch.
//
// Thread safety: pure functions, but for reading files. Deterministic: the same seed gives the same epochs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sched/step_simulator.h"
#include "tools/outrider/workload.h"

namespace otr::cli {

// A prompt's lengths are log-normal about its own median, and so are the prompts' medians. From one epoch to the next all
// medians grow by a factor, and each drifts by a normal law of the logarithm.
struct EpochLaw {
  double prompt_share = 0.97;  // of the variance of a length's logarithm (WorkloadLaw's sigma) that is the prompt's
  double growth = 1.05;
  double drift = 0.05;   // standard deviation
  double strays = 0.01;  // the share of samples whose length has nothing to do with the prompt's
};

// [epochs][prompts][WorkloadLaw::samples]
StepWorkload drawn_epochs(const WorkloadLaw& law, const EpochLaw& epoch, const AcceptanceLaw& acceptance, size_t num_epochs,
                          size_t num_prompts);

// One file an epoch, as read_requests() reads them; lines of one id are the samples of a prompt. Prompts are in the first
// file's order. Throws Failure (bad input) if a file is of other prompts than the first.
StepWorkload read_epochs(const std::vector<std::string>& paths, const WorkloadLaw& law, const AcceptanceLaw& acceptance);

}  // namespace otr::cli
