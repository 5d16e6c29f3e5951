// Ladder: what drafters are worth before anything was drafted: the Optimiser's choice for a batch of equal samples, tabulated
// over drafter, batch and acceptance (SpecActor, section 4.2: "from various acceptance rates to speedup").
//
// It needs costs alone: acceptance is simulated, as a share of tokens that are kept one after another, so no target has to run.
// Policy auto starts from the same choice, at the acceptance that the steps before have left and at Acceptance::kPrior in the
// first; it asks the Optimiser itself, tick by tick, for the table is of equal samples.
//
// Thread safety: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "spec/cost_model.h"

namespace otr {

struct Rung {
  int32_t depth = 0;   // of every sample's chain; 0: no draft is worth its time
  double speedup = 1;  // over the same tick without a draft
};

struct Ladder {
  std::vector<int32_t> batches;
  std::vector<double> acceptances;
  std::vector<Rung> rungs;  // by drafter, then batch, then acceptance

  const Rung& at(size_t drafter, size_t batch, size_t acceptance) const {
    return rungs[(drafter * batches.size() + batch) * acceptances.size() + acceptance];
  }
};

// `context`: tokens of each sample. `most`: levels at most. REQUIRES: batches >= 1, acceptances from 0 to 1, most >= 0.
Ladder make_ladder(std::span<const CostModel> drafters, std::span<const int32_t> batches, std::span<const double> acceptances,
                   double context, int32_t most);

}  // namespace otr
