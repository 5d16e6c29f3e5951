// What passes cost, from a few of them: for an engine whose policy needs costs and that was given no profile.
//
// 12 shapes of the target and 8 of each drafter fix the parameters of the cost model (spec/cost_fit.h): 1 to 16 samples, 1 to
// 64 rows, contexts of 16 and 2048 tokens. Each runs once, small ones first; where these passes would take longer than the time
// given, later shapes have fewer samples and rows. What time is left, and at most 20 passes, repeat them. With times 3 % off,
// the costs of a 0.5B shape so found are 2 % off over the whole sweep of a profile, 7 % with times 10 % off (medians).
//
// Thread safety: used by the thread that creates the engine.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "kernels/base/status.h"
#include "loader/model_config.h"
#include "runtime/pass_timer.h"
#include "spec/cost_fit.h"

namespace otr {

// A measured pass, and whose it was.
struct TimedPass {
  static constexpr int32_t kTarget = -1;
  int32_t drafter = kTarget;  // its number
  CostPoint point;
};

bool same_shape(const TimedPass& a, const TimedPass& b);
// Every shape once, with the median of its times, the lower one of two in the middle; in the order of their first.
std::vector<TimedPass> medians_of(std::span<const TimedPass> passes);

// Of a model of this shape: lm_head's part of a row's dense arithmetic, the experts' part of all products' weights.
ShapeShares shape_shares(const ModelConfig& config);

// The target's costs with those of each drafter, of which `drafters` has the shares; one without points costs nothing. Without
// drafters: one, of the target alone. Errors: as fit_cost_model.
Result<std::vector<CostFit>> fit_costs(std::span<const TimedPass> passes, const ShapeShares& target,
                                       std::span<const ShapeShares> drafters);

struct CalibrationOptions {
  int32_t max_batch = 1;
  // Or as long as 25 passes of one row of the target, but at most ten times this; the first passes of very large models take
  // longer.
  double seconds = 1;
};

// What all passes may take, where one row of the target takes `row_seconds`.
double calibration_seconds(const CalibrationOptions& options, double row_seconds);

// As fit_costs; a drafter without a model has no program. Errors: kNeverFits where the target has no room for a pass of one
// row. REQUIRES: no sequence has pages yet.
Result<std::vector<CostModel>> calibrate_costs(const TimedProgram& target,
                                               std::span<const std::optional<TimedProgram>> drafters,
                                               const CalibrationOptions& options, PassTimer* timer);

}  // namespace otr
