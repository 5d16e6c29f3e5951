#include "spec/ladder.h"

#include "spec/optimiser.h"

namespace otr {

Ladder make_ladder(std::span<const CostModel> drafters, std::span<const int32_t> batches, std::span<const double> acceptances,
                   double context, int32_t most) {
  Ladder ladder{
      .batches = {batches.begin(), batches.end()}, .acceptances = {acceptances.begin(), acceptances.end()}, .rungs = {}};
  Optimiser optimiser;
  for (const CostModel& cost : drafters) {
    for (const int32_t batch : batches) {
      const double n = batch;
      const TickTimes times{.cost = &cost, .batch = n, .rows = n, .context = context};
      for (const double acceptance : acceptances) {
        const std::vector<RowOdds> rows(static_cast<size_t>(batch),
                                        RowOdds{.p = static_cast<float>(acceptance), .max_depth = most});
        const DraftDepth found = optimiser.best_depth(times, rows, most);
        ladder.rungs.push_back({.depth = found.depth, .speedup = found.depth == 0 ? 1 : found.value() * times.plain_ms() / n});
      }
    }
  }
  return ladder;
}

}  // namespace otr
