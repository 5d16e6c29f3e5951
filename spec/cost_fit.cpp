#include "spec/cost_fit.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <numeric>
#include <string>

namespace otr {
namespace {

// The parameters of one model: a drafter's, or the target's, whose plain passes and verifications differ in context_ms alone.
enum Parameter : size_t { kWeights, kKv, kRow, kAttention, kSample, kContext, kVerifyContext, kNumParameters };
using Vector = std::array<double, kNumParameters>;

Parameter context_of(CostRole role) { return role == CostRole::kVerify ? kVerifyContext : kContext; }

// What is not fitted.
struct Given {
  double comm_ms = 0, overlap = 1;
  ShapeShares shares;
};

RoleCost cost_of(const Vector& x, CostRole role, const Given& given) {
  return {.weights_ms = x[kWeights],
          .kv_ms = x[kKv],
          .row_ms = x[kRow],
          .attention_ms = x[kAttention],
          .sample_ms = x[kSample],
          .context_ms = x[context_of(role)],
          .overlap = given.overlap,
          .shares = given.shares};
}

using Matrix = std::array<Vector, kNumParameters>;

double relative_error(const CostModel& model, const CostPoint& point) {
  return model.time_ms(point.role, point.pass) / point.ms - 1;
}

// The upper one of the two in the middle. REQUIRES: not empty.
double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// Solves a x = b in the rows and columns that `free` names; x is 0 in the others. Gauss without pivots: `a` is positive
// definite.
Vector solve_free(Matrix a, Vector b, const std::array<bool, kNumParameters>& free) {
  for (size_t i = 0; i < kNumParameters; ++i) {
    if (!free[i]) continue;
    for (size_t j = i + 1; j < kNumParameters; ++j) {
      if (!free[j]) continue;
      const double share = a[j][i] / a[i][i];
      for (size_t k = i; k < kNumParameters; ++k) a[j][k] -= share * a[i][k];
      b[j] -= share * b[i];
    }
  }
  Vector x{};
  for (size_t i = kNumParameters; i-- > 0;) {
    if (!free[i]) continue;
    double rest = b[i];
    for (size_t j = i + 1; j < kNumParameters; ++j) rest -= a[i][j] * x[j];
    x[i] = rest / a[i][i];
  }
  return x;
}

// The x >= 0 that minimises x'a x / 2 - b'x: Lawson and Hanson's active set. REQUIRES: a's diagonal is 1.
Vector solve_nonnegative(const Matrix& a, const Vector& b) {
  constexpr double kFlat = 1e-9;  // a gradient that is none
  Vector x{};
  std::array<bool, kNumParameters> free{};
  for (size_t round = 0; round < 4 * kNumParameters; ++round) {
    size_t steepest = kNumParameters;
    double most = kFlat * (1 + *std::max_element(b.begin(), b.end()));
    for (size_t i = 0; i < kNumParameters; ++i) {
      double gradient = b[i];
      for (size_t j = 0; j < kNumParameters; ++j) gradient -= a[i][j] * x[j];
      if (!free[i] && gradient > most) {
        most = gradient;
        steepest = i;
      }
    }
    if (steepest == kNumParameters) break;
    free[steepest] = true;
    for (;;) {
      const Vector z = solve_free(a, b, free);
      size_t first = kNumParameters;  // that becomes negative on the way to z
      double share = 1;
      for (size_t i = 0; i < kNumParameters; ++i) {
        if (!free[i] || z[i] >= 0) continue;
        if (const double until = x[i] / (x[i] - z[i]); until < share) {
          share = until;
          first = i;
        }
      }
      for (size_t i = 0; i < kNumParameters; ++i) x[i] = free[i] ? std::max(0.0, x[i] + share * (z[i] - x[i])) : 0;
      if (first == kNumParameters) break;
      free[first] = false;
      x[first] = 0;
    }
  }
  return x;
}

struct Optimum {
  Vector x{};
  Given given;
  double mean_error = std::numeric_limits<double>::infinity();
};

// Fits one model to points at one overlap.
class Fitter {
 public:
  Fitter(std::span<const CostPoint> points, const Given& given) : points_(points), given_(given) {}

