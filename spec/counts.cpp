#include "spec/counts.h"

#include <algorithm>

namespace otr {

void SpecCounts::add(const Forest& forest, std::span<const int32_t> accepted, int32_t num_new, int32_t judged_depth) {
  ++decode_steps;
  decode_tokens += num_new;
  if (forest.empty()) return;
  ++verify_steps;
  accepted_tokens += static_cast<int64_t>(accepted.size());
  uint32_t proposers = 0;
  const auto each_drafter = [this](const DraftNode& node, const auto& count) {
    for (uint32_t bits = node.drafters; bits != 0; bits &= bits - 1) count(drafters[static_cast<size_t>(__builtin_ctz(bits))]);
  };
  const auto rank_of = [](const DraftNode& node) { return std::min<size_t>(node.rank, DrafterCounts::kRanks - 1); };
  for (const DraftNode& node : forest.nodes()) {
    if (node.depth > judged_depth) continue;
    ++draft_tokens;
    proposers |= node.drafters;
    each_drafter(node, [&](DrafterCounts& d) {
      ++d.drafted;
      ++d.drafted_at[static_cast<size_t>(node.depth - 1)];
      ++d.drafted_rank[rank_of(node)];
    });
  }
  for (const int32_t kept : accepted) {
    const DraftNode& node = forest[kept];
    each_drafter(node, [&](DrafterCounts& d) {
      ++d.accepted;
      ++d.accepted_at[static_cast<size_t>(node.depth - 1)];
      ++d.accepted_rank[rank_of(node)];
    });
  }
  for (; proposers != 0; proposers &= proposers - 1) ++drafters[static_cast<size_t>(__builtin_ctz(proposers))].drafts;
}

}  // namespace otr
