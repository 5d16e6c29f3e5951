// Policy: what chooses the strategy of a tick: which drafters propose, how deep, and how many nodes the target verifies.
//
//   off                                                     plain decoding, one token a row and tick
//   auto[:<variant>…]                                       what pays most, tick by tick: spec/auto_chooser.h
//   fixed:<drafter>[+<drafter>…]:<depth>[:<top_k>[:<verify_tokens>[:q]]]   always the same strategy
//   fixed:<drafter>[+<drafter>…]:<window>:decoupled         the one of them with a model of its own drafts on other workers, in
//                                                           windows of so many tokens (sched/window.h)
//   specactor, rhymerl, tlt, efficientrollout               as the papers of these names choose: see the choosers
//
// `depth`: of the deepest node. `top_k`: candidates a drafter may propose at one place; 1: a chain. `verify_tokens`: nodes of a
// row's forest; by default depth for chains and depth * top_k for trees, times the number of drafters. Drafters share them
// equally, the first ones taking what is left over; a tick has 512 nodes at most, or one row's, divided by the rows that draft.
// `q`: drafters with a model propose what is likeliest under their own q, without the noise, and grow trees by it (TLT,
// section 5.1): for comparison. Of the papers' policies these are the most that their choosers ask for.
//
// Variants of auto, each at most once, show what its parts are worth: `uncoupled`: drafters draw with noise of their own, and a
// draft is kept if it happens to be equal; `chain`: one candidate a place; `q`: as above; `untuned`: the model's word counts,
// without the tuner; `leapfrog`: workers that have nothing to run race with replicas that exchange what they find
// (sched/leapfrog.h); `stragglers`: rows count by the tokens that samples of their length still have to come
// (spec/length_hazard.h).
//
// Thread safety: values.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/status.h"

namespace otr {

inline constexpr int32_t kMaxTopK = 16;

enum class PolicyKind { kOff, kFixed, kAuto, kSpecactor, kRhymerl, kTlt, kEfficientrollout };

struct Policy {
  PolicyKind kind = PolicyKind::kOff;
  std::vector<std::string> drafters;  // names; of the papers' policies set by name_drafters()
  int32_t depth = 0;
  int32_t top_k = 1;
  int32_t verify_tokens = 0;
  bool by_q = false;
  bool decoupled = false;
  bool uncoupled = false;
  bool untuned = false;
  bool stragglers = false;
  bool leapfrog = false;
};

// kInvalidArgument, with the reason, for what is not in the grammar or out of range.
Result<Policy> parse_policy(std::string_view text);

// Names the drafters of a paper's policy; `models` are the defined ones that are models of their own. Leaves off and fixed
// alone.
//   auto               as the engine says: all it has
//   specactor          ngram, history, self and all models
//   rhymerl            history
//   tlt                the first model, self if there is none; then ngram
//   efficientrollout   self
// kInvalidArgument if there are more than kMaxDrafters.
Status name_drafters(std::span<const std::string> models, Policy* policy);

// Its chooser weighs costs: ChooserOptions.costs.
bool needs_costs(const Policy& policy);

// Whether drafter history uses stored log-probs. The papers do not know how.
bool uses_history_logprobs(const Policy& policy);

// A drafter's name: letters, digits, '_', '-' and '.', at most 64 of them.
bool is_drafter_name(std::string_view name);

}  // namespace otr
