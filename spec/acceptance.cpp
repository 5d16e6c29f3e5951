#include "spec/acceptance.h"

#include <algorithm>
#include <bit>

namespace otr {
namespace {

constexpr double kDrafterWeight = 4, kDrafterDecay = 0.995;  // places; a forest
constexpr double kRowWeight = 4, kRowDecay = 0.85, kFlatteredDecay = 0.99;
constexpr double kTrustWeight = 1, kTrustDecay = 0.99;  // kept nodes; a forest
constexpr double kTrustFades = 0.999;                   // a tick
constexpr double kMostSure = 0.999;

}  // namespace

const Acceptance::Row* Acceptance::find(int32_t slot, uint64_t sequence) const {
  const size_t at = static_cast<size_t>(slot);
  return at < rows_.size() && rows_[at].sequence == sequence ? &rows_[at] : nullptr;
}

double Acceptance::trust(int drafter) const {
  const Share& v = verdicts_[static_cast<size_t>(drafter)];
  return (v.kept + kTrustWeight) / (v.places + kTrustWeight);
}

float Acceptance::p(int drafter) const {
  const Share& s = drafters_[static_cast<size_t>(drafter)];
  const double share = (s.kept + kDrafterWeight * kPrior) / (s.places + kDrafterWeight);
  return static_cast<float>(std::clamp(share * trust(drafter), 0.0, kMostSure));
}

float Acceptance::p(int drafter, int32_t slot, uint64_t sequence) const {
  const Row* row = find(slot, sequence);
  const double prior = static_cast<double>(p(drafter));
  if (row == nullptr) return static_cast<float>(prior);
  const Share& s = row->shares[static_cast<size_t>(drafter)];
  const double share = (s.kept * trust(drafter) + kRowWeight * prior) / (s.places + kRowWeight);
  return static_cast<float>(std::clamp(share, 0.0, kMostSure));
}

Acceptance::Known Acceptance::known(int32_t slot, uint64_t sequence) const {
  const Row* row = find(slot, sequence);
  if (row == nullptr || row->known_weight == 0) return {};
  return {.tokens = static_cast<float>(row->known_tokens / row->known_weight),
          .nodes = static_cast<float>(row->known_nodes / row->known_weight)};
}

Acceptance::Row& Acceptance::row_of(int32_t slot, uint64_t sequence) {
  const size_t at = static_cast<size_t>(slot);
  if (at >= rows_.size()) rows_.resize(at + 1);
  if (rows_[at].sequence != sequence) rows_[at] = Row{.sequence = sequence, .shares = {}};
  return rows_[at];
}

void Acceptance::note_lookups(int32_t slot, uint64_t sequence, const Forest& verified, uint32_t lookups, bool beside_model) {
  Row& row = row_of(slot, sequence);
  double tokens = 0, nodes = 0;
  for (const DraftNode& node : verified.nodes()) {
    if ((node.drafters & lookups) == 0) continue;
    tokens += static_cast<double>(node.worth);
    ++nodes;
  }
  // Beside a model deeper places are verified than lookups alone would be worth.
  const bool flattered = beside_model && tokens * row.known_weight > row.known_tokens;
  const double decay = flattered ? kFlatteredDecay : kRowDecay, weight = (1 - decay) / (1 - kRowDecay);
  row.known_tokens = decay * row.known_tokens + weight * tokens;
  row.known_nodes = decay * row.known_nodes + weight * nodes;
  row.known_weight = decay * row.known_weight + weight;
}

bool Acceptance::note_draft(int32_t slot, uint64_t sequence, const Forest& forest, uint32_t models) {
  Row& row = row_of(slot, sequence);
  bool drew = false;
  for (uint32_t bits = models; bits != 0; bits &= bits - 1) {
    const size_t d = static_cast<size_t>(std::countr_zero(bits));
    const uint16_t mine = static_cast<uint16_t>(1u << d);
    // Children come after their parents; a place is expanded if it has a child of the drafter's.
    Share seen{.places = 0, .kept = 0};
    uint64_t counted[kMaxDraftNodes / 64 + 1] = {};
    bool root = false;
    for (const DraftNode& node : forest.nodes()) {
      if ((node.drafters & mine) == 0) continue;
      seen.kept += static_cast<double>(node.acceptance);
      if (node.parent == Forest::kRoot) {
        root = true;
        continue;
      }
      uint64_t& word = counted[node.parent / 64];
      const uint64_t bit = uint64_t{1} << (node.parent % 64);
      if ((word & bit) == 0) seen.places += static_cast<double>(forest[node.parent].acceptance);
      word |= bit;
    }
    if (!root) continue;  // it had no room or no numbers: that says nothing of its drafts
    drew = true;
    seen.places += 1;
    for (Share* share : {&row.shares[d], &drafters_[d]}) {
      share->decay(share == &drafters_[d] ? kDrafterDecay : kRowDecay);
      share->places += seen.places;
      share->kept += std::min(seen.kept, seen.places);
    }
  }
  return drew;
}

void Acceptance::note_verdict(const Forest& verified, std::span<const int32_t> kept) {
  std::array<double, kMaxDrafters> foretold = {}, came = {};
  const auto each = [](uint32_t bits, auto&& count) {
    for (; bits != 0; bits &= bits - 1) count(static_cast<size_t>(std::countr_zero(bits)));
  };
  uint32_t proposers = 0;
  for (const DraftNode& node : verified.nodes()) {
    proposers |= node.drafters;
    each(node.drafters, [&](size_t d) { foretold[d] += static_cast<double>(node.acceptance); });
  }
  for (const int32_t node : kept) each(verified[node].drafters, [&](size_t d) { came[d] += 1; });
  each(proposers, [&](size_t d) {
    verdicts_[d].decay(kTrustDecay);
    verdicts_[d].places += foretold[d];
    verdicts_[d].kept += came[d];
  });
}

void Acceptance::end_tick() {
  for (Share& v : verdicts_) v.decay(kTrustFades);
}

}  // namespace otr
