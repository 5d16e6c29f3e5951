// TltChooser: policy tlt: trees of a model's drafts, grown by its own q, of a shape that a bandit picks for the batch.
//
// TLT (section 5): off above 32 requests. Below, beg_mab.h chooses among shapes; the code published with the paper verifies 48
// tokens a sample from batch 1 on, 32 from 2, 16 from 5 and 8 from 21, depth 8 and 4 candidates a place. The paper fixes the
// candidates and tunes the depth: every group has two depths more. Where the model had no room for any sample, n-grams draft
// for the next kFallbackTicks, as deep as the tree would have been.
//
// Ticks that run prompts are not rewarded: the paper's engine does not mix them with decoding.
//
// Thread safety: as Chooser.
#pragma once

#include "spec/beg_mab.h"
#include "spec/make_chooser.h"

namespace otr {

class TltChooser final : public Chooser {
 public:
  static constexpr int32_t kMostRequests = 32, kFallbackTicks = 64;

  explicit TltChooser(const ChooserOptions& options);

  void choose(const TickView& view, TickPlan* plan) override;
  void observe(const TickView& view, const TickPlan& plan, const TickOutcome& outcome) override;

 private:
  static constexpr uint32_t kModel = 1, kNgram = 2;  // bits: the policy's order

  BegMab tuner_;
  size_t arm_ = 0;        // of this tick
  int32_t fallback_ = 0;  // ticks left
};

}  // namespace otr
