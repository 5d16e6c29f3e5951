// Pace: a worker's passes take as long as a profile's costs say, and not as long as they take here. So what an engine would do
// on another machine, with its queues, moves and races, is seen with small models on few cores: outputs stay as they are.
//
// A worker computes a pass and then sleeps until the pass is due, by the engine's PaceClock; what it does next counts from
// there. At a scale > 0 a pass that was not done when it was due is late; what follows makes up for that by sleeping less,
// until the worker is more than that pass behind: then what is missing is left out. PaceStats says how often and by how much,
// and at which scale there had been time.
//
// Nobody spins: a worker that is busy without running anything, since a queue is full, looks again after kIdleMs.
//
// Thread safety: Pace::wake() may be used by any thread, the rest of Pace by its worker's. Nothing is allocated after
// construction. Times are the clock's modelled milliseconds, unless they say otherwise.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/base/row_batch.h"
#include "runtime/pace_clock.h"
#include "runtime/pace_stats.h"
#include "sched/plan.h"
#include "spec/acceptance_dial.h"
#include "spec/cost_model.h"

namespace otr {

struct PacedDrafter {
  std::string name;
  CostModel cost;  // with the target's roles too
  AcceptanceDial dial = {};
};

// What is said to take how long. A drafter that is not named runs no passes.
struct PaceOptions {
  double scale = 0;
  CostModel target;  // its draft role is not looked at
  std::vector<PacedDrafter> drafters;
  double kv_transfer_ms = 0;  // of a token's keys and values, from worker to worker; 0: they are computed anew
  int64_t reconfigure_every =
      kReconfigureIterations;  // ticks of a drafting worker, whose responses may be shorter than meant; 0: never

  const PacedDrafter* drafter(const std::string& name) const;  // null: it is not named
};

class Pace {
 public:
  static constexpr double kIdleMs = 0.05;

  explicit Pace(PaceClock* clock) : clock_(*clock) {}
  // The worker's thread begins and ends.
  void begin();
  void end() { clock_.leave(); }

  double now_ms() const { return clock_.now_ms(); }
  // A pass was computed that takes so long: returns when it is over. kIdleMs of nothing are no pass.
  void hold(double ms);
  void idle();
  // Waits for wake(), which may have been called already, so long at most.
  void wait(double limit_ms);
  void wake() { clock_.call(&sleeper_); }

  const PaceStats& stats() const { return stats_; }
  uint64_t num_pauses() const { return num_pauses_; }  // how often it has held or waited

 private:
  PaceClock& clock_;
  PaceClock::Sleeper sleeper_;
  double begins_ms_ = 0;    // what comes next, on paper
  double computes_ms_ = 0;  // and when it could
  uint64_t num_pauses_ = 0;
  PaceStats stats_;
};

// Seconds since it was made: modelled ones of a paced worker.
class PacedStopwatch {
 public:
  explicit PacedStopwatch(const Pace* pace) : pace_(pace), start_(now()) {}
  double seconds() const { return now() - start_; }

 private:
  double now() const {
    if (pace_ != nullptr) return 1e-3 * pace_->now_ms();
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  }
  const Pace* pace_;  // null: the monotonic clock
  double start_;
};

// What a level of a paced drafter takes, and how it errs.
struct PacedLevels {
  Pace* pace = nullptr;  // null: it is not paced
  RoleCost cost;
  AcceptanceDial dial;

  PacedLevels() = default;
  PacedLevels(Pace* worker, const PaceOptions* options, const std::string& drafter);
  void hold(const RowBatch& rows) const;
};

// A pass over these rows of `batch` sequences.
PassShape pass_shape(double batch, const RowBatch& rows);

}  // namespace otr
