// make_chooser: a policy's chooser.
//
// Thread safety: pure function.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "spec/chooser.h"
#include "spec/cost_model.h"
#include "spec/policy.h"

namespace otr {

struct DrafterTraits {
  std::string name;
  bool has_model = false;      // drafts level by level, each at the cost of a pass; else it looks up, for next to nothing
  bool needs_prefill = false;  // it has keys and values of its own: a sequence's first draft runs all its tokens
  bool decoupled = false;      // drafts on other workers, if TickView::decoupled; in a tick it takes no time
  int32_t max_context = std::numeric_limits<int32_t>::max();  // positions that it can run: nothing is drafted past them
};

struct ChooserOptions {
  Policy policy;
  std::vector<DrafterTraits> drafters;  // by bit; as many as the policy has
  std::vector<CostModel> costs;         // by bit, the target's part the same in all; never empty if needs_costs(policy)
  int32_t max_batch = 1;
};

// Null for policy off.
std::unique_ptr<Chooser> make_chooser(const ChooserOptions& options);

}  // namespace otr
