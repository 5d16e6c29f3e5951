// Simulator: how long a rollout takes on a cluster, by a discrete-event clock that drives sched's and spec's own decisions over
// modelled workers.
//
// A worker is a group of GPUs (sched/plan.h). Between two events every request of a group advances at the speed that
// spec/window_speed.h gives it in the group's batch, as the target's and the drafter's cost models price it: events are a
// finished response, a reconfiguration, workers that come free, and a context that has grown by a twentieth. So a run costs
// about requests x batch, however long the responses are. Chance is left out: a request of thousands of tokens goes at its mean
// speed within a percent.
//
//   off            plain decoding                              with the first verifier of the list
//   vanilla        coupled windows, the same for all           "
//   decoupled      algorithm 1's plan
//   reconfigured   and algorithm 2
//   fastest        and algorithm 3: free workers race with other drafters, the first to finish wins
//   leapfrog       and racers exchange what they find (sched/leapfrog.h)
//   ours           drafting and verifying in turns where that is faster, windows by spec/optimiser.h every 100 iterations, and leapfrog
//
// Left out: prompts' prefill, page memory, faults, and messages' time, but for what a racer needs to get a request's keys and
// values: recomputed from the front and transferred from the back, until both meet.
//
// Thread safety: pure function. Deterministic.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "sched/plan.h"

namespace otr {

enum class SimulationMode { kOff, kVanilla, kDecoupled, kReconfigured, kFastestOfN, kLeapfrog, kOurs };
inline constexpr int kNumSimulationModes = 7;
const char* simulation_mode_name(SimulationMode mode);

struct SimulatedRequest {
  int32_t prompt = 0, tokens = 1;  // of the response
  std::vector<float> p;            // by drafter: the chance that its drafted tokens are kept
};

struct SimulationOptions {
  std::vector<VerifierChoice> verifiers;
  std::vector<DrafterChoice> drafters;  // their p is set to the requests' mean
  int32_t gpus = 1;
  int32_t most = 16;                                   // the widest window
  WindowForm form = WindowForm::kDecoupled;            // that the paper's plans and reconfigurations believe in
  int32_t max_race_batch = 16;                         // requests of a racing worker, b_max
  double shared = 0.5;                                 // as leapfrog_tokens()
  int64_t reconfigure_every = kReconfigureIterations;  // algorithm 2; of workers that draft for others, levels
  double kv_transfer_ms = 0;                           // a token's keys and values between workers; 0: there is no way
  // As Outrider's engine does it, instead of algorithm 1's groups and requests that stay where they are. Then racers begin at
  // once, draft for themselves in windows for their batch, and may have the drafter that others draft with for that request;
  // `ours` looks at windows whenever a batch changes; algorithm 2 looks at all requests of a draft worker, by its levels:
  int32_t draft_workers =
      0;                 // so many workers draft for all others, each for its share, where drafting is decoupled; 0: groups
  int32_t drafter = -1;  // of `drafters`, that they draft with; -1: the fastest
  int32_t window = 0;    // in which they draft; 0: the best
  bool moves = false;    // a worker that runs dry takes half of what the busiest one runs
};

struct SimulationResult {
  Plan plan;
  int32_t num_workers = 0;
  double makespan_ms = 0;
  double busy_share = 0;  // of the workers' time
  int64_t tokens = 0;
  double wasted_drafts = 0;      // drafted tokens that were thrown away
  double raced_tokens = 0;       // that losers had found too
  int64_t num_reconfigured = 0;  // settings looked at
  int64_t num_racers = 0;
  int64_t num_moves = 0;               // of several requests each, from one worker to another
  std::vector<double> finish_ms;       // by request
  std::vector<std::string> decisions;  // what was decided and why, in order; the first hundred
};

// kInvalidArgument: no request, a request without tokens or with a p that is not in [0, 1], no verifier that fits the GPUs, and
// what else makes no sense.
Result<SimulationResult> simulate(SimulationMode mode, const SimulationOptions& options,
                                  std::span<const SimulatedRequest> requests);

}  // namespace otr
