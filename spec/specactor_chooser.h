// SpecactorChooser: policy specactor on one worker: one drafter for the batch, taken from a ladder, and windows of their own
// for the samples that it suits least.
//
// SpecActor (section 4). The chance p that a drafted token is kept is the same for all tokens of a drafter; on one worker
// drafting and verifying are coupled (spec/window_speed.h, where D and V are of the cost model). The ladder says, for each
// drafter, the speed at its best window. When a step begins, the drafter that is highest on the ladder at its measured p is
// taken for the whole step, and again while prompts still join. Every 1,000 iterations each sample with p below the samples'
// mean gets the window that is best for its own p at b = 1 (algorithm 2); the others keep theirs. There is no plain decoding: a
// window is at least 1.
//
// Where a drafter on other workers drafts (sched/plan.h has decided so), it is taken alone, in the windows in which it sends.
//
// Replicas draft with the drafter that their rung names, from their first tick on; their window is chosen anew every
// kProfileTicks.
//
// p is measured on all steps so far. The first step begins with a profile: each drafter in turn, for kProfileTicks ticks or
// kProfileTokens verdicts. A lookup that finds nothing counts as a wrong token.
//
// Thread safety: as Chooser.
#pragma once

#include <vector>

#include "spec/keep_rate.h"
#include "spec/make_chooser.h"
#include "spec/window_speed.h"

namespace otr {

class SpecactorChooser final : public Chooser {
 public:
  static constexpr int64_t kReconfigure = 1000;  // iterations
  static constexpr int32_t kProfileTicks = 32, kProfileTokens = 256, kProfileWindow = 4;

  explicit SpecactorChooser(const ChooserOptions& options);

  void choose(const TickView& view, TickPlan* plan) override;
  void observe(const TickView& view, const TickPlan& plan, const TickOutcome& outcome) override;
  void end_step() override { planned_batch_ = 0; }

  // Of this drafter at this p. `line`: the batch that the bound draws its lines to.
  WindowChoice best_window(size_t drafter, double p, double batch, double line, double context) const;

 private:
  struct Record {
    KeepRate rate;
    int32_t ticks = 0;
  };
  struct Sample {
    uint64_t sequence = 0;
    bool known = false;
    KeepRate rate;
    int32_t window = 0;  // 0: the plan's
  };
  WindowCosts costs(size_t drafter, double context) const;
  bool profiled(size_t d) const {
    return options_.drafters[d].decoupled || records_[d].ticks >= kProfileTicks || records_[d].rate.tried >= kProfileTokens;
  }
  bool take_decoupled(const TickView& view, TickPlan* plan) const;
  bool take_profile(const TickView& view, TickPlan* plan);
  void make_plan(const TickView& view);
  void reconfigure(const TickView& view);
  Sample& sample(const TickRow& row);

  const ChooserOptions options_;
  std::vector<Record> records_;                    // by drafter
  std::vector<Sample> samples_;                    // by slot
  std::vector<std::pair<double, size_t>> ladder_;  // less their speed, drafters: the fastest first
  size_t profiling_ = 0;                           // the drafter whose turn it is; all: done
  size_t drafter_ = 0;                             // the plan
  int32_t rung_ = 0;                               // of the replicas that it is for
  int32_t window_ = 1;
  int32_t planned_batch_ = 0;  // 0: there is none
  int64_t iterations_ = 0;
};

}  // namespace otr
