// What a profile says of speculation, and its pictures: measured against predicted times and where speculation pays; the
// ladder.
//
// Thread safety: pure functions.
#pragma once

#include <array>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/profile_file.h"
#include "spec/ladder.h"

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

// The ladder of a profile's drafters and of one that runs no model, over the powers of two of its batches.
struct ProfileLadder {
  int32_t context;
  std::vector<std::string> drafters;
  Ladder ladder;
};
inline constexpr const char* kLookup = "lookup";
inline constexpr std::array<double, 7> kLadderAcceptances = {0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95};
inline constexpr int32_t kDeepestRung = 32;  // policy auto's

// REQUIRES, all of these: the profile has fits.
ProfileLadder ladder_of(const Profile& profile, int32_t context, std::span<const double> acceptances = kLadderAcceptances);
std::string ladder_svg(const Profile& profile, int32_t context);
std::string profile_svg(const Profile& profile);

}  // namespace otr::cli
