// EfficientrolloutChooser: policy efficientrollout: the self-drafter, switched on where the cost model foretells a gain, with
// one depth for the whole batch that follows the drafter's quality from step to step.
//
// EfficientRollout (sections 3.2 and 3.3, algorithm 1): a step begins with plain decoding. As soon as
// tau * T_target / (gamma * T_draft + T_verify) >= 1.05 at the current batch and context, where tau is the last step's block
// efficiency (at first the initial gamma), speculation is on until the step ends. Then gamma moves along 5, 7, 9, 11: up if
// tau >= 1 + 0.94 gamma in both of the last two steps, down if tau <= 1 + 0.85 gamma in both.
//
// The paper's batch is whole when a step begins and only shrinks. Here prompts join tick by tick: while any runs, the toggle
// waits. A step in which nothing was speculated has no tau and changes nothing.
//
// Thread safety: as Chooser.
#pragma once

#include <array>

#include "spec/make_chooser.h"

namespace otr {

class EfficientrolloutChooser final : public Chooser {
 public:
  static constexpr std::array<int32_t, 4> kDepths = {5, 7, 9, 11};
  static constexpr double kUp = 0.94, kDown = 0.85, kMargin = 0.05;

  explicit EfficientrolloutChooser(const ChooserOptions& options) : costs_(options.costs.at(0)) {}

  void choose(const TickView& view, TickPlan* plan) override;
  void observe(const TickView& view, const TickPlan& plan, const TickOutcome& outcome) override;
  void end_step() override;

  int32_t depth() const { return kDepths[at_]; }

 private:
  const CostModel costs_;
  size_t at_ = 0;            // of kDepths
  double tau_ = kDepths[0];  // of the last step that speculated
  double before_ = 0;        // of the one before it; 0: none
  bool measured_ = false;    // tau_ is
  bool on_ = false;
  int64_t blocks_ = 0, tokens_ = 0;  // verifications of this step and what they gave
};

}  // namespace otr