  // The optimum near a model whose arithmetic overtakes the reading of its weights at so many rows.
  Optimum run(double rows_at_roof) const {
    Vector x{};
    x[kWeights] = std::numeric_limits<double>::infinity();
    for (const CostPoint& point : points_) x[kWeights] = std::min(x[kWeights], point.ms - given_.comm_ms);
    x[kRow] = x[kWeights] / rows_at_roof;
    for (int step = 0; step < 100; ++step) {
      const double scale = std::max(1.4826 * median(errors(x)), 1e-5);  // the errors' standard deviation; at least 0.001 %
      const double loss = loss_of(x, scale);
      const Vector goal = solve(x, scale);
      Vector next = goal;
      double share = 1, next_loss = loss_of(next, scale);
      while (next_loss >= loss && share > 1e-3) {
        share /= 2;
        for (size_t i = 0; i < kNumParameters; ++i) next[i] = x[i] + share * (goal[i] - x[i]);
        next_loss = loss_of(next, scale);
      }
      if (next_loss >= loss * (1 - 1e-10)) break;
      x = next;
    }
    const std::vector<double> left = errors(x);
    return {x, given_, std::accumulate(left.begin(), left.end(), 0.0) / static_cast<double>(left.size())};
  }

 private:
  static constexpr double kHuber = 1.345;  // 95 % of plain least squares' efficiency on normal errors

  double time_ms(const Vector& x, const CostPoint& point) const {
    return cost_of(x, point.role, given_).time_ms(point.pass) + given_.comm_ms;
  }
  std::vector<double> errors(const Vector& x) const {
    std::vector<double> all;
    for (const CostPoint& point : points_) all.push_back(std::abs(std::log(time_ms(x, point) / point.ms)));
    return all;
  }
  double loss_of(const Vector& x, double scale) const {
    double loss = 0;
    for (const double error : errors(x)) {
      const double e = error / scale;
      loss += e <= kHuber ? e * e / 2 : kHuber * (e - kHuber / 2);
    }
    return loss;
  }
  // Least squares with the weights and the slopes as they are at x. To first order log(time of next / ms) is log(time / ms) +
  // (time of next - time) / time, and the roof's slopes give time - comm_ms themselves.
  Vector solve(const Vector& x, double scale) const {
    Matrix a{};
    Vector b{};
    for (const CostPoint& point : points_) {
      const RoleCost cost = cost_of(x, point.role, given_);
      const PassShape& pass = point.pass;
      const RoofShares share = roof_shares(cost.memory_ms(pass), cost.arithmetic_ms(pass), given_.overlap);
      const double time = time_ms(x, point);
      Vector slope{};  // of log(time) by every parameter
      slope[kWeights] = share.memory * cost.weights_read(pass.rows) / time;
      slope[kKv] = share.memory * pass.batch * pass.context / time;
      slope[kRow] = share.arithmetic * pass.rows / time;
      slope[kAttention] = share.arithmetic * pass.rows * pass.context / time;
      slope[kSample] = pass.batch / time;
      slope[context_of(point.role)] = pass.context / time;
      const double error = std::log(time / point.ms), most = kHuber * scale;
      const double weight = std::abs(error) <= most ? 1 : most / std::abs(error);
      for (size_t i = 0; i < kNumParameters; ++i) {
        b[i] += weight * slope[i] * (1 - given_.comm_ms / time - error);
        for (size_t j = 0; j < kNumParameters; ++j) a[i][j] += weight * slope[i] * slope[j];
      }
    }
    // Parameters differ by six orders of magnitude: solved in units in which the diagonal is 1. Those without a point stay 0.
    // The ridge, far below any noise, decides between parameters that the points cannot tell apart.
    constexpr double kRidge = 1e-11;
    Vector unit;
    for (size_t i = 0; i < kNumParameters; ++i) unit[i] = a[i][i] > 0 ? 1 / std::sqrt(a[i][i]) : 0;
    for (size_t i = 0; i < kNumParameters; ++i) {
      for (size_t j = 0; j < kNumParameters; ++j) a[i][j] *= unit[i] * unit[j];
      a[i][i] = 1 + kRidge;
      b[i] *= unit[i];
    }
    Vector best = solve_nonnegative(a, b);
    for (size_t i = 0; i < kNumParameters; ++i) best[i] *= unit[i];
    return best;
  }

