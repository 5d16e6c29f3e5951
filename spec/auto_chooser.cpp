#include "spec/auto_chooser.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>

namespace otr {
namespace {

constexpr float kHoped = 0.97f;      // p of a draft that went as well as drafts do
constexpr double kHorizon = 64;      // ticks over which the cost of beginning with a drafter is spread
constexpr size_t kMostRows = 256;    // with more nothing is drafted: no row would get a node
constexpr int32_t kLookupDepth = 4;  // of those that have found nothing of late
constexpr double kFarBetter = 1.5;   // than plain decoding
constexpr int64_t kPlainEvery = 96;  // ticks: what goes without a draft must be known too
constexpr int64_t kLongAgo = 8;      // ticks
constexpr int64_t kExploreEvery = 8; // ticks
constexpr int32_t kProbeDepth = 4;   // of a draft that is to be seen, not to win

}  // namespace

size_t AutoChooser::bucket_of(const TickView& view) { return std::min<size_t>(std::bit_width(view.rows.size()), 17); }

AutoChooser::AutoChooser(const ChooserOptions& options) : options_(options), draft_correction_(options.drafters.size()) {
  for (size_t d = 0; d < options.drafters.size(); ++d) {
    if (options.drafters[d].has_model) models_.push_back(static_cast<int>(d));
    else lookups_ |= 1u << d;
  }
  const size_t batch = static_cast<size_t>(options.max_batch);
  optimiser_.reserve(batch);
  odds_.reserve(batch);
  depth_.reserve(batch);
  sorted_.reserve(batch * static_cast<size_t>(kMaxDraftNodes));
}

TickTimes AutoChooser::times(const TickView& view, int drafter) const {
  const double rows = static_cast<double>(view.rows.size());
  const size_t d = static_cast<size_t>(std::max(drafter, 0));
  return {.cost = &options_.costs[d], .batch = static_cast<double>(view.batch), .rows = rows + view.other_rows, .context = view.context,
          .draft_correction = drafter == kNone ? nullptr : &draft_correction_[d], .verify_correction = &verify_correction_,
          .plain_correction = &plain_correction_, .fixed_ms = fixed_ms_};
}

// What the drafter does not know of the rows' tokens, run in one pass.
double AutoChooser::switch_on_ms(const TickView& view, int drafter) const {
  if (!options_.drafters[static_cast<size_t>(drafter)].needs_prefill) return 0;
  double behind = 0;
  for (const TickRow& row : view.rows) {
    const size_t slot = static_cast<size_t>(row.slot);
    const bool seen = slot < known_.size() && known_[slot].sequence == row.sequence;
    const int32_t tokens = seen ? known_[slot].tokens[static_cast<size_t>(drafter)] : 0;
    behind += std::max(0, row.context - 1 - tokens);
  }
  if (behind < 1) return 0;
  const double rows = static_cast<double>(view.rows.size());
  const CostModel& cost = options_.costs[static_cast<size_t>(drafter)];
  return cost.time_ms(CostRole::kDraft, {rows, rows + behind, view.context / 2}) - cost.draft_ms(rows, view.context / 2);
}

void AutoChooser::fill_odds(const TickView& view, int drafter, float at_least) {
  odds_.clear();
  for (const TickRow& row : view.rows) {
    odds_.push_back({.p = std::max(at_least, acceptance_.p(drafter, row.slot, row.sequence)), .max_depth = row.max_depth,
                     .known = acceptance_.known(row.slot, row.sequence)});
  }
}

void AutoChooser::choose(const TickView& view, TickPlan* plan) {
  const int32_t most = options_.policy.depth;
  std::array<Tuner::Arm, Tuner::kMaxArms> arms;
  TickTimes plain = times(view, kNone);
  double known = 0;
  for (const TickRow& row : view.rows) known += static_cast<double>(acceptance_.known(row.slot, row.sequence));
  const double n = static_cast<double>(view.rows.size());
  DraftDepth best{.depth = 0, .tokens = n, .ms = plain.plain_ms()};
  const double plain_ms = best.ms;
  const DraftDepth looked_up{.depth = 0, .tokens = n + known, .ms = plain.verify_ms(known)};
  if (known > 0 && looked_up.value() > best.value()) best = looked_up;
  ++ticks_;
  const bool may_explore = ++step_ticks_ % kExploreEvery == 0;  // a step begins with what is held for best
  arms[0] = {.value = best.value(), .hoped = best.value(), .extra_ms = 0};
  for (size_t m = 0; m < models_.size(); ++m) {
    const int d = models_[m];
    const TickTimes t = times(view, d);
    const double once = switch_on_ms(view, d);
    DraftDepth hoped;
    if (may_explore) {
      fill_odds(view, d, kHoped);
      hoped = optimiser_.best_depth(t, odds_, most, once / kHorizon);
    }
    fill_odds(view, d, 0);
    const DraftDepth found = optimiser_.best_depth(t, odds_, most, once / kHorizon);
    const double probe = once + kProbeDepth * t.draft_ms(n) + t.verify_ms(kProbeDepth * n) - t.verify_ms(0);
    arms[m + 1] = {.value = found.depth > 0 ? found.value() : 0, .hoped = hoped.depth > 0 ? hoped.value() : 0, .extra_ms = probe};
  }
  arm_ = tuner_.choose(n, std::span(arms).first(models_.size() + 1), plain_ms);
  drafter_ = arm_ == 0 ? kNone : models_[static_cast<size_t>(arm_) - 1];
  times_ = times(view, drafter_);
  depth_.assign(view.rows.size(), 0);
  plan->drafters = lookups_;
  if (drafter_ != kNone) {
    plan->drafters |= 1u << drafter_;
    fill_odds(view, drafter_, tuner_.explored() ? kHoped : 0.0f);
    best = optimiser_.best_depth(times_, odds_, most, switch_on_ms(view, drafter_) / kHorizon);
    for (size_t r = 0; r < depth_.size(); ++r) {
      const int32_t depth = optimiser_.row_depth()[r];
      // The gate ends a draft that goes badly; one that goes well may go on.
      depth_[r] = tuner_.explored() ? std::min(depth, kProbeDepth) : depth == 0 ? 0 : std::min(most, 2 * depth + 2);
    }
  }
  value_ = std::max(best.value(), arms[0].value);
  // Where drafts seem to be worth little more than none, what goes without must be known well.
  const int64_t last_plain = last_plain_[bucket_of(view)];
  const bool due = last_plain == 0 || ticks_ - last_plain >= kPlainEvery;
  plain_ = (due && value_ < kFarBetter * n / plain_ms) || view.rows.size() > kMostRows;
  if (plain_) {
    arm_ = 0;
    drafter_ = kNone;
    times_ = plain;
    std::fill(depth_.begin(), depth_.end(), 0);
    plan->drafters = 0;
    plan->model_depth = depth_;
    plan->expected_ms = plain_ms;
    plan->expected_tokens = n;
    return;
  }
  plan->model_depth = depth_;
  plan->depth = most;
  // Depth takes pages, and these are cleared: what looks up gets as much as it has needed of late.
  for (size_t r = 0; r < depth_.size(); ++r) {
    const float lately = acceptance_.known(view.rows[r].slot, view.rows[r].sequence);
    plan->row_depth.push_back(std::min(most, std::max(depth_[r], kLookupDepth + static_cast<int32_t>(3 * lately))));
  }
  plan->top_k = options_.policy.top_k;
  plan->verify_tokens = options_.policy.verify_tokens;
  // Proposals that cannot all be verified cost time: four times what there is room for is enough to choose from.
  const int32_t choice = std::max(1, 4 * static_cast<int32_t>(kMostRows) / static_cast<int32_t>(view.rows.size()));
  plan->drafter_nodes = std::min({plan->verify_tokens, choice, kMaxDraftNodes / std::max(1, std::popcount(plan->drafters))});
  plan->expected_ms = best.ms;
  plan->expected_tokens = best.tokens;
}

float AutoChooser::least_acceptance(int drafter, int32_t /*level*/, std::span<const float> acceptance) {
  if (tuner_.explored()) return 0;
  const double p = static_cast<double>(acceptance_.p(drafter));
  return Optimiser::least_acceptance(times_, value_, p, acceptance);
}

// Nodes of those that look up alone are worth what their like have been worth of late. And at each place the drafter with a model knows
// the noise and its own law: what it gives its children is not there for the children of the others. What is below them
// shrinks in proportion.
void AutoChooser::weigh(Forest* forest, uint32_t models) const {
  for (int32_t i = 0; i < forest->size(); ++i) {
    const DraftNode& node = (*forest)[i];
    if ((node.drafters & models) != 0) continue;
    const bool at_root = node.parent == Forest::kRoot;
    const float said = at_root ? 1.0f : (*forest)[node.parent].acceptance, place = at_root ? 1.0f : (*forest)[node.parent].worth;
    double trust = 0;
    for (uint32_t bits = node.drafters; bits != 0; bits &= bits - 1) trust = std::max(trust, acceptance_.trust(std::countr_zero(bits)));
    float taken = 0;
    for (int32_t k = node.parent + 1; models != 0 && k < forest->size(); ++k) {
      const DraftNode& other = (*forest)[k];
      if (other.parent == node.parent && (other.drafters & models) != 0) taken += other.worth;
    }
    // Trust is of whole nodes, so it counts once on the way from the root.
    const float share = said > 0 ? std::min(1.0f, node.acceptance / said) * (at_root ? static_cast<float>(std::min(trust, 1.0)) : 1.0f) : 0.0f;
    const float worth = std::min(share * place, std::max(0.0f, place - taken));
    forest->set_worth(i, worth >= 0 ? worth : 0.0f);
  }
}

void AutoChooser::select(const TickView& view, TickPlan* plan, std::span<Forest* const> forests, const DraftWork& work, int32_t max_nodes) {
  if (plain_) return;
  const uint32_t models = drafter_ == kNone ? 0 : 1u << drafter_;
  sorted_.clear();
  for (size_t r = 0; r < forests.size(); ++r) {
    Forest& forest = *forests[r];
    acceptance_.note_draft(view.rows[r].slot, view.rows[r].sequence, forest, models);
    weigh(&forest, models);
    for (const DraftNode& node : forest.nodes()) sorted_.push_back(node.worth);
  }
  std::sort(sorted_.begin(), sorted_.end(), std::greater<>());
  const double spent = work.passes == 0 ? 0 : work.passes * times_.draft_ms(static_cast<double>(work.rows) / work.passes);
  const int32_t n = static_cast<int32_t>(view.rows.size());
  const Optimiser::Cut cut = Optimiser::best_cut(times_, sorted_, spent, n, max_nodes);
  const float least = cut.nodes == 0 ? 2.0f : sorted_[static_cast<size_t>(cut.nodes) - 1];
  int32_t equal = 0;  // of the kept ones
  for (int32_t i = cut.nodes; i > 0 && sorted_[static_cast<size_t>(i) - 1] == least; --i) ++equal;
  for (Forest* forest : forests) {
    equal -= forest->keep_best(least, equal);
    if (forest->size() > plan->verify_tokens) forest->truncate(plan->verify_tokens);  // parents come before their children
  }
  for (size_t r = 0; r < forests.size(); ++r) {
    acceptance_.note_lookups(view.rows[r].slot, view.rows[r].sequence, *forests[r], lookups_);
  }
  plan->expected_ms = cut.ms;
  plan->expected_tokens = cut.tokens;
}

void AutoChooser::observe(const TickView& view, const TickPlan& plan, const TickOutcome& outcome) {
  if (plan.model_depth.empty()) return;  // memory ran out in choose()
  double tokens = 0;
  acceptance_.end_tick();
  for (const RowOutcome& row : outcome.rows) {
    tokens += row.num_new;
    const TickRow& seen = view.rows[static_cast<size_t>(row.row)];
    const Forest& forest = *outcome.forests[static_cast<size_t>(row.row)];
    if (!forest.empty() && !row.ended) acceptance_.note_verdict(forest, row.kept);
    if (drafter_ == kNone || plan.model_depth[static_cast<size_t>(row.row)] == 0) continue;
    const size_t slot = static_cast<size_t>(seen.slot);
    if (slot >= known_.size()) known_.resize(slot + 1);
    if (known_[slot].sequence != seen.sequence) known_[slot] = {.sequence = seen.sequence, .tokens = {}};
    known_[slot].tokens[static_cast<size_t>(drafter_)] = seen.context;
  }
  const double nodes = std::max(0.0, outcome.verify_rows - times_.rows);
  const double modelled = times_.cost->verify_ms(times_.batch, times_.rows + nodes, times_.context);
  (nodes > 0 ? verify_correction_ : plain_correction_).learn(times_.rows + nodes, modelled, outcome.verify_ms);
  if (nodes == 0) last_plain_[bucket_of(view)] = ticks_;
  else last_verified_ = ticks_;
  // A machine that is slower or faster than the model says is so for both kinds of pass.
  if (ticks_ - last_verified_ > kLongAgo) verify_correction_.learn(times_.rows, modelled, outcome.verify_ms);
  double model_ms = 0;
  if (drafter_ != kNone && outcome.work.passes > 0) {
    const double rows = static_cast<double>(outcome.work.rows) / outcome.work.passes;
    model_ms = outcome.work.passes * times_.cost->draft_ms(rows, times_.context);
    draft_correction_[static_cast<size_t>(drafter_)].learn(rows, model_ms, outcome.draft_ms);
  }
  const double rest = std::max(0.0, outcome.tick_ms - outcome.verify_ms - (model_ms > 0 ? outcome.draft_ms : 0));
  fixed_ms_ += 0.05 * (std::min(rest, modelled) - fixed_ms_);
  tuner_.observe(static_cast<double>(view.rows.size()), arm_, plan.expected_tokens, plan.expected_ms, tokens, outcome.tick_ms);
}

}  // namespace otr
