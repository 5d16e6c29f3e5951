// FixedChooser: policy fixed:…: every tick the same strategy.
//
// Thread safety: as Chooser.
#pragma once

#include "spec/chooser.h"
#include "spec/policy.h"

namespace otr {

class FixedChooser final : public Chooser {
 public:
  explicit FixedChooser(const Policy& policy) : policy_(policy) {}

  void choose(const TickView&, TickPlan* plan) override {
    plan->drafters = (1u << policy_.drafters.size()) - 1;
    plan->depth = policy_.depth;
    plan->top_k = policy_.top_k;
    plan->verify_tokens = policy_.verify_tokens;
  }
  void observe(const TickView&, const TickPlan&, const TickOutcome&) override {}

 private:
  const Policy policy_;
};

}  // namespace otr
