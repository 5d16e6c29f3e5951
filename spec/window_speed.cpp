#include "spec/window_speed.h"

#include <algorithm>
#include <cmath>

namespace otr {

double coupled_tokens(double p, int32_t window) {
  double tokens = 1, all_kept = 1;
  for (int32_t i = 0; i < window; ++i) tokens += all_kept *= p;
  return tokens;
}

namespace {

// Of ceil(x) between 0 and x.
double sum_of_ceil(double x) {
  const double whole = std::ceil(x);
  return whole * x - whole * (whole - 1) / 2;
}

}  // namespace

double window_wait_ms(int32_t window, const WindowTimes& t, double busy) {
  const double soonest = window * t.draft_ms, latest = soonest + t.level * t.draft_ms;
  if (busy <= 0) return (soonest + latest) / 2;
  const double first = soonest / t.verify_ms, last = latest / t.verify_ms;
  const double passes = last > first ? (sum_of_ceil(last) - sum_of_ceil(first)) / (last - first) : std::ceil(first);
  return busy * passes * t.verify_ms + (1 - busy) * (soonest + latest) / 2;
}

double window_speed(WindowForm form, double p, int32_t window, const WindowTimes& times) {
  const double draft = window * times.draft_ms, verify = times.verify_ms, whole = std::pow(p, window);
  switch (form) {
    case WindowForm::kCoupled: return coupled_tokens(p, window) / (draft + verify);
    // The renewal form times 1 - p^w, which is right for p = 1 too: a window brings 1 + p + … + p^(w-1) tokens, and is the
    // last of its run with probability 1 - p^w.
    case WindowForm::kDecoupled:
    case WindowForm::kDecoupledInBatch: {
      const double missed = window_wait_ms(window, times, form == WindowForm::kDecoupled ? 0 : times.busy);
      return coupled_tokens(p, window - 1) / ((1 - whole) * (missed + verify) + whole * std::max(draft, verify));
    }
    case WindowForm::kPaperDecoupled: {
      double tokens = window * whole, kept = 1;
      for (int32_t a = 0; a < window; ++a, kept *= p) tokens += kept * (1 - p) * (a + 1) / 2;
      return tokens / std::max(draft, verify);
    }
  }
  return 0;
}

double WindowCosts::draft_ms(double batch) const { return draft == nullptr ? 0 : draft->draft_ms(batch / drafters, context); }

int32_t WindowCosts::bound(WindowForm form, int32_t window, double line, int32_t most) const {
  const double draft_1 = draft_ms(1), verify_1 = verify_ms(form, window, 1);
  const double draft_slope = line > 1 ? (draft_ms(line) - draft_1) / (line - 1) : 0;
  const double verify_slope = line > 1 ? (verify_ms(form, window, line) - verify_1) / (line - 1) : 0;
  const auto ratio = [most](double v, double d) {
    if (v <= 0) return 0;
    return v >= d * most ? most : static_cast<int32_t>(std::ceil(v / d));
  };
  return std::max({1, ratio(verify_slope, draft_slope), ratio(verify_1 - verify_slope, draft_1 - draft_slope)});
}

WindowChoice best_window(WindowForm form, double p, const WindowCosts& costs, double batch, double line, int32_t most) {
  WindowChoice best;
  form = form_in(form, batch);
  for (int32_t w = 1; w <= most && w <= costs.bound(form, w, line, most); ++w) {
    const double speed = window_speed(form, p, w, costs.times(form, w, batch));
    if (speed > best.speed) best = {w, speed};
  }
  return best;
}

}  // namespace otr
