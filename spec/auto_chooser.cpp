#include "spec/auto_chooser.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <tuple>
#include <utility>

namespace otr {
namespace {

constexpr float kHoped = 0.97f;        // p of a draft that went as well as drafts do
constexpr double kMargin = 1.03;       // what a drafter with a model must promise: plain decoding never disappoints
constexpr int32_t kStillKnown = 8;     // tokens that a drafter may be behind with a sample and still count as drafting for it
constexpr size_t kMostRows = 256;      // with more nothing is drafted: no row would get a node
constexpr int32_t kLookupDepth = 4;    // of those that have found nothing of late
constexpr double kPlainShare = 0.01;   // of the time may go to ticks without a draft, to know what these take
constexpr int64_t kPlainAtLeast = 4;   // ticks between two of them
constexpr double kLittle = 0.33;       // of a gain
constexpr int64_t kPlainAtMost = 512;  // ticks, however much drafts seem to gain: what is believed of plain ticks may be old
constexpr int64_t kExploreEvery = 8;   // ticks
constexpr int32_t kProbeDepth = 3;     // of a draft that is to be seen, not to win
constexpr size_t kProbeRows = 2;       // that have it: some four tokens that are foretold
constexpr float kProbeLeast = 0.2f;    // A of a node whose children it sees
constexpr double kKnown = 2;           // tokens foretold and verified: with fewer a drafter is looked at before it is used
constexpr int32_t kMostLooks = 3;      // that may pass without any
constexpr double kWellKnown = 4;       // such tokens: with fewer it is looked at while that costs little; later it may not
constexpr double kConvinced =
    16;  // such tokens: fewer may have failed by bad luck, and it is looked at again where that can be afforded
constexpr double kCheapLook = 0.1;  // of a plain tick
constexpr double kGoesWell = 0.5;   // trust in one that is not known yet, or has rested
constexpr double kLookShare =
    0.02;  // of all time so far: as far behind plain decoding may a look at an unknown drafter leave the engine
constexpr float kHope = 0.1f;         // more of a token is kept, it is hoped of a drafter that has rested
constexpr int32_t kBriefWait = 8;     // ticks of a drafter's rest, after which it need not be asked what the try costs
constexpr double kWorthRacing = 0.5;  // of the best drafter's speed: what another one must promise to draft for a replica

}  // namespace

size_t AutoChooser::bucket_of(const TickView& view) { return std::min<size_t>(std::bit_width(view.rows.size()), 17); }

AutoChooser::AutoChooser(const ChooserOptions& options)
    : options_(options),
      tuner_(!options.policy.untuned),
      draft_correction_(options.drafters.size()),
      looks_(options.drafters.size()),
      turns_(options.drafters.size()) {
  for (size_t d = 0; d < options.drafters.size(); ++d) {
    if (options.drafters[d].has_model) models_.push_back(static_cast<int>(d));
    else lookups_ |= 1u << d;
  }
  const size_t batch = static_cast<size_t>(options.max_batch);
  optimiser_.reserve(batch);
  odds_.reserve(batch);
  depth_.reserve(batch);
  candidates_.resize(models_.size());
  for (Candidate& candidate : candidates_) candidate.row_depth.reserve(batch);
  lengths_.reserve(batch);
  if (options.policy.stragglers) weights_.reserve(batch);
  probed_.reserve(batch);
  sorted_.reserve(batch * static_cast<size_t>(kMaxDraftNodes));
}

TickTimes AutoChooser::times(const TickView& view, int drafter) const {
  const double rows = static_cast<double>(view.rows.size());
  const size_t d = static_cast<size_t>(std::max(drafter, 0)), bucket = bucket_of(view);
  const double fixed_ms = fixed_[bucket].count > 0 ? fixed_[bucket].ms : plain_fixed_[bucket].ms;
  const double plain_fixed_ms = plain_fixed_[bucket].count > 0 ? plain_fixed_[bucket].ms : fixed_ms;
  return {.cost = &options_.costs[d],
          .batch = static_cast<double>(view.batch),
          .rows = rows + view.other_rows,
          .silent = static_cast<double>(view.silent_rows),
          .context = view.context,
          .draft_correction = drafter == kNone ? nullptr : &draft_correction_[d],
          .verify_correction = &verify_correction_,
          .plain_correction = &plain_correction_,
          .plain_fixed_ms = plain_fixed_ms - plain_others_ms_,
          .fixed_ms = fixed_ms - others_ms_};
}

// What the rows of prompts and scores add to a pass without a draft, as passes of the correction's kind take it. It has to be
// spent once whatever is drafted, and the sooner samples end the sooner comes the next: so it counts for no choice.
double AutoChooser::others_ms(const TickView& view, const CostCorrection& correction) const {
  const double n = static_cast<double>(view.rows.size()), all = n + view.other_rows;
  const CostModel& cost = options_.costs[0];
  const double with = correction.factor(all) * cost.verify_ms(view.batch, all, view.context, view.silent_rows);
  return std::max(0.0, with - correction.factor(n) * cost.verify_ms(n, n, view.context));
}

// How deep the drafter can draft for the row: a model may have been made for shorter contexts than the target.
int32_t AutoChooser::room(const TickRow& row, int drafter) const {
  return std::clamp(options_.drafters[static_cast<size_t>(drafter)].max_context - (row.context - 1), 0, row.max_depth);
}

// A draft that is there to be seen, for the few rows with the least to catch up with; sets probed_. Returns what it adds to a
// plain tick.
double AutoChooser::plan_probe(const TickView& view, const TickTimes& times, int drafter) {
  probed_.resize(view.rows.size());
  std::iota(probed_.begin(), probed_.end(), 0);
  const auto behind_of = [&](int32_t r) { return view.rows[static_cast<size_t>(r)].behind[static_cast<size_t>(drafter)]; };
  const auto has_none = [&](int32_t r) { return room(view.rows[static_cast<size_t>(r)], drafter) == 0; };
  const auto before = [&](int32_t a, int32_t b) {
    return std::tuple(has_none(a), behind_of(a), a) < std::tuple(has_none(b), behind_of(b), b);
  };
  if (probed_.size() > kProbeRows) {
    std::partial_sort(probed_.begin(), probed_.begin() + kProbeRows, probed_.end(), before);
    probed_.resize(kProbeRows);
  }
  const double rows = static_cast<double>(probed_.size());
  double unknown = 0;
  for (const int32_t row : probed_) unknown += behind_of(row);
  const double verify = times.verify_ms(kProbeDepth * rows) - times.verify_ms(0);
  return times.draft_ms(rows, unknown) + (kProbeDepth - 1) * times.draft_ms(rows) + verify;
}

// What each of so many tokens that the drafter has not run yet adds to its first level of so many rows.
double AutoChooser::token_ms(const TickTimes& times, double rows, double tokens) const {
  return tokens <= 0 ? 0 : std::max(0.0, times.draft_ms(rows, tokens) - times.draft_ms(rows)) / tokens;
}

// Of the chosen drafter's passes: levels alike, the first with what it has caught up with.
double AutoChooser::drafting_ms(const DraftWork& work) const {
  if (work.passes == 0) return 0;
  const double rows = static_cast<double>(work.rows - work.silent) / work.passes;
  return (work.passes - 1) * times_.draft_ms(rows) + times_.draft_ms(rows, work.silent);
}

// What a tick without a draft of the model leaves it to catch up with, of the samples that it knows: drafting would have run
// these tokens too. Without this two ways that are about as good would take turns, and each turn is paid for.
double AutoChooser::lapse_ms(const TickView& view) const {
  double most = 0;
  for (const int drafter : models_) {
    double tokens = 0;
    for (const TickRow& row : view.rows) {
      const int32_t unknown = row.behind[static_cast<size_t>(drafter)];
      if (unknown > 0 && unknown <= kStillKnown)
        tokens += 1 + static_cast<double>(acceptance_.known(row.slot, row.sequence).tokens);
    }
    most = std::max(most, tokens * token_ms(times(view, drafter), static_cast<double>(view.rows.size()), tokens));
  }
  return most;
}

// The newest draft that was kept is always one of the tokens that the drafter does not know yet. More are there where it
// begins, and that is spread over the tokens that the sample is expected to have still to come: also those of a batch that is
// smaller by then and gains more.
void AutoChooser::fill_odds(const TickView& view, int drafter, float at_least, float hope) {
  odds_.clear();
  double all = 0;
  for (const TickRow& row : view.rows) all += row.behind[static_cast<size_t>(drafter)];
  const double token = token_ms(times(view, drafter), static_cast<double>(view.rows.size()), all);
  for (const TickRow& row : view.rows) {
    const Acceptance::Known known = acceptance_.known(row.slot, row.sequence);
    const int32_t unknown = row.behind[static_cast<size_t>(drafter)];
    double tokens = std::min(unknown, 1);
    const double left = std::min<double>(hazard_.remaining(row.generated), row.most_left);  // that profit from it
    if (unknown > 1) tokens += (unknown - 1) / std::max(1.0, left);
    const float known_p = acceptance_.p(drafter, row.slot, row.sequence);
    const float hoped_p = std::max(known_p, std::min(kHoped, known_p + hope));
    odds_.push_back({.p = std::max(at_least, hoped_p),
                     .max_depth = room(row, drafter),
                     .known = known.tokens,
                     .known_nodes = known.nodes,
                     .once_ms = static_cast<float>(tokens * token),
                     .weight = weights_.empty() ? 1.0f : weights_[odds_.size()]});
  }
}

void AutoChooser::choose(const TickView& view, TickPlan* plan) {
  ++ticks_;
  const double n = static_cast<double>(view.rows.size());
  others_ms_ = others_ms(view, verify_correction_);
  plain_others_ms_ = others_ms(view, plain_correction_);
  times_ = times(view, kNone);
  weights_.clear();
  const DraftDepth plain{.depth = 0, .tokens = n, .ms = times_.plain_ms()};
  plain_value_ = plain.value();
  usual_value_ = gain_[bucket_of(view)].value() * plain_value_;
  depth_.assign(view.rows.size(), 0);
  arm_ = 0;
  drafter_ = kNone;
  probe_ = false;
  plain_ = view.rows.size() > kMostRows || rests(view);
  if (!plain_) {
    const DraftDepth best = choose_arm(view, plain);
    value_ = best.value();
    plain_ = !probe_ && plain_is_due(view, plain);
    if (!plain_) return plan_drafts(view, best, plan);
    times_ = times(view, kNone);
    arm_ = 0;
    drafter_ = kNone;
    depth_.assign(view.rows.size(), 0);
  }
  last_plain_[bucket_of(view)] = ticks_;
  plan->drafters = 0;
  plan->model_depth = depth_;
  plan->expected_ms = plain.ms + plain_others_ms_;
  plan->expected_tokens = n;
}

void AutoChooser::see_lengths(const TickView& view) {
  lengths_.clear();
  for (const TickRow& row : view.rows) lengths_.push_back(row.generated);
  hazard_.see_running(lengths_);
  if (options_.policy.stragglers) weigh_rows();
}

// omega: in proportion to what each has still to come. The last sample ends the rollout, so its tokens count most.
void AutoChooser::weigh_rows() {
  double sum = 0;
  for (const int32_t length : lengths_) {
    weights_.push_back(static_cast<float>(hazard_.remaining(length)));
    sum += static_cast<double>(weights_.back());
  }
  for (float& weight : weights_) weight *= static_cast<float>(static_cast<double>(lengths_.size()) / sum);
}

// About as many rows as when it last looked.
bool AutoChooser::like_last(const TickView& view) const {
  return 4 * view.rows.size() >= 3 * rest_rows_ && 3 * view.rows.size() <= 4 * rest_rows_;
}

// Where nothing was worth verifying for some ticks, looking again can wait: it takes time, and a small model's ticks are short.
bool AutoChooser::rests(const TickView& view) {
  if (rest_ == 0 || !like_last(view)) return false;
  --rest_;
  return true;
}

// The less drafts seem to be worth, the better it must be known what goes without: such a tick costs what they would have
// gained.
bool AutoChooser::plain_is_due(const TickView& view, const DraftDepth& plain) const {
  const double gain = 1 - plain.value() / value_;
  const int64_t last = last_plain_[bucket_of(view)], since = ticks_ - last;
  if (gain > kLittle) return since >= kPlainAtMost;
  return last == 0 || (since >= kPlainAtLeast && kPlainShare * static_cast<double>(since) >= gain);
}

// It is looked at before it is used. A replica drafts with what others do not.
bool AutoChooser::is_unknown(const TickView& view, int drafter) const {
  return !options_.policy.untuned && view.rows[0].rung == 0 && acceptance_.seen(drafter) < kKnown;
}

// The first look comes at once, and a drafter whose tokens were kept so far may go on. Else what drafts have brought may be
// spent, or little.
bool AutoChooser::may_look(int drafter, double extra_ms) const {
  const bool goes_well = acceptance_.seen(drafter) > 0 && acceptance_.trust(drafter) >= kGoesWell;
  return goes_well || !looked_ || can_afford(extra_ms);
}

// What is kept of drafts changes along a response, and only drafting shows it: a drafter whose word was good, but not worth
// while, is tried again where it would be with a little more, each time after a longer rest, and soon only if there is time for
// what it then has to catch up with.
float AutoChooser::hope_of(const TickView& view, int drafter) const {
  if (options_.policy.untuned || view.rows[0].rung > 0 || is_unknown(view, drafter)) return 0;
  const Turn& turn = turns_[static_cast<size_t>(drafter)];
  if (acceptance_.trust(drafter) < kGoesWell || ticks_ - turn.last <= turn.wait) return 0;
  double behind = 0;
  for (const TickRow& row : view.rows) behind += row.behind[static_cast<size_t>(drafter)];
  const double catch_up_ms = behind * token_ms(times(view, drafter), static_cast<double>(view.rows.size()), behind);
  return turn.wait <= kBriefWait || can_afford(catch_up_ms) ? kHope : 0;
}

// Of what drafts have brought so far, or little.
bool AutoChooser::can_afford(double extra_ms) const { return extra_ms <= kLookShare * all_ms_ + ahead_ms_; }

// The best of what no model, and each of them, would draft; sets arm_, drafter_, times_ and depth_.
DraftDepth AutoChooser::choose_arm(const TickView& view, const DraftDepth& plain) {
  const int32_t most = options_.policy.depth;
  if (!models_.empty() || options_.policy.stragglers) see_lengths(view);
  const double n = plain.tokens;
  double known = 0, known_nodes = 0;
  for (size_t r = 0; r < view.rows.size(); ++r) {
    const Acceptance::Known row = acceptance_.known(view.rows[r].slot, view.rows[r].sequence);
    known += weight(r) * static_cast<double>(row.tokens);
    known_nodes += static_cast<double>(row.nodes);
  }
  DraftDepth best = plain;
  const DraftDepth looked_up{.depth = 0, .tokens = n + known, .ms = times_.verify_ms(known_nodes)};
  if (known > 0 && looked_up.value() > best.value()) best = looked_up;
  const bool may_explore = ++step_ticks_ % kExploreEvery == 0;  // a step begins with what is held for best
  std::array<Tuner::Arm, Tuner::kMaxArms> arms;
  const double lapse = lapse_ms(view);
  arms[0] = {.value = best.tokens / (best.ms + lapse), .hoped = best.value(), .extra_ms = 0};
  for (size_t m = 0; m < models_.size(); ++m) {
    const TickTimes t = times(view, models_[m]);
    Candidate& candidate = candidates_[m];
    if (std::all_of(view.rows.begin(), view.rows.end(), [&](const TickRow& row) { return room(row, models_[m]) == 0; }))
      continue;
    DraftDepth hoped;
    if (may_explore) {
      fill_odds(view, models_[m], kHoped, 0);
      hoped = optimiser_.best_depth(t, odds_, most, candidate.found.value());
    }
    const float hope = hope_of(view, models_[m]);
    candidate.is_hope = hope > 0;
    fill_odds(view, models_[m], 0, hope);
    candidate.found = optimiser_.best_depth(t, odds_, most, candidate.found.value());
    candidate.row_depth = optimiser_.row_depth();
    candidate.once_ms = 0;
    for (size_t r = 0; r < odds_.size(); ++r)
      candidate.once_ms += candidate.row_depth[r] > 0 ? static_cast<double>(odds_[r].once_ms) : 0;
    const bool unseen = acceptance_.seen(models_[m]) < kWellKnown;
    const bool has_failed = acceptance_.seen(models_[m]) < kConvinced && acceptance_.trust(models_[m]) < kGoesWell;
    arms[m + 1] = {.value = candidate.found.depth > 0 ? candidate.found.value() / kMargin : 0,
                   .hoped = hoped.depth > 0 ? hoped.value() : 0,
                   .extra_ms = unseen || has_failed || hoped.depth > 0 ? plan_probe(view, t, models_[m]) : 0};
    const double extra_ms = arms[m + 1].extra_ms;
    arms[m + 1].curious = (unseen && extra_ms <= kCheapLook * plain.ms) || (has_failed && can_afford(extra_ms));
    if (is_unknown(view, models_[m]) && !may_look(models_[m], arms[m + 1].extra_ms))
      arms[m + 1] = {.extra_ms = std::numeric_limits<double>::infinity()};
  }
  // And a look goes without what the best arm would have brought.
  double most_value = plain.value();
  for (const Tuner::Arm& arm : std::span(arms).first(models_.size() + 1)) most_value = std::max(most_value, arm.value);
  for (size_t m = 0; m < models_.size(); ++m) arms[m + 1].extra_ms += (1 - plain.value() / most_value) * plain.ms;
  arm_ = tuner_.choose(n, std::span(arms).first(models_.size() + 1), plain.ms);
  if (view.rows[0].rung > 0 && !tuner_.explored()) arm_ = arm_of_replica(view, std::span(arms).first(models_.size() + 1));
  if (arm_ == 0) return best;
  const Candidate& candidate = candidates_[static_cast<size_t>(arm_) - 1];
  drafter_ = models_[static_cast<size_t>(arm_) - 1];
  times_ = times(view, drafter_);
  set_depths(view, candidate);
  const bool forecast = !probe_ && (candidate.found.value() > best.value() || view.rows[0].rung > 0);
  return forecast ? candidate.found : best;
}

// Of the chosen drafter, or of a look at it.
void AutoChooser::set_depths(const TickView& view, const Candidate& candidate) {
  const int32_t most = options_.policy.depth;
  draft_ = {.tokens = static_cast<double>(view.rows.size()), .nodes = 0, .spent_ms = 0};
  int32_t& looks = looks_[static_cast<size_t>(drafter_)];
  if (acceptance_.seen(drafter_) >= kKnown) looks = 0;
  probe_ = tuner_.explored() || (is_unknown(view, drafter_) && looks < kMostLooks);
  if (probe_) {
    ++looks;
    looked_ = true;
    plan_probe(view, times_, drafter_);
    for (const int32_t r : probed_) {
      const size_t row = static_cast<size_t>(r);
      depth_[row] = std::min({kProbeDepth, most, room(view.rows[row], drafter_)});
    }
    return;
  }
  double drafting = 0;
  for (size_t r = 0; r < depth_.size(); ++r) {
    const int32_t depth = candidate.row_depth[r];
    // The gate ends a draft that goes badly; one that goes well may go on.
    depth_[r] = depth == 0 ? 0 : std::min({most, 2 * depth + 2, room(view.rows[r], drafter_)});
    drafting += depth > 0;
  }
  draft_.spent_ms = candidate.once_ms + times_.draft_ms(drafting);
}

// The same drafter would find what the first replica finds: each next one takes the next best, if it is not much worse.
int AutoChooser::arm_of_replica(const TickView& view, std::span<const Tuner::Arm> arms) const {
  std::array<std::pair<double, int>, Tuner::kMaxArms> order;  // less their values, arms
  size_t count = 0;
  for (size_t a = 0; a < arms.size(); ++a) {
    const int arm = static_cast<int>(a);
    order[a] = {-arms[a].value * tuner_.factor(static_cast<double>(view.rows.size()), arm), arm};
  }
  std::sort(order.begin(), order.begin() + arms.size());
  const double least = kWorthRacing * order[0].first;
  const size_t next =
      static_cast<size_t>(view.rows[0].rung) - (order[0].second == 0);  // where the first replica drafts with none
  for (size_t a = 0; a < arms.size(); ++a) {
    if (order[a].second != 0 && order[a].first <= least && order[a].first < 0) order[count++] = order[a];
  }
  return count == 0 ? 0 : order[next % count].second;
}

void AutoChooser::plan_drafts(const TickView& view, const DraftDepth& best, TickPlan* plan) const {
  const int32_t most = options_.policy.depth;
  plan->drafters = (probe_ ? 0 : lookups_) | (drafter_ == kNone ? 0 : 1u << drafter_);
  plan->model_depth = depth_;
  plan->depth = most;
  // Depth takes pages, and these are cleared: what looks up gets as much as it has needed of late.
  for (size_t r = 0; r < depth_.size(); ++r) {
    const float lately = acceptance_.known(view.rows[r].slot, view.rows[r].sequence).tokens;
    const int32_t looked_up = probe_ ? 0 : view.decoupled ? most : kLookupDepth + static_cast<int32_t>(3 * lately);
    plan->row_depth.push_back(std::min(most, std::max(depth_[r], looked_up)));
  }
  plan->top_k = options_.policy.top_k;
  plan->verify_tokens = options_.policy.verify_tokens;
  // Proposals that cannot all be verified cost time: four times what there is room for is enough to choose from.
  const int32_t choice = std::max(1, 4 * static_cast<int32_t>(kMostRows) / static_cast<int32_t>(view.rows.size()));
  plan->drafter_nodes = std::min({plan->verify_tokens, choice, kMaxDraftNodes / std::max(1, std::popcount(plan->drafters))});
  plan->expected_ms = best.ms + others_ms_;
  plan->expected_tokens = best.tokens;
}

// One more level is worth its time if it brings more for it than ticks usually do: the time that it does not take goes to the
// next one. (What this tick has so far would ask for more levels the worse they went, and for fewer the better.) Until that is
// known, what the tick has so far: forecasts do not enter, since the deepest of them is the most flattering one.
float AutoChooser::least_acceptance(int drafter, int32_t /*level*/, std::span<const float> frontier) {
  if (probe_) return kProbeLeast;
  // A place has more children than are worth a row of the target's.
  const double worth = usual_value_ * times_.node_ms(draft_.nodes);
  for (const float acceptance : frontier) {
    if (static_cast<double>(acceptance) < worth) continue;
    draft_.tokens += static_cast<double>(acceptance);
    ++draft_.nodes;
  }
  const double value = usual_value_ > 0 ? usual_value_ : draft_.tokens / (draft_.spent_ms + times_.verify_ms(draft_.nodes));
  const float least =
      Optimiser::least_acceptance(times_, value, static_cast<double>(acceptance_.p(drafter)), frontier, draft_.nodes);
  const auto grown = std::count_if(frontier.begin(), frontier.end(), [least](float acceptance) { return acceptance >= least; });
  if (grown > 0) draft_.spent_ms += times_.draft_ms(static_cast<double>(grown));
  return least;
}

// Nodes of those that look up alone are worth what their like have been worth of late. And at each place the drafter with a
// model knows the noise and its own law: what it gives its children is not there for the children of the others. What is below
// them shrinks in proportion.
void AutoChooser::weigh(Forest* forest, uint32_t models) const {
  // A probe has to be able to see that a drafter has become better.
  const float trust_of_models =
      probe_ || drafter_ == kNone ? 1.0f : std::min(1.0f, static_cast<float>(acceptance_.trust(drafter_)));
  for (int32_t i = 0; i < forest->size(); ++i) {
    const DraftNode& node = (*forest)[i];
    if ((node.drafters & models) != 0) {
      forest->set_worth(i, node.acceptance * trust_of_models);
      continue;
    }
    const bool at_root = node.parent == Forest::kRoot;
    const float said = at_root ? 1.0f : (*forest)[node.parent].acceptance,
                place = at_root ? 1.0f : (*forest)[node.parent].worth;
    double trust = 0;
    for (uint32_t bits = node.drafters; bits != 0; bits &= bits - 1)
      trust = std::max(trust, acceptance_.trust(std::countr_zero(bits)));
    float taken = 0;
    for (int32_t k = node.parent + 1; models != 0 && k < forest->size(); ++k) {
      const DraftNode& other = (*forest)[k];
      if (other.parent == node.parent && (other.drafters & models) != 0) taken += other.worth;
    }
    // Trust is of whole nodes, so it counts once on the way from the root.
    const float share =
        said > 0 ? std::min(1.0f, node.acceptance / said) * (at_root ? static_cast<float>(std::min(trust, 1.0)) : 1.0f) : 0.0f;
    const float worth = std::min(share * place, std::max(0.0f, place - taken));
    forest->set_worth(i, worth >= 0 ? worth : 0.0f);
  }
}

// Whatever it gains: a few rows' drafts are not much beside a large batch.
Optimiser::Cut AutoChooser::cut_of_probe(double spent_ms, int32_t rows, int32_t max_nodes) const {
  const int32_t most = std::max(0, std::min(max_nodes, kProbeDepth * static_cast<int32_t>(probed_.size())));
  Optimiser::Cut cut{.nodes = std::min(static_cast<int32_t>(sorted_.size()), most), .tokens = static_cast<double>(rows)};
  for (int32_t i = 0; i < cut.nodes; ++i) cut.tokens += static_cast<double>(sorted_[static_cast<size_t>(i)]);
  cut.ms = spent_ms + times_.verify_ms(cut.nodes);
  return cut;
}

void AutoChooser::select(const TickView& view, TickPlan* plan, std::span<Forest* const> forests, const DraftWork& work,
                         int32_t max_nodes) {
  if (plain_ || plan->model_depth.empty()) return;  // empty: memory ran out in choose()
  const uint32_t models = drafter_ == kNone ? 0 : 1u << drafter_;
  sorted_.clear();
  for (size_t r = 0; r < forests.size(); ++r) {
    Forest& forest = *forests[r];
    const bool drew = acceptance_.note_draft(view.rows[r].slot, view.rows[r].sequence, forest, models);
    if (!drew) plan->model_depth[r] = 0;  // it had no room, and has run nothing
    weigh(&forest, models);
    for (int32_t i = 0; i < forest.size(); ++i) {
      if (!weights_.empty()) forest.set_worth(i, forest[i].worth * weights_[r]);
      sorted_.push_back(forest[i].worth);
    }
  }
  std::sort(sorted_.begin(), sorted_.end(), std::greater<>());
  const double spent = drafting_ms(work);
  const int32_t n = static_cast<int32_t>(view.rows.size());
  const Optimiser::Cut cut =
      probe_ ? cut_of_probe(spent, n, max_nodes) : Optimiser::best_cut(times_, sorted_, spent, n, max_nodes);
  const float least = cut.nodes == 0 ? std::numeric_limits<float>::infinity() : sorted_[static_cast<size_t>(cut.nodes) - 1];
  int32_t equal = 0;  // of the kept ones
  for (int32_t i = cut.nodes; i > 0 && sorted_[static_cast<size_t>(i) - 1] == least; --i) ++equal;
  for (Forest* forest : forests) {
    equal -= forest->keep_best(least, equal);
    if (forest->size() > plan->verify_tokens) forest->truncate(plan->verify_tokens);  // parents come before their children
  }
  for (size_t r = 0; r < weights_.size(); ++r) {  // from here on a token is a token again
    for (int32_t i = 0; i < forests[r]->size(); ++i) forests[r]->set_worth(i, (*forests[r])[i].worth / weights_[r]);
  }
  for (size_t r = 0; r < forests.size() && !probe_; ++r) {
    acceptance_.note_lookups(view.rows[r].slot, view.rows[r].sequence, *forests[r], lookups_, drafter_ != kNone);
  }
  plan->expected_ms = cut.ms + (cut.nodes == 0 ? plain_others_ms_ : others_ms_);
  plan->expected_tokens = cut.tokens;
  if (weights_.empty()) return;
  plan->expected_tokens = static_cast<double>(n);
  for (const Forest* forest : forests) {
    for (const DraftNode& node : forest->nodes()) plan->expected_tokens += static_cast<double>(node.worth);
  }
}

}  // namespace otr
