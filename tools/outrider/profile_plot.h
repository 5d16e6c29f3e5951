// What a profile says of speculation, and its picture: measured against predicted times, and where speculation pays.
//
// Thread safety: pure functions.
#pragma once

#include <array>
#include <optional>
#include <span>
#include <string>

#include "runtime/profile_file.h"

namespace otr::cli {

// Of tokens that are kept, one after another.
inline constexpr std::array<double, 3> kAcceptances = {0.6, 0.8, 0.9};
inline constexpr int kDeepestChain = 16;

struct BestChain {
  int depth;
  double speedup;  // of chains of that depth over plain decoding
};

// Tokens of a chain of `depth`, the target's own included, if each is kept with this probability where those before it were.
double chain_tokens(double acceptance, int depth);
// The predicted best depth, 1 … kDeepestChain.
BestChain best_chain(const CostModel& costs, double batch, double context, double acceptance);
// The same of the depths that were timed, each shape once; nothing where the passes were not.
std::optional<BestChain> measured_chain(std::span<const TimedPass> passes, int32_t drafter, double batch, double context,
                                        double acceptance);

// REQUIRES: the profile has fits.
std::string profile_svg(const Profile& profile);

}  // namespace otr::cli
