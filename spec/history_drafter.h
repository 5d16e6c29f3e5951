// HistoryDrafter ("history"): what the samples of the same prompt said in the last epoch is proposed again.
//
// The last 7 … 3 tokens of a sequence are looked up among the prompt's old responses; the places found are followed together, a
// place leaving where its response says something else. If nothing matches, the places of the last match are taken up again as
// many tokens later: a sample that says another number often goes on alike. Where places differ, or may be left by the target:
//
//   without log-probs  the branch with the greatest sum of its responses' weights goes first (rewards weigh them); how far to go
//                      is the sequence's window: 2 tokens, 2 more when all were kept, 2 again when one was not, at most 32;
//                      acceptance is the share of nodes kept so far, by length of the match and rank of the branch
//   with log-probs     the noise is known, so the known child i with the greatest M = log p_i + G_i is what the target will draw,
//                      unless a token unknown to the history beats it: probability of that not to happen exp(-r e^-M), r = 1 -
//                      sum p_i the mass unknown. That is exact where all that came before is the same, as it mostly is behind 7
//                      tokens (0.974 expected, 0.974 kept), and too much behind fewer (3: 0.98, 0.65): acceptance is this times
//                      the ratio of kept to expected so far, by length of the match. Drafts below kMinAcceptance are dropped;
//                      there is no window
//
// In a tree (top_k > 1) nodes are added by acceptance, the greatest first. Length of the match counts the nodes on the way.
//
// A sequence uses the index that is current when it joins. If its prompt is not there, it looks again once there is another
// index: a worker process reads its history while its first samples run. Single-threaded.
#pragma once

#include <algorithm>
#include <array>
#include <functional>
#include <memory>
#include <vector>

#include "spec/drafter.h"
#include "spec/history_index.h"
#include "spec/keep_rate.h"

namespace otr {

// The current index; may be null. Called at every join and proposal.
using HistorySource = std::function<std::shared_ptr<const HistoryIndex>()>;

class HistoryDrafter final : public Drafter {
 public:
  static constexpr int32_t kFirstWindow = 2, kWindowStep = 2, kMaxWindow = 32;
  // Tokens a verify and share of drafts kept, tinymath's second epoch on unchanged weights, depth 16:
  //   0: 5.49, 34 %    0.1: 5.42, 49 %    0.2: 5.24, 55 %    0.3: 4.74, 65 %    0.5: 4.42, 75 %
  static constexpr float kMinAcceptance = 0.2f;

  // `number`: the drafter's bit in the forests. `use_logprobs`: false: an index with log-probs is used as one without.
  HistoryDrafter(int number, HistorySource source, bool use_logprobs = true);

  void join(const DraftSequence& sequence) override;
  DraftWork propose(std::span<const DraftRow> rows, const DraftLimits& limits) override;
  void observe(const DraftVerdict& verdict) override;
  void leave(int32_t slot) override;

 private:
  static constexpr int32_t kRanks = 4;  // the last one: all ranks from there on
  static constexpr size_t kMaxAnchor = 8;
  using Rates = std::array<KeepRate, kRanks>;
  // Kept nodes over expected ones, mostly of the last thousands. It drifts back to 1 while what it would be asked of is dropped
  // for its sake, so that this is tried again.
  struct Trust {
    static constexpr float kPrior = 4.0f, kKeep = 1.0f - 1.0f / 4096;
    float kept = kPrior, expected = kPrior;
    float value() const { return std::min(kept / expected, 1.0f); }
    void add(bool is_kept, float expectation) {
      kept = kKeep * kept + static_cast<float>(is_kept);
      expected = kKeep * expected + expectation;
    }
    void fade() {
      kept = kPrior + kKeep * (kept - kPrior);
      expected = kPrior + kKeep * (expected - kPrior);
    }
  };

  struct Member {
    std::shared_ptr<const PromptHistory> history;  // null: the prompt is new
    uint64_t indices_seen = 0;                     // of the drafter's, when the prompt was last looked for
    int32_t window = kFirstWindow;
    bool proposed = false;                                // in this tick
    bool coupled = false;                                 // that with log-probs
    int32_t match_length = 0;                             // of that; 0: nothing matched
    std::array<PromptHistory::Place, kMaxAnchor> anchor;  // of the last match
    size_t num_anchors = 0;
    size_t anchor_tokens = 0;  // length of the sequence then
  };
  // Some of the places that a match or a node has, in places_.
  struct Range {
    size_t begin, end;
  };
  // What may come after a node.
  struct Child {
    int32_t token;
    float weight;       // of its places
    float probability;  // p; with log-probs
    float score;        // the greatest goes first
  };
  // A node that may be added.
  struct Candidate {
    float acceptance;
    int32_t parent, token, depth, rank;
    Range parent_places;
  };
  std::shared_ptr<const HistoryIndex> current_index();
  void find_history(const DraftSequence& s, const HistoryIndex& index);
  void look_again(std::span<const DraftRow> rows);
  bool find_places(const DraftSequence& s, Member* m);
  void propose_row(const DraftRow& row, int32_t top_k, int32_t max_nodes);
  void list_children(const PromptHistory& history, Range places);
  void estimate(const PromptHistory& history, Range places, const DraftSequence& sequence, uint32_t position);
  void expand(const DraftRow& row, int32_t parent, int32_t depth, float acceptance, Range places, int32_t top_k);
  Range follow(const PromptHistory& history, Range places, int32_t token);
  Member& member(int32_t slot) { return members_[static_cast<size_t>(slot)]; }

  const int number_;
  const HistorySource source_;
  const bool use_logprobs_;
  std::vector<Member> members_;                            // by slot
  std::weak_ptr<const HistoryIndex> latest_;               // weak: between two steps an old one must not be kept for it
  uint64_t indices_seen_ = 0;                              // how many have been the latest
  std::array<Rates, PromptHistory::kMaxMatch + 1> rates_;  // by match length and rank
  std::array<Trust, PromptHistory::kMaxMatch + 1> trust_;  // by match length
  // Of the row at hand.
  std::vector<PromptHistory::Place> places_;
  std::vector<Child> children_;
  std::vector<Candidate> candidates_;  // a heap
};

}  // namespace otr
