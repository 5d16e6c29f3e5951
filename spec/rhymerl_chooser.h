// RhymerlChooser: policy rhymerl: the history drafter, off above the largest batch that gains at the acceptance seen.
//
// RhymeRL (section 5.4). The window of each response, 2 tokens, 2 more when all were kept, 2 again when one was not, at most
// 32, is the history drafter's own (history_drafter.h, without log-probs). Here is what the section says of batches: by
// profiling beforehand the largest batch is known at which speculation gains, for different rates of acceptance; a larger one
// goes without. The profile is the cost model's, at the first window and 1,024 tokens of context; the rate is that of the
// drafts of this step, the last thousand of them above all, and begins at 0.65, the least that the paper measures (figure 17).
//
// Thread safety: as Chooser.
#pragma once

#include <array>

#include "spec/make_chooser.h"

namespace otr {

class RhymerlChooser final : public Chooser {
 public:
  static constexpr double kFirstRate = 0.65, kFirstWeight = 64, kKeep = 1 - 1.0 / 1024, kProfiledContext = 1024;
  static constexpr int32_t kSteps = 20;  // of the rate, in the profile

  explicit RhymerlChooser(const ChooserOptions& options);

  void choose(const TickView& view, TickPlan* plan) override;
  void observe(const TickView& view, const TickPlan& plan, const TickOutcome& outcome) override;
  void end_step() override { accepted_ = kFirstRate * kFirstWeight, drafted_ = kFirstWeight; }

  double rate() const { return accepted_ / drafted_; }
  // The largest batch that gains at this rate of acceptance; 0: none.
  int32_t largest_batch(double rate) const { return largest_[static_cast<size_t>(rate * kSteps)]; }

 private:
  const Policy policy_;
  const CostModel costs_;
  std::array<int32_t, kSteps + 1> largest_;                               // by rate
  double accepted_ = kFirstRate * kFirstWeight, drafted_ = kFirstWeight;  // tokens, those long ago for less
};

}  // namespace otr
