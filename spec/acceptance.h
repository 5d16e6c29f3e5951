// Acceptance: how likely drafts are kept, before they are drafted: for each drafter as a whole, and for each sequence with it.
//
// What is counted are the drafters' own calibrated probabilities, not verdicts: a forest tells at every place that was expanded
// what share of the target's choices its children cover, and that is known with far less noise than the one choice that was
// made, also where the nodes were not verified. Verdicts check it: trust is kept / foretold over the verified nodes, by
// drafter; it comes back to 1 where a drafter is not verified any more, so that it gets another chance.
//
//   p of a sequence and drafter = (sum of A over the drafter's nodes) / (sum of A over the places it expanded)
//
// with decay, and the drafter's own p as a prior; the drafter's p begins at kPrior. Kept between steps.
//
// Thread safety: single-threaded. Allocates only for a slot not seen before.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "spec/forest.h"

namespace otr {

class Acceptance {
 public:
  static constexpr double kPrior = 0.8;

  // The share of the target's next choices that this drafter's nodes would hold.
  float p(int drafter, int32_t slot, uint64_t sequence) const;
  float p(int drafter) const;  // of all sequences
  // Tokens a tick that the sequence's drafts by lookup are expected to bring, and the nodes that are verified for it: means of
  // late.
  struct Known {
    float tokens = 0, nodes = 0;
  };
  Known known(int32_t slot, uint64_t sequence) const;

  // A sequence's forest as it was drafted. `models`: bits of the drafters with a model that took part. False: none of them has
  // drafted for it.
  bool note_draft(int32_t slot, uint64_t sequence, const Forest& forest, uint32_t models);
  // What is verified of it. `lookups`: bits of the others. `beside_model`: one of those took part.
  void note_lookups(int32_t slot, uint64_t sequence, const Forest& verified, uint32_t lookups, bool beside_model = false);
  // What was verified of it, and the nodes that were kept.
  void note_verdict(const Forest& verified, std::span<const int32_t> kept);
  void end_tick();
  // Kept / foretold.
  double trust(int drafter) const;
  // Tokens of its drafts, of late, that were foretold and verified.
  double seen(int drafter) const { return verdicts_[static_cast<size_t>(drafter)].places; }

 private:
  struct Share {
    double places = 0, kept = 0;
    void decay(double by) { places *= by, kept *= by; }
  };
  struct Row {
    uint64_t sequence = ~uint64_t{0};
    double known_tokens = 0, known_nodes = 0, known_weight = 0;
    std::array<Share, kMaxDrafters> shares;
  };
  const Row* find(int32_t slot, uint64_t sequence) const;
  Row& row_of(int32_t slot, uint64_t sequence);

  std::vector<Row> rows_;  // by slot
  std::array<Share, kMaxDrafters> drafters_;
  std::array<Share, kMaxDrafters> verdicts_;  // places: foretold
};

}  // namespace otr
