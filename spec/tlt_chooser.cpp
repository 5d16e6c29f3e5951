#include "spec/tlt_chooser.h"

#include <algorithm>
#include <array>

namespace otr {
namespace {

constexpr std::array<BegMab::Arm, 12> kArms = {{{8, 4, 48},
                                                {5, 4, 48},
                                                {12, 4, 48},
                                                {8, 4, 32},
                                                {5, 4, 32},
                                                {12, 4, 32},
                                                {8, 4, 16},
                                                {5, 4, 16},
                                                {12, 4, 16},
                                                {8, 4, 8},
                                                {5, 4, 8},
                                                {3, 4, 8}}};
constexpr std::array<int32_t, 4> kThresholds = {1, 2, 5, 21};

}  // namespace

TltChooser::TltChooser(const ChooserOptions&) : tuner_(kArms, kThresholds) {}

void TltChooser::choose(const TickView& view, TickPlan* plan) {
  if (view.batch > kMostRequests) return;
  arm_ = tuner_.select(view.batch);
  const BegMab::Arm& arm = tuner_.arm(arm_);
  plan->depth = arm.depth;
  if (fallback_ > 0) {
    --fallback_;
    plan->drafters = kNgram;
    plan->verify_tokens = std::min(arm.depth, arm.verify_tokens);
    return;
  }
  plan->drafters = kModel;
  plan->top_k = arm.top_k;
  plan->verify_tokens = arm.verify_tokens;
}

void TltChooser::observe(const TickView& view, const TickPlan& plan, const TickOutcome& outcome) {
  if (plan.drafters != kModel) return;
  if (outcome.work.passes == 0) {
    fallback_ = kFallbackTicks;
    return;
  }
  if (view.prefills() || outcome.rows.empty()) return;
  int64_t accepted = 0;
  for (const RowOutcome& row : outcome.rows) accepted += row.accepted;
  tuner_.record(arm_, outcome.tick_ms, accepted, static_cast<int32_t>(outcome.rows.size()));
}

}  // namespace otr
