#include "runtime/cost_calibration.h"

#include <algorithm>

#include "kernels/base/clock.h"

namespace otr {
namespace {

constexpr int32_t kNear = 16, kFar = 2048;  // tokens of context
constexpr size_t kMostRepeats = 20;
constexpr int32_t kLeastLargest = 16;  // rows: without such a pass nobody knows what a row costs
// All passes may take so many times what a pass of one row takes, if that is longer than the time given, and at most so many
// times as long.
constexpr double kFirstPasses = 25, kLongest = 10;
constexpr double kTargetsShare = 0.6;  // of the time: its passes are the longer ones

struct Want {
  CostRole role;
  int32_t batch, rows_per_sample, context;
  int32_t rows() const { return batch * rows_per_sample; }
  PassShape pass() const { return {static_cast<double>(batch), static_cast<double>(rows()), static_cast<double>(context)}; }
};

constexpr CostRole kTarget = CostRole::kTarget, kVerify = CostRole::kVerify, kDraft = CostRole::kDraft;
// A wide one early, before time is short: what rows cost that narrow passes hide behind the weights cannot be told from those.
constexpr Want kTargetWants[] = {{kTarget, 1, 1, kNear}, {kVerify, 1, 4, kNear},  {kVerify, 1, 16, kNear},
                                 {kVerify, 16, 4, kFar}, {kTarget, 1, 1, kFar},   {kTarget, 4, 1, kNear},
                                 {kTarget, 4, 1, kFar},  {kVerify, 1, 8, kFar},   {kVerify, 4, 4, kFar},
                                 {kTarget, 16, 1, kFar}, {kTarget, 16, 1, kNear}, {kVerify, 16, 2, kNear}};
// Wide levels too: without them rows and samples could not be told apart.
constexpr Want kDraftWants[] = {{kDraft, 1, 1, kNear},  {kDraft, 1, 1, kFar},  {kDraft, 4, 1, kNear}, {kDraft, 4, 1, kFar},
                                {kDraft, 16, 1, kNear}, {kDraft, 4, 4, kNear}, {kDraft, 16, 1, kFar}, {kDraft, 16, 2, kFar}};

double lower_median(std::vector<double>* times) {
  std::sort(times->begin(), times->end());
  return (*times)[(times->size() - 1) / 2];
}

struct Planned {
  TimedProgram timed;
  TimedPass pass;
  std::vector<double> times;
};

class CalibrationRun {
 public:
  CalibrationRun(const CalibrationOptions& options, PassTimer* timer)
      : options_(options), timer_(timer), seconds_(options.seconds) {}

  // Of the time for all, what is left.
  double seconds_left() const { return seconds_ - time_.seconds(); }

  // Runs each shape once, in a share of the time that is left if it can be done. The target's come first.
  Status run(const TimedProgram& timed, int32_t drafter, std::span<const Want> wants, double share) {
    const Stopwatch time;
    double seconds = share * seconds_left();
    double slowest_ms = 0;
    int32_t slowest_rows = 1;
    for (Want want : wants) {
      want.batch = std::min(want.batch, options_.max_batch);
      if (!make_fit(timed, &want))
        return Status(StatusCode::kNeverFits, "the cost of passes cannot be measured: there is no room for one");
      const double left_ms = 1e3 * (seconds - time.seconds());
      while (want.rows() > std::max(slowest_rows, kLeastLargest) && slowest_ms * want.rows() / slowest_rows > left_ms / 2) {
        int32_t& larger = want.batch > want.rows_per_sample ? want.batch : want.rows_per_sample;
        larger /= 2;
      }
      const double ms = timer_->time_ms(timed, want.role, want.pass(), 1);
      if (ms > slowest_ms) {
        slowest_ms = ms;
        slowest_rows = want.rows();
      }
      planned_.push_back({timed, {drafter, {want.role, want.pass(), 0}}, {ms}});
      if (planned_.size() > 1) continue;
      seconds_ = calibration_seconds(options_, ms / 1e3);
      seconds = share * seconds_;
    }
    return {};
  }

  // Round after round, while there is time.
  void repeat() {
    for (size_t i = 0; i < kMostRepeats && seconds_left() > 0; ++i) {
      Planned& p = planned_[i % planned_.size()];
      p.times.push_back(timer_->time_ms(p.timed, p.pass.point.role, p.pass.point.pass, 1));
    }
  }

  // Of two times the shorter one counts: what disturbs a pass makes it longer. Shapes that were made smaller may be there
  // twice.
  std::vector<TimedPass> passes() {
    std::vector<TimedPass> all;
    for (Planned& p : planned_) {
      p.pass.point.ms = lower_median(&p.times);
      all.push_back(p.pass);
    }
    return all;
  }

