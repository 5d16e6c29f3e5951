#include "spec/rhymerl_chooser.h"

#include <algorithm>

#include "spec/history_drafter.h"

namespace otr {

RhymerlChooser::RhymerlChooser(const ChooserOptions& options) : policy_(options.policy), costs_(options.costs.at(0)) {
  constexpr int32_t kWindow = HistoryDrafter::kFirstWindow;
  int32_t batch = 0;  // the larger the rate, the larger the batch
  for (int32_t step = 0; step <= kSteps; ++step) {
    const double tokens = 1 + static_cast<double>(step) / kSteps * kWindow;
    const auto gains = [&](double b) {
      return tokens * costs_.target_ms(b, kProfiledContext) > costs_.verify_ms(b, (kWindow + 1) * b, kProfiledContext);
    };
    for (int32_t b = options.max_batch; b > batch; --b) {
      if (gains(b)) batch = b;
    }
    largest_[static_cast<size_t>(step)] = batch;
  }
}

void RhymerlChooser::choose(const TickView& view, TickPlan* plan) {
  if (view.batch > largest_batch(rate())) return;
  plan->drafters = 1;
  plan->depth = policy_.depth;
  plan->verify_tokens = policy_.verify_tokens;
}

void RhymerlChooser::observe(const TickView&, const TickPlan&, const TickOutcome& outcome) {
  for (const RowOutcome& row : outcome.rows) {
    if (row.drafted == 0) continue;
    const int32_t judged =
        row.ended ? std::min(row.drafted, row.num_new) : row.drafted;  // what an end cuts off is not rejected
    for (int32_t i = 0; i < judged; ++i) accepted_ *= kKeep, drafted_ *= kKeep;
    accepted_ += row.accepted;
    drafted_ += judged;
  }
}

}  // namespace otr