  std::span<const CostPoint> points_;
  const Given given_;
};

Optimum best_of(std::span<const CostPoint> points, double comm_ms, const ShapeShares& shares) {
  Optimum best;
  for (int step = 0; step <= 20; ++step) {
    const Fitter fitter(points, {comm_ms, step / 20.0, shares});
    for (double rows_at_roof = 8; rows_at_roof <= 1024; rows_at_roof *= 2) {
      const Optimum end = fitter.run(rows_at_roof);
      if (end.mean_error < best.mean_error) best = end;
    }
  }
  return best;
}

Status check(std::span<const CostPoint> points, double comm_ms) {
  if (!std::isfinite(comm_ms) || comm_ms < 0) return invalid_argument("comm_ms is negative or not finite");
  std::array<int64_t, kNumCostRoles> count{};
  for (size_t i = 0; i < points.size(); ++i) {
    const CostPoint& point = points[i];
    const PassShape& pass = point.pass;
    const auto refuse = [i](const char* why) { return invalid_argument("point " + std::to_string(i) + ": " + why); };
    for (const double number : {pass.batch, pass.rows, pass.context, point.ms}) {
      if (!(std::abs(number) <= 1e12)) return refuse("a number is not finite or beyond 1e12");  // products must stay finite
    }
    if (pass.batch <= 0 || pass.context < 0) return refuse("the batch is not positive or the context negative");
    if (pass.rows < pass.batch) return refuse("fewer rows than samples");
    if (point.ms - comm_ms < 1e-9) return refuse("the time is not longer than comm_ms");
    if (static_cast<size_t>(point.role) >= kNumCostRoles) return refuse("there is no such role");
    ++count[static_cast<size_t>(point.role)];
  }
  constexpr int64_t kFewest = 6;  // parameters of a role
  constexpr std::array<const char*, kNumCostRoles> kNames = {"the target", "the drafter", "verifications"};
  for (size_t r = 0; r < kNumCostRoles; ++r) {
    const bool may_lack = static_cast<CostRole>(r) == CostRole::kDraft && count[r] == 0;
    if (count[r] < kFewest && !may_lack) return invalid_argument(std::string("fewer than 6 points of ") + kNames[r]);
  }
  return {};
}

}  // namespace

Result<CostFit> fit_cost_model(std::span<const CostPoint> points, double comm_ms, const FitShares& shares) {
  OTR_RETURN_IF_ERROR(check(points, comm_ms));
  std::vector<CostPoint> target, draft;
  for (const CostPoint& point : points) (point.role == CostRole::kDraft ? draft : target).push_back(point);
  CostFit fit;
  fit.model.comm_ms = comm_ms;
  const Optimum best = best_of(target, comm_ms, shares.target);
  for (const CostRole role : {CostRole::kTarget, CostRole::kVerify}) {
    fit.model.roles[static_cast<size_t>(role)] = cost_of(best.x, role, best.given);
  }
  if (!draft.empty()) {
    const Optimum drafter = best_of(draft, comm_ms, shares.drafter);
    fit.model.roles[static_cast<size_t>(CostRole::kDraft)] = cost_of(drafter.x, CostRole::kDraft, drafter.given);
  }
  fit.goodness = goodness_of(fit.model, points);
  for (const CostPoint& point : points) fit.residuals.push_back(relative_error(fit.model, point));
  return fit;
}

std::array<Goodness, kNumCostRoles> goodness_of(const CostModel& model, std::span<const CostPoint> points) {
  std::array<Goodness, kNumCostRoles> all;
  for (size_t r = 0; r < kNumCostRoles; ++r) {
    double sum = 0, squares = 0, missed = 0;
    std::vector<double> errors;
    for (const CostPoint& point : points) {
      if (static_cast<size_t>(point.role) != r) continue;
      const double error = relative_error(model, point);
      errors.push_back(std::abs(error));
      sum += point.ms;
      squares += point.ms * point.ms;
      missed += error * error * point.ms * point.ms;
    }
    if (errors.empty()) continue;
    const double count = static_cast<double>(errors.size()), spread = squares - sum * sum / count;
    all[r] = {static_cast<int64_t>(errors.size()),
              spread > 0    ? 1 - missed / spread
              : missed == 0 ? 1.0
                            : 0.0,
              median(errors), *std::max_element(errors.begin(), errors.end())};
  }
  return all;
}

}  // namespace otr
