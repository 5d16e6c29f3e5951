#include "spec/specactor_chooser.h"

#include <algorithm>
#include <bit>

namespace otr {

SpecactorChooser::SpecactorChooser(const ChooserOptions& options) : options_(options), records_(options.drafters.size()) {}

WindowCosts SpecactorChooser::costs(size_t drafter, double context) const {
  const CostModel* const cost = &options_.costs[drafter];
  return {.verify = cost, .draft = options_.drafters[drafter].has_model ? cost : nullptr, .drafters = 1, .context = context};
}

WindowChoice SpecactorChooser::best_window(size_t drafter, double p, double batch, double line, double context) const {
  return otr::best_window(WindowForm::kCoupled, p, costs(drafter, context), batch, line, options_.policy.depth);
}

SpecactorChooser::Sample& SpecactorChooser::sample(const TickRow& row) {
  const size_t slot = static_cast<size_t>(row.slot);
  if (samples_.size() <= slot) samples_.resize(slot + 1);
  Sample& s = samples_[slot];
  if (!s.known || s.sequence != row.sequence) s = {.sequence = row.sequence, .known = true, .rate = {}, .window = 0};
  return s;
}

// The top of the ladder for this batch; for replicas, the drafter that they are there for (algorithm 3).
void SpecactorChooser::make_plan(const TickView& view) {
  const double batch = static_cast<double>(view.rows.size());
  const size_t before = drafter_;
  ladder_.clear();
  for (size_t d = 0; d < records_.size(); ++d) {
    if (options_.drafters[d].decoupled) continue;
    ladder_.emplace_back(-best_window(d, records_[d].rate.value(), batch, batch, view.context).speed, d);
  }
  std::sort(ladder_.begin(), ladder_.end());
  rung_ = view.rows[0].rung;
  const size_t named = static_cast<size_t>(rung_ - 1);
  drafter_ = rung_ > 0 && named < records_.size() && !options_.drafters[named].decoupled ? named : ladder_.front().second;
  window_ = std::max(1, best_window(drafter_, records_[drafter_].rate.value(), batch, batch, view.context).window);
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
    s.window = best_window(drafter_, s.rate.value(), 1, planned_batch_, view.context).window;
  }
}

bool SpecactorChooser::take_decoupled(const TickView& view, TickPlan* plan) const {
  const bool replica = view.rows[0].rung > 0;  // it is there for another drafter's sake
  for (size_t d = 0; view.decoupled && !replica && d < options_.drafters.size(); ++d) {
    if (!options_.drafters[d].decoupled) continue;
    plan->drafters = 1u << d;
    plan->depth = plan->verify_tokens = options_.policy.depth;
    return true;
  }
  return false;
}

// A replica has no time for that: it is there for one drafter.
bool SpecactorChooser::take_profile(const TickView& view, TickPlan* plan) {
  while (profiling_ < records_.size() && profiled(profiling_)) ++profiling_;
  if (profiling_ == records_.size() || view.rows[0].rung > 0) return false;
  plan->drafters = 1u << profiling_;
  plan->depth = plan->verify_tokens = std::min(kProfileWindow, options_.policy.depth);
  return true;
}

void SpecactorChooser::choose(const TickView& view, TickPlan* plan) {
  if (take_decoupled(view, plan) || take_profile(view, plan)) return;
  const int32_t rung = view.rows[0].rung;
  if (rung != rung_ || (rung > 0 && records_[drafter_].ticks % kProfileTicks == 0)) planned_batch_ = 0;
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
        coupled_tokens((s.rate.tried == 0 ? records_[drafter_].rate : s.rate).value(), std::min(window, row.max_depth));
    rows += 1 + window;
  }
  plan->verify_tokens = plan->depth;
  plan->expected_ms = plan->depth * costs(drafter_, view.context).draft_ms(batch) +
                      options_.costs[drafter_].verify_ms(batch, rows, view.context);
}

void SpecactorChooser::observe(const TickView& view, const TickPlan& plan, const TickOutcome& outcome) {
  if (plan.drafters == 0) return;  // memory ran out in choose()
  const size_t drafter = static_cast<size_t>(std::countr_zero(plan.drafters));
  if (options_.drafters[drafter].decoupled) return;  // its worker looks after it
  ++records_[drafter].ticks;
  for (const RowOutcome& row : outcome.rows) {
    const bool found_nothing = row.drafted == 0;
    if (found_nothing && options_.drafters[drafter].has_model) continue;  // no room
    // What an end cuts off is not wrong.
    const int32_t drafted = found_nothing ? 1 : row.ended ? std::min(row.drafted, row.num_new) : row.drafted;
    records_[drafter].rate.add_chain(drafted, row.accepted);
    if (profiling_ == records_.size() || view.rows[0].rung > 0)
      sample(view.rows[static_cast<size_t>(row.row)]).rate.add_chain(drafted, row.accepted);
  }
}

}  // namespace otr
