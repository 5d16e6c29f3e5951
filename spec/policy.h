// Policy: what chooses the strategy of a tick: which drafters propose, how deep, and how many nodes the target verifies.
//
//   off                                                     plain decoding, one token a row and tick
//   auto                                                    what pays most, tick by tick: spec/auto_chooser.h
//   fixed:<drafter>[+<drafter>…]:<depth>[:<top_k>[:<verify_tokens>[:q]]]   always the same strategy
//
// `depth`: of the deepest node. `top_k`: candidates a drafter may propose at one place; 1: a chain. `verify_tokens`: nodes of a
// row's forest; by default depth for chains and depth * top_k for trees, times the number of drafters. Drafters share them equally,
// the first ones taking what is left over; a tick has 512 nodes at most, or one row's, divided by the rows that draft. `q`: drafters
// with a model propose what is likeliest under their own q, without the noise, and grow trees by it (TLT, section 5.1): for comparison.
//
// Thread safety: values.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/status.h"

namespace otr {

inline constexpr int32_t kMaxTopK = 16;

enum class PolicyKind { kOff, kFixed, kAuto };

struct Policy {
  PolicyKind kind = PolicyKind::kOff;
  std::vector<std::string> drafters;  // names
  int32_t depth = 0;
  int32_t top_k = 1;
  int32_t verify_tokens = 0;
  bool by_q = false;
};

// Whether its chooser asks what passes cost.
inline bool needs_costs(const Policy& policy) { return policy.kind == PolicyKind::kAuto; }

// kInvalidArgument, with the reason, for what is not in the grammar or out of range.
Result<Policy> parse_policy(std::string_view text);

// A drafter's name: letters, digits, '_', '-' and '.', at most 64 of them.
bool is_drafter_name(std::string_view name);

}  // namespace otr
