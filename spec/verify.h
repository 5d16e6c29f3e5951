// Acceptance: a drafted token is kept if and only if it equals the token that the target itself drew at that place.
//
// That is the whole rule, for every drafter and temperature: noise is a function of the position and the token id, so the
// target's draw is the same whether or not it was drafted, and keeping equals changes nothing (rejection sampling with shared
// noise would bias the output).
//
// Pure functions.
#pragma once

#include <cstdint>
#include <span>

#include "spec/forest.h"

namespace otr {

// Follows the target's draws down a forest. drawn[0] is its draw after the root, drawn[1 + i] its draw after node i, each made
// with that path as its past. `path` receives the kept nodes, one a depth; returns how many. The tokens to commit are drawn[0]
// and then drawn[1 + path[d]] for every kept node: each kept token, and one more that needs no draft. REQUIRES: drawn.size() ==
// forest.size() + 1; path.size() >= forest.max_depth().
inline int32_t accept(const Forest& forest, std::span<const int32_t> drawn, std::span<int32_t> path) {
  int32_t kept = 0, node = Forest::kRoot;
  while ((node = forest.child(node, drawn[static_cast<size_t>(node + 1)])) != Forest::kNone) {
    path[static_cast<size_t>(kept++)] = node;
  }
  return kept;
}

}  // namespace otr
