// Optimiser: what a tick is worth, and the draft that makes it worth most. A tick's value is
//
//   (n + sum of A over the verified nodes) / (levels' draft_ms + verify_ms(nodes))       tokens a millisecond, n rows
//
// By Dinkelbach's method the best value lambda is where  max over drafts of (tokens - lambda * ms) = 0, so that every choice
// comes down to one threshold for the whole batch: a node is verified iff A >= lambda * d verify_ms / d node, and one more
// level is drafted iff what it is expected to bring exceeds lambda times its time. "Do not speculate" is the draft without
// nodes.
//
// Where rows have weights omega, theirs are the tokens that count: A is omega A, and so on.
//
// Thread safety: pure functions and values.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "spec/cost_correction.h"
#include "spec/cost_model.h"
#include "spec/forest.h"

namespace otr {

// What one tick's passes take, by a drafter's cost model.
struct TickTimes {
  const CostModel* cost = nullptr;
  double batch = 1;                                   // samples of the target's pass
  double rows = 1;                                    // its rows without a draft
  double silent = 0;                                  // of them, those whose logits nobody wants
  double context = 0;                                 // mean tokens of a sample
  const CostCorrection* draft_correction = nullptr;   // of a level; null: none
  const CostCorrection* verify_correction = nullptr;  // of the target's pass with drafts; null: none
  const CostCorrection* plain_correction = nullptr;   // of the target's pass without; null: none
  double plain_fixed_ms = 0;                          // whatever else a tick takes that does not look for drafts
  double fixed_ms = 0;                                // and one that does

  // Without a draft. Passes of one row a sample have a correction of their own, so this need not be verify_ms(0).
  double plain_ms() const {
    const double factor = plain_correction == nullptr ? 1 : plain_correction->factor(rows);
    return plain_fixed_ms + factor * cost->verify_ms(batch, rows, context, silent);
  }
  double verify_ms(double nodes) const {
    const double factor = verify_correction == nullptr ? 1 : verify_correction->factor(rows + nodes);
    return fixed_ms + factor * cost->verify_ms(batch, rows + nodes, context, silent);
  }
  // One level that runs `level_rows` rows, and so many tokens that the drafter catches up with.
  double draft_ms(double level_rows, double caught_up = 0) const {
    const double factor = draft_correction == nullptr ? 1 : draft_correction->factor(level_rows + caught_up);
    return factor * cost->draft_ms(level_rows, context, caught_up);
  }
  // The slopes there: of one more node, of one more row.
  double node_ms(double nodes) const;
  double row_ms(double level_rows) const;
};

// A row's prospects with a drafter before it has drafted: chains that are kept with p a token, as SpecActor models them.
struct RowOdds {
  float p = 0;
  int32_t max_depth = 0;
  float known = 0;        // tokens a tick that cheaper drafts are expected to bring it anyway
  float known_nodes = 0;  // and what is verified for them; at least as many are taken
  float once_ms = 0;      // this tick's share of what the drafter has to run before it drafts for the row
  float weight = 1;       // omega: what its tokens count; the mean of all rows is 1
};

struct DraftDepth {
  int32_t depth = 0;  // levels; 0: none of the rows drafts
  double tokens = 0;  // of all rows, the n that plain decoding yields included
  double ms = 0;      // of the tick

  double value() const { return ms > 0 ? tokens / ms : 0; }
};

class Optimiser {
 public:
  void reserve(size_t rows) { row_depth_.reserve(rows), trial_.reserve(rows); }

  // How deep each row should draft, at most `most`. `guess`: the value of a similar tick, so that fewer iterations are needed.
  // Within 1.5 % of the best depths there are where passes' times are convex in their rows, within 3 % where the first rows of
  // a mixture of experts cost most.
  DraftDepth best_depth(const TickTimes& times, std::span<const RowOdds> rows, int32_t most, double guess = 0);
  // By row, of the last best_depth().
  const std::vector<int32_t>& row_depth() const { return row_depth_; }

  // The least A of a node of the next level's frontier that is worth its row; more than 1: none is, or all of them together are
  // not worth the pass. `p`: the mean share of a place's children that is kept. `nodes`: how many there are before it.
  static float least_acceptance(const TickTimes& times, double value, double p, std::span<const float> frontier, double nodes);

  struct Cut {
    int32_t nodes = 0;  // the best ones are verified
    double tokens = 0, ms = 0;
    double value() const { return ms > 0 ? tokens / ms : 0; }
  };
  // How many nodes to verify, at most `most`. `acceptance`: of all nodes, descending; `spent_ms`: what drafting them took;
  // `rows`: n. Exact where verify_ms is convex, within 1 % for mixtures of experts; but none where the best cut is worth less
  // than 3 % more than plain decoding.
  static Cut best_cut(const TickTimes& times, std::span<const float> acceptance, double spent_ms, int32_t rows, int32_t most);

 private:
  // Of the rows that draft, by level: how many, and what they bring beyond lookups. Nodes of lookups.
  struct Levels {
    std::array<double, kMaxDraftDepth + 1> count = {}, gain = {};
    double once_ms = 0, known_of_drafting = 0, known_of_others = 0;
  };
  void price_rows(const TickTimes& times, std::span<const RowOdds> rows, int32_t most, double value, double level_rows,
                  double nodes);

  std::vector<int32_t> row_depth_;
  std::vector<int32_t> trial_;
  Levels levels_;
};

}  // namespace otr
