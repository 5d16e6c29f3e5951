// What tests of choosers share: a tick's view and outcome as one writes them down.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "spec/make_chooser.h"

namespace otr {

// A batch of samples that may draft; slot and name are the index.
struct TestTick {
  explicit TestTick(int32_t batch, int32_t context = 100, int32_t max_depth = 64) {
    for (int32_t i = 0; i < batch; ++i) {
      rows.push_back(
          {.sequence = static_cast<uint64_t>(1000 + i), .slot = i, .context = context, .generated = 1, .max_depth = max_depth});
    }
    view = {.rows = rows, .batch = batch, .other_rows = 0, .context = static_cast<double>(context)};
  }
  TestTick(const TestTick&) = delete;
  TestTick& operator=(const TestTick&) = delete;

  std::vector<TickRow> rows;
  TickView view;
};

inline TickPlan plan_of(Chooser* chooser, const TickView& view) {
  TickPlan plan;
  chooser->choose(view, &plan);
  return plan;
}

// Every row of the tick: so many drafted and so many of them kept.
inline void observe(Chooser* chooser, const TickView& view, const TickPlan& plan,
                    const std::vector<std::pair<int32_t, int32_t>>& drafted_kept, double tick_ms = 1, int32_t passes = 1) {
  std::vector<RowOutcome> rows;
  for (size_t i = 0; i < drafted_kept.size(); ++i) {
    const auto [drafted, kept] = drafted_kept[i];
    rows.push_back({.row = static_cast<int32_t>(i), .drafted = drafted, .accepted = kept, .num_new = kept + 1, .ended = false});
  }
  chooser->observe(view, plan, {.rows = rows, .work = {.passes = passes, .rows = passes}, .tick_ms = tick_ms});
}

// One tick in which every row drafts what the plan asks for and keeps `kept` of it. Returns the plan.
inline TickPlan tick(Chooser* chooser, const TickView& view, int32_t kept, double tick_ms = 1) {
  const TickPlan plan = plan_of(chooser, view);
  const int32_t drafted = plan.drafters == 0 ? 0 : plan.depth;
  observe(chooser, view, plan, std::vector<std::pair<int32_t, int32_t>>(view.rows.size(), {drafted, std::min(kept, drafted)}),
          tick_ms);
  return plan;
}

// Every pass costs weights_ms + row_ms * rows; a level of a draft `draft_ms` + draft_row_ms * batch.
inline CostModel affine_costs(double weights_ms, double row_ms, double draft_ms, double draft_row_ms) {
  CostModel m;
  const auto set = [&m](CostRole role, double fixed, double row) {
    RoleCost& cost = m.roles[static_cast<size_t>(role)];
    cost.weights_ms = fixed;
    cost.row_ms = row;
    cost.overlap = 0;  // the sum of both
  };
  set(CostRole::kTarget, weights_ms, row_ms);
  set(CostRole::kVerify, weights_ms, row_ms);
  set(CostRole::kDraft, draft_ms, draft_row_ms);
  return m;
}

}  // namespace otr
