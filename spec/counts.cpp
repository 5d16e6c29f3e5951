#include "spec/counts.h"

#include <algorithm>

namespace otr {
namespace {

template <typename Counts>
void add_each(const Counts& from, Counts* to) {
  for (size_t i = 0; i < from.size(); ++i) (*to)[i] += from[i];
}

}  // namespace

void DrafterCounts::add(const DrafterCounts& d) {
  drafts += d.drafts;
  drafted += d.drafted;
  accepted += d.accepted;
  add_each(d.drafted_at, &drafted_at);
  add_each(d.accepted_at, &accepted_at);
  add_each(d.drafted_rank, &drafted_rank);
  add_each(d.accepted_rank, &accepted_rank);
  add_each(d.judged_at_pi, &judged_at_pi);
  add_each(d.kept_at_pi, &kept_at_pi);
  add_each(d.sum_of_pi, &sum_of_pi);
}

void SpecCounts::add(const SpecCounts& other) {
  decode_steps += other.decode_steps;
  decode_tokens += other.decode_tokens;
  verify_steps += other.verify_steps;
  draft_tokens += other.draft_tokens;
  accepted_tokens += other.accepted_tokens;
  for (size_t d = 0; d < drafters.size(); ++d) drafters[d].add(other.drafters[d]);
}

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
  int32_t parent = Forest::kRoot;  // each kept node, and the root, judges its children
  for (size_t depth = 0; depth <= accepted.size() && static_cast<int32_t>(depth) < judged_depth; ++depth) {
    const int32_t kept = depth < accepted.size() ? accepted[depth] : Forest::kNone;
    const float before = parent == Forest::kRoot ? 1.0f : forest[parent].acceptance;
    for (int32_t i = parent + 1; i < forest.size(); ++i) {
      const DraftNode& node = forest[i];
      if (node.parent != parent || (node.drafters & (node.drafters - 1)) != 0) continue;
      DrafterCounts& d = drafters[static_cast<size_t>(__builtin_ctz(node.drafters))];
      const float pi = before > 0.0f ? std::clamp(node.acceptance / before, 0.0f, 1.0f) : 0.0f;
      const size_t tenth = std::min<size_t>(static_cast<size_t>(pi * DrafterCounts::kTenths), DrafterCounts::kTenths - 1);
      ++d.judged_at_pi[tenth];
      d.kept_at_pi[tenth] += i == kept;
      d.sum_of_pi[tenth] += static_cast<double>(pi);
    }
    parent = kept;
  }
  for (; proposers != 0; proposers &= proposers - 1) ++drafters[static_cast<size_t>(__builtin_ctz(proposers))].drafts;
}

}  // namespace otr
