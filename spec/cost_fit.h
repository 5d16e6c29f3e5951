// Fits a CostModel to measured times.
//
// Least squares of log(time / ms) with Huber's weights: beyond 1.345 standard deviations, which are estimated from the median
// error, a point pulls no harder the further off it is, and twice too long weighs like twice too short. At a given overlap the
// roof is linear in its sides, and so the model in its parameters, with shares that change slowly: each Gauss-Newton step
// solves a linear least-squares problem with every parameter >= 0, and is halved until the loss falls. 21 overlaps from 0 to 1
// and eight starts, which differ in the number of rows where arithmetic overtakes memory, are tried; the end of least mean
// error is taken. Deterministic; 0.1 s for 400 points.
//
// The target and its verification are one model and share all but context_ms. With overheads of their own, points at two depths
// can hardly tell a verification's samples from its rows: fitted to depths 11 and 15 of the sweep that COST_MODEL.md names, R2
// of verifications at depths 3 and 7 was -1.0 instead of 0.97. The drafter shares nothing: it may be another checkpoint.
// What a mixture's pass reads of its weights follows from its rows and its shape (ShapeShares) and is not fitted.
// Parameters that the points cannot tell apart (kv_ms and sample_ms if all contexts are equal, say) are split in some fixed
// way: predictions like the points are right, others are not to be trusted.
//
// Thread safety: pure functions.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/base/status.h"
#include "spec/cost_model.h"

namespace otr {

struct CostPoint {
  CostRole role = CostRole::kTarget;
  PassShape pass;
  double ms = 0;  // of one pass, best the median of many
};

struct Goodness {
  int64_t points = 0;
  double r2 =
      0;  // 1 - sum of squared errors / sum of squared deviations from the mean, in milliseconds; of equal times: 1 or 0
  double median_error = 0, worst_error = 0;  // of |time - ms| / ms
};

struct CostFit {
  CostModel model;
  std::array<Goodness, kNumCostRoles> goodness;  // by CostRole; all 0 without points
  std::vector<double> residuals;                 // (time - ms) / ms of every point
};

// The shares of the two models' shapes; those of logits do not show in the fit, where every row has its logits.
struct FitShares {
  ShapeShares target, drafter;
};

// `comm_ms` is measured apart, and 0 on one device. Without a draft's points (retrieval needs no pass) a level costs comm_ms.
// kInvalidArgument: a number that is not finite or beyond 1e12, a batch that is not positive, a negative context, fewer rows
// than samples, a time not longer than comm_ms; fewer than six points of the target, of verifications or, if there are any, of
// the drafter.
Result<CostFit> fit_cost_model(std::span<const CostPoint> points, double comm_ms = 0, const FitShares& shares = {});

// How well a model foretells points, those that it was fitted to or others. REQUIRES: every ms > 0
std::array<Goodness, kNumCostRoles> goodness_of(const CostModel& model, std::span<const CostPoint> points);

}  // namespace otr
