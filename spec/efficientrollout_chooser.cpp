#include "spec/efficientrollout_chooser.h"

#include <algorithm>

namespace otr {

void EfficientrolloutChooser::choose(const TickView& view, TickPlan* plan) {
  const double batch = static_cast<double>(view.rows.size());
  if (!on_ && !view.prefills()) on_ = costs_.speedup(batch, view.context, depth(), tau_) >= 1 + kMargin;
  plan->expected_tokens = on_ ? batch * tau_ : batch;
  plan->expected_ms =
      on_ ? depth() * costs_.draft_ms(batch, view.context) + costs_.verify_ms(batch, batch * (depth() + 1), view.context)
          : costs_.target_ms(batch, view.context);
  if (!on_) return;
  plan->drafters = 1;
  plan->depth = plan->verify_tokens = depth();
}

void EfficientrolloutChooser::observe(const TickView&, const TickPlan&, const TickOutcome& outcome) {
  for (const RowOutcome& row : outcome.rows) {
    if (row.drafted == 0) continue;
    ++blocks_;
    tokens_ += row.num_new;
  }
}

void EfficientrolloutChooser::end_step() {
  on_ = false;
  if (blocks_ == 0) return;
  before_ = measured_ ? tau_ : 0;
  tau_ = static_cast<double>(tokens_) / static_cast<double>(blocks_);
  blocks_ = tokens_ = 0;
  const bool two = measured_;
  measured_ = true;
  if (!two) return;
  if (std::min(tau_, before_) >= 1 + kUp * depth() && at_ + 1 < kDepths.size()) ++at_;
  else if (std::max(tau_, before_) <= 1 + kDown * depth() && at_ > 0) --at_;
}

}  // namespace otr
