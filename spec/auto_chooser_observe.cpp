// What AutoChooser learns from a tick that has run: auto_chooser.cpp decides what the next one does.
#include <algorithm>
#include <span>

#include "spec/auto_chooser.h"

namespace otr {
namespace {

constexpr int32_t kIdleShare = 2;        // ticks that brought nothing for each that is rested
constexpr int32_t kMostRest = 8;         // ticks
constexpr double kLookingShare = 0.005;  // of a tick, for each of these
constexpr int64_t kLongAgo = 8;          // ticks
constexpr double kMostBelieved = 4;      // times the forecast: of what a tick has taken
constexpr int32_t kMostWait = 64;        // ticks that a drafter rests for

}  // namespace

// It has drafted for all.
void AutoChooser::note_turn() {
  Turn& turn = turns_[static_cast<size_t>(drafter_)];
  turn.last = ticks_;
  const bool hoped = arm_ > 0 && candidates_[static_cast<size_t>(arm_) - 1].is_hope;
  turn.wait = hoped ? std::min(2 * turn.wait, kMostWait) : std::max(turn.wait / 2, Turn::kFirstWait);
}

void AutoChooser::note_use(const TickView& view, bool used) {
  if (plain_) return;
  if (used || !like_last(view)) idle_ = 0;
  idle_ += !used;
  rest_rows_ = view.rows.size();
  // As long as looking takes next to nothing it need not rest.
  const double looking =
      std::max(0.0, times_.fixed_ms + others_ms_ - times_.plain_fixed_ms - plain_others_ms_) / times_.plain_ms();
  rest_ = std::min({idle_ / kIdleShare, kMostRest, static_cast<int32_t>(looking / kLookingShare)});
}

void AutoChooser::observe(const TickView& view, const TickPlan& plan, const TickOutcome& outcome) {
  if (plan.model_depth.empty()) return;  // memory ran out in choose()
  all_ms_ += outcome.tick_ms;
  double tokens = 0;
  acceptance_.end_tick();
  for (const RowOutcome& row : outcome.rows) {
    tokens += row.num_new;
    const TickRow& seen = view.rows[static_cast<size_t>(row.row)];
    if (row.ended) hazard_.note_end(seen.generated + row.num_new);
    const Forest& forest = *outcome.forests[static_cast<size_t>(row.row)];
    if (!forest.empty() && !row.ended) acceptance_.note_verdict(forest, row.kept);
  }
  const double nodes = std::max(0.0, outcome.verify_rows - times_.rows);
  const double modelled = times_.cost->verify_ms(times_.batch, times_.rows + nodes, times_.context, times_.silent);
  (nodes > 0 ? verify_correction_ : plain_correction_).learn(times_.rows + nodes, modelled, outcome.verify_ms);
  if (nodes == 0) {
    last_plain_[bucket_of(view)] = ticks_;
    // A machine that is slower or faster than it was is so for both kinds of pass.
    verify_correction_.hint(times_.rows, modelled, outcome.verify_ms, ticks_ - last_verified_ > kLongAgo);
  } else {
    last_verified_ = ticks_;
  }
  note_use(view, nodes > 0 || outcome.work.passes > 0);
  double model_ms = 0;
  if (drafter_ != kNone && outcome.work.passes > 0) {
    if (!probe_) note_turn();
    const DraftWork& work = outcome.work;
    const double rows = static_cast<double>(work.rows - work.silent) / work.passes,
                 level_ms = times_.cost->draft_ms(rows, times_.context);
    const double caught_up_ms = times_.cost->draft_ms(rows, times_.context, work.silent) - level_ms;
    model_ms = work.passes * level_ms + caught_up_ms;
    // The rows of the pass that took most of it.
    draft_correction_[static_cast<size_t>(drafter_)].learn(2 * caught_up_ms > model_ms ? rows + work.silent : rows, model_ms,
                                                           outcome.draft_ms);
  }
  const double rest = std::max(0.0, outcome.tick_ms - outcome.verify_ms - (model_ms > 0 ? outcome.draft_ms : 0));
  (plain_ ? plain_fixed_ : fixed_)[bucket_of(view)].add(std::min(rest, modelled));
  // A tick that the machine spent elsewhere says little.
  const double own_ms =
      std::min(outcome.tick_ms, kMostBelieved * plan.expected_ms) - (nodes > 0 ? others_ms_ : plain_others_ms_);
  if (own_ms > 0) gain_[bucket_of(view)].add(tokens, own_ms * plain_value_);
  if (own_ms > 0 && plain_value_ > 0 && (nodes > 0 || outcome.work.passes > 0)) ahead_ms_ += tokens / plain_value_ - own_ms;
  tuner_.observe(static_cast<double>(view.rows.size()), arm_, plan.expected_tokens, plan.expected_ms, tokens, outcome.tick_ms);
}

}  // namespace otr
