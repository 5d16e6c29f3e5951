// StepSimulator: how long many steps of a training run take, rollout and training, on a cluster of rollout workers, by a
// discrete-event clock that drives the decisions of step_plan.h.
//
// A worker is one engine. Its samples share passes that the cost model prices, plain or with drafts from the last epoch's
// responses in the fastest coupled window (spec/window_speed.h); as in simulator.h speeds hold until a sample ends or the
// context has grown by a twentieth, and chance is left out. The weights that s trainings have made are version s; steps count
// from 0 here, so that step s is on-policy with version s and one step off with s - 1.
//
//   synchronous  step s waits for version s                                          on-policy; trainer and workers take turns
//   one_step     step s waits for version s - 1, and for all workers to end s - 1    veRL, to which the paper compares itself
//   own_switch   a worker waits for nobody but for version s - 1                     (section 4.2)
//   ranked       from the second epoch on in ranking groups, up and down             HistoPipe (6.2)
//   migrated     and outliers go to other workers                                    (6.3)
//   two_tier     and longer groups have more workers                                 (6.4)
//   history      and drafts from the last epoch's responses                          HistoSpec (section 5)
//   ours         with groups' workers by balanced_allocation(), for the last epoch's lengths instead of their mean; and who comes
//                first to a step takes the longest part that is left, instead of up and down
//
// Training of step s begins when all of its samples are there and the training of s - 1 has ended. A sample that is put off to
// the next step is trained there: its first tokens are then up to two versions behind the training that they enter, the others
// one.
//
// Left out: prompts' prefill, rewards, the time that weights take to the workers, faults, page memory but for the largest
// batch. What a sample that migrates has is computed anew, and stops its new worker for so long.
//
// Thread safety: pure function. Deterministic.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sched/step_plan.h"
#include "spec/cost_model.h"

namespace otr {

enum class StepMode { kSynchronous, kOneStep, kOwnSwitch, kRanked, kMigrated, kTwoTier, kHistory, kOurs };
inline constexpr int kNumStepModes = 8;
const char* step_mode_name(StepMode mode);

struct StepSample {
  int32_t prompt = 0, tokens = 1;  // of the response
  float p = 0;                     // the chance that a token drafted from history is kept
};
struct StepWorkload {
  std::vector<std::vector<std::vector<StepSample>>> epochs;  // [epochs][prompts][samples of the prompt]
  int32_t steps_per_epoch = 1;                               // each takes an equal part of the prompts, in order

  int32_t num_steps() const { return static_cast<int32_t>(epochs.size()) * steps_per_epoch; }
};

struct StepOptions {
  CostModel cost;  // of a worker
  int32_t workers = 1, groups = 1;
  int32_t max_batch = 256;                      // samples that a worker runs at once; others wait
  int32_t least_workers = 1, most_workers = 0;  // MIN and MAX of a group; 0: as many as leave MIN to all others
  bool puts_off = false;                        // outliers of the longer groups to the next step
  double train_ms = 0, train_token_ms = 0;      // of a step, and of a token of its responses
  int32_t most = 16;                            // the widest window
};

enum class StepMove : int8_t { kNone, kWithinStep, kToNextStep };
struct SimulatedSample {
  int32_t step = 0, trained_step = 0;  // that it was asked in, and that trains on it
  int32_t group = 0;                   // that its prompt was ranked in
  int32_t tokens = 0;
  int32_t first_version = 0, last_version = 0;  // of the weights that drew its first and last token
  StepMove move = StepMove::kNone;
  int32_t worker = 0;  // where it ended
  double end_ms = 0;
};
struct StepTimes {
  double begin_ms = 0, rollout_ms = 0;  // when the first worker began, when the last sample was there
  double train_begin_ms = 0, train_end_ms = 0;
  int64_t samples = 0, tokens = 0;  // that were trained on
};
struct WorkerPart {
  int32_t worker = 0, step = 0;
  double begin_ms = 0, end_ms = 0;
};

struct StepResult {
  double end_ms = 0;      // of the last training
  double warm_ms = 0;     // of the last training of the first epoch, which has no history; 0 if there is no other
  double busy_share = 0;  // of the workers' time from warm_ms to their last part's end
  std::vector<StepTimes> steps;
  std::vector<WorkerPart> parts;                      // in the order in which they ended
  std::vector<SimulatedSample> samples;               // by step, prompt and sample
  RankingAccuracy accuracy;                           // the mean of steps with history; of modes that rank
  int64_t num_within_step = 0, num_to_next_step = 0;  // samples that migrated
  int64_t num_ranked = 0;                             // samples of steps that were ranked: of those that could migrate
  int32_t num_infeasible = 0;                         // plans, instead of which groups had equal numbers of workers
  std::vector<std::string> decisions;                 // plans, in order; the first hundred

  double ms_a_step() const;  // after the first epoch, if there is more than one
};

// kInvalidArgument: no epoch, epochs of unequal numbers of prompts, a step without a prompt, a sample without a token or with a
// p that is not in [0, 1], more groups than workers or prompts of a step, and what else makes no sense. Of several epochs each
// must have two steps (three if samples are put off), or a prompt's history would not be there when it is asked again.
Result<StepResult> simulate_steps(StepMode mode, const StepOptions& options, const StepWorkload& workload);

}  // namespace otr