 private:
  bool make_fit(const TimedProgram& timed, Want* want) const {
    while (!timer_->fits(timed, want->role, want->pass())) {
      if (want->context > kNear) want->context /= 2;
      else if (want->rows_per_sample > 1) want->rows_per_sample /= 2;
      else if (want->batch > 1) want->batch /= 2;
      else if (want->context > 0) want->context /= 2;
      else return false;
    }
    return true;
  }

  const CalibrationOptions options_;
  PassTimer* const timer_;
  const Stopwatch time_;
  double seconds_;  // for all
  std::vector<Planned> planned_;
};

}  // namespace

ShapeShares shape_shares(const ModelConfig& c) {
  const double hidden = c.hidden_size, heads = c.num_heads, kv_heads = c.num_kv_heads, head_dim = c.head_dim;
  const double lm_head = hidden * c.vocab_size;
  double row = lm_head + c.num_layers * hidden * 2 * (heads + kv_heads) * head_dim;  // what a row is multiplied by
  double experts = 0, experts_of_row = 0;
  for (int32_t layer = 0; layer < c.num_layers; ++layer) {
    const double mlp = hidden * 3 * static_cast<double>(c.token_intermediate_size(layer));
    row += mlp;
    if (!c.has_experts(layer)) continue;
    experts_of_row += mlp;
    experts += mlp / c.experts->experts_per_token * c.experts->num_experts;
  }
  if (experts == 0) return {.logits = lm_head / row};
  return {.logits = lm_head / row,
          .experts = experts / (row - experts_of_row + experts),
          .passed_by = 1 - static_cast<double>(c.experts->experts_per_token) / c.experts->num_experts};
}

bool same_shape(const TimedPass& a, const TimedPass& b) {
  const PassShape &p = a.point.pass, &q = b.point.pass;
  return a.drafter == b.drafter && a.point.role == b.point.role && p.batch == q.batch && p.rows == q.rows &&
         p.context == q.context;
}

std::vector<TimedPass> medians_of(std::span<const TimedPass> passes) {
  std::vector<TimedPass> medians;
  std::vector<std::vector<double>> times;  // likewise
  for (const TimedPass& pass : passes) {
    const auto found = std::find_if(medians.begin(), medians.end(), [&](const TimedPass& m) { return same_shape(m, pass); });
    const size_t at = static_cast<size_t>(found - medians.begin());
    if (found == medians.end()) {
      medians.push_back(pass);
      times.emplace_back();
    }
    times[at].push_back(pass.point.ms);
  }
  for (size_t i = 0; i < medians.size(); ++i) {
    medians[i].point.ms = lower_median(&times[i]);
  }
  return medians;
}

Result<std::vector<CostFit>> fit_costs(std::span<const TimedPass> passes, const ShapeShares& target,
                                       std::span<const ShapeShares> drafters) {
  std::vector<CostFit> fits;
  for (size_t d = 0; d < std::max<size_t>(1, drafters.size()); ++d) {
    std::vector<CostPoint> points;
    for (const TimedPass& pass : passes) {
      if (pass.drafter == TimedPass::kTarget || static_cast<size_t>(pass.drafter) == d) points.push_back(pass.point);
    }
    const FitShares shares{target, d < drafters.size() ? drafters[d] : ShapeShares{}};
    OTR_ASSIGN_OR_RETURN(CostFit fit, fit_cost_model(points, 0, shares));
    fits.push_back(std::move(fit));
  }
  return fits;
}

double calibration_seconds(const CalibrationOptions& options, double row_seconds) {
  return std::clamp(kFirstPasses * row_seconds, options.seconds, kLongest * options.seconds);
}

Result<std::vector<CostModel>> calibrate_costs(const TimedProgram& target,
                                               std::span<const std::optional<TimedProgram>> drafters,
                                               const CalibrationOptions& options, PassTimer* timer) {
  CalibrationRun calibration(options, timer);
  const auto has_model = [](const std::optional<TimedProgram>& drafter) { return drafter.has_value(); };
  const auto num_models = std::count_if(drafters.begin(), drafters.end(), has_model);
  OTR_RETURN_IF_ERROR(calibration.run(target, TimedPass::kTarget, kTargetWants, num_models == 0 ? 1 : kTargetsShare));
  auto left = num_models;
  for (size_t d = 0; d < drafters.size(); ++d) {
    if (!drafters[d]) continue;
    const double share = 1 / static_cast<double>(left--);
    OTR_RETURN_IF_ERROR(calibration.run(*drafters[d], static_cast<int32_t>(d), kDraftWants, share));
  }
  calibration.repeat();
  std::vector<ShapeShares> shares;
  for (const auto& drafter : drafters) shares.push_back(drafter ? shape_shares(drafter->model->config()) : ShapeShares{});
  OTR_ASSIGN_OR_RETURN(const std::vector<CostFit> fits,
                       fit_costs(calibration.passes(), shape_shares(target.model->config()), shares));
  std::vector<CostModel> models;
  for (const CostFit& fit : fits) models.push_back(fit.model);
  return models;
}

}  // namespace otr
