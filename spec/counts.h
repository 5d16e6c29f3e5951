// Counts of speculation, raw, so that any ratio can be formed from them. Nodes below the token that ended a sequence are not
// counted at all: nobody judged them.
//
// Thread safety: values.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "spec/forest.h"

namespace otr {

// Of one drafter. A node that several drafters proposed counts for each.
struct DrafterCounts {
  static constexpr int kRanks = 17;  // the last one: all ranks from there on

  int64_t drafts = 0;                                                     // forests with at least one of its nodes
  int64_t drafted = 0;                                                    // nodes
  int64_t accepted = 0;                                                   // nodes kept
  std::array<int64_t, kMaxDraftDepth> drafted_at = {}, accepted_at = {};  // by depth - 1
  std::array<int64_t, kRanks> drafted_rank = {}, accepted_rank = {};      // by candidate rank
  // Nodes that it alone proposed behind a kept one, by tenths of the modelled probability that they are kept: whether pi is
  // right.
  static constexpr int kTenths = 10;
  std::array<int64_t, kTenths> judged_at_pi = {}, kept_at_pi = {};
  std::array<double, kTenths> sum_of_pi = {};

  void add(const DrafterCounts& other);
};

struct SpecCounts {
  int64_t decode_steps = 0;     // times the target ran a sequence's last token
  int64_t decode_tokens = 0;    // tokens that came of it: tau = decode_tokens / decode_steps
  int64_t verify_steps = 0;     // decode steps with at least one node
  int64_t draft_tokens = 0;     // nodes verified
  int64_t accepted_tokens = 0;  // nodes kept; verify steps produce these and one more token each
  std::array<DrafterCounts, kMaxDrafters> drafters;

  // A decode step: `num_new` tokens were committed, `accepted` are the kept nodes among those judged. Nodes deeper than
  // `judged_depth` were not judged.
  void add(const Forest& forest, std::span<const int32_t> accepted, int32_t num_new, int32_t judged_depth);
  // What another worker counted.
  void add(const SpecCounts& other);
};

}  // namespace otr
