#include "spec/specactor_chooser.h"

#include <algorithm>
#include <cmath>

namespace otr {

SpecactorChooser::SpecactorChooser(const ChooserOptions& options) : options_(options), records_(options.drafters.size()) {}

double SpecactorChooser::expected_tokens(double p, int32_t window) {
  double tokens = 1, all_kept = 1;
  for (int32_t i = 0; i < window; ++i) tokens += all_kept *= p;
  return tokens;
}

double SpecactorChooser::draft_ms(size_t drafter, double batch, double context) const {
  return options_.drafters[drafter].has_model ? options_.costs[drafter].draft_ms(batch, context) : 0;
}

double SpecactorChooser::verify_ms(size_t drafter, int32_t window, double batch, double context) const {
  return options_.costs[drafter].verify_ms(batch, (window + 1) * batch, context);
}

int32_t SpecactorChooser::bound(size_t drafter, int32_t window, double line, double context) const {
  const double draft_1 = draft_ms(drafter, 1, context), verify_1 = verify_ms(drafter, window, 1, context);
  const double draft_slope = line > 1 ? (draft_ms(drafter, line, context) - draft_1) / (line - 1) : 0;
  const double verify_slope = line > 1 ? (verify_ms(drafter, window, line, context) - verify_1) / (line - 1) : 0;
  const auto ratio = [most = options_.policy.depth](double verify, double draft) {
    if (verify <= 0) return 0;
    return verify >= draft * most ? most : static_cast<int32_t>(std::ceil(verify / draft));
  };
  return std::max({1, ratio(verify_slope, draft_slope), ratio(verify_1 - verify_slope, draft_1 - draft_slope)});
}

SpecactorChooser::Window SpecactorChooser::best_window(size_t drafter, double p, double batch, double line,
                                                       double context) const {
  Window best;
  const double level = draft_ms(drafter, batch, context);
  for (int32_t w = 1; w <= options_.policy.depth && w <= bound(drafter, w, line, context); ++w) {
    const double speed = expected_tokens(p, w) / (w * level + verify_ms(drafter, w, batch, context));
    if (speed > best.speed) best = {w, speed};
  }
  return best;
}

SpecactorChooser::Sample& SpecactorChooser::sample(const TickRow& row) {
  const size_t slot = static_cast<size_t>(row.slot);
  if (samples_.size() <= slot) samples_.resize(slot + 1);
  Sample& s = samples_[slot];
  if (!s.known || s.sequence != row.sequence) s = {.sequence = row.sequence, .known = true, .rate = {}, .window = 0};
  return s;
}

// The top of the ladder for this batch.
void SpecactorChooser::make_plan(const TickView& view) {
  const double batch = static_cast<double>(view.rows.size());
  const size_t before = drafter_;
  Window best;
  for (size_t d = 0; d < records_.size(); ++d) {
    const Window window = best_window(d, records_[d].rate.value(), batch, batch, view.context);
    if (window.speed > best.speed) best = window, drafter_ = d;
  }
  window_ = best.tokens;
  planned_batch_ = static_cast<int32_t>(view.rows.size());
  if (drafter_ == before) return;
  for (Sample& s : samples_) s.known = false;  // what was seen of them was another drafter's
}

void SpecactorChooser::reconfigure(const TickView& view) {
  double sum = 0;
  int32_t known = 0;
  for (const TickRow& row : view.rows) {
    const Sample& s = sample(row);
    if (s.rate.tried == 0) continue;
    sum += s.rate.value();
    ++known;
  }
  for (const TickRow& row : view.rows) {
    Sample& s = sample(row);
    if (s.rate.tried == 0 || s.rate.value() >= sum / known) continue;
    s.window = best_window(drafter_, s.rate.value(), 1, planned_batch_, view.context).tokens;
  }
}

void SpecactorChooser::choose(const TickView& view, TickPlan* plan) {
  while (profiling_ < records_.size() && profiled(records_[profiling_])) ++profiling_;
  if (profiling_ < records_.size()) {
    plan->drafters = 1u << profiling_;
    plan->depth = plan->verify_tokens = std::min(kProfileWindow, options_.policy.depth);
    return;
  }
  if (static_cast<int32_t>(view.rows.size()) > planned_batch_) make_plan(view);
  if (++iterations_ % kReconfigure == 0) reconfigure(view);
  plan->drafters = 1u << drafter_;
  plan->depth = 0;
  const double batch = static_cast<double>(view.rows.size());
  double rows = 0;
  for (const TickRow& row : view.rows) {
    const Sample& s = sample(row);
    const int32_t window = s.window == 0 ? window_ : s.window;
    plan->row_depth.push_back(window);
    plan->depth = std::max(plan->depth, window);
    plan->expected_tokens +=
        expected_tokens((s.rate.tried == 0 ? records_[drafter_].rate : s.rate).value(), std::min(window, row.max_depth));
    rows += 1 + window;
  }
  plan->verify_tokens = plan->depth;
  plan->expected_ms =
      plan->depth * draft_ms(drafter_, batch, view.context) + options_.costs[drafter_].verify_ms(batch, rows, view.context);
}

void SpecactorChooser::observe(const TickView& view, const TickPlan& plan, const TickOutcome& outcome) {
  size_t drafter = 0;
  while ((plan.drafters >> drafter & 1) == 0) ++drafter;
  ++records_[drafter].ticks;
  for (const RowOutcome& row : outcome.rows) {
    const bool found_nothing = row.drafted == 0;
    if (found_nothing && options_.drafters[drafter].has_model) continue;  // no room
    // What an end cuts off is not wrong.
    const int32_t drafted = found_nothing ? 1 : row.ended ? std::min(row.drafted, row.num_new) : row.drafted;
    records_[drafter].rate.add_chain(drafted, row.accepted);
    if (profiling_ == records_.size()) sample(view.rows[static_cast<size_t>(row.row)]).rate.add_chain(drafted, row.accepted);
  }
}

}  // namespace otr
