// Acceptance: a drafted token is kept if and only if it equals the token that the target itself drew at that position.
//
// That is the whole rule, for every drafter and temperature: noise is a function of the position and the token id, so the target's
// draw is the same whether or not it was drafted, and keeping equals changes nothing (rejection sampling with shared noise would
// bias the output).
//
// Pure functions.
#pragma once

#include <cstdint>
#include <span>

namespace otr {

// A chain of drafted tokens after a row; `drawn` holds the target's draw at every row, the last row's included:
// drawn.size() == draft.size() + 1. Returns how many drafted tokens are kept; drawn[0 … that count] are the tokens to commit.
inline int32_t count_accepted(std::span<const int32_t> draft, std::span<const int32_t> drawn) {
  int32_t kept = 0;
  while (kept < static_cast<int32_t>(draft.size()) && draft[static_cast<size_t>(kept)] == drawn[static_cast<size_t>(kept)]) ++kept;
  return kept;
}

}  // namespace otr
