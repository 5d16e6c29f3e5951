// Chooser: what a policy does in a tick: it chooses who drafts, how deep, and what is verified.
//
// A tick: choose() sets the plan; drafters propose, each level of those with a model passing the gate; select() cuts the
// forests; the target verifies; observe() tells what came of it. "Do not speculate" is a plan without drafters. Nothing chosen
// here can change a sample, only when it comes.
//
// Thread safety: used by the engine thread. Choosers allocate only while the batch grows beyond what they have seen.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "spec/drafter.h"
#include "spec/forest.h"

namespace otr {

// A sequence that may draft in this tick.
struct TickRow {
  uint64_t sequence;                                        // its name: unique in the engine
  int32_t slot;                                             // small and its own while it lives
  int32_t context;                                          // tokens it has: prompt and response
  int32_t generated;                                        // of them, the response's
  int32_t max_depth;                                        // of its draft: tokens it may still produce, pages to spare; >= 1
  int32_t most_left = std::numeric_limits<int32_t>::max();  // tokens that its limit leaves it
  int32_t rung = 0;  // not 0: a replica; policy specactor drafts with drafter rung - 1 for it, auto with the next best ones
  std::array<int32_t, kMaxDrafters> behind = {};  // by drafter: see Drafter::behind
};

struct TickView {
  std::span<const TickRow> rows;  // that may draft; in the order of the tick's runs
  int32_t batch = 0;              // sequences that take part in the tick
  int32_t other_rows =
      0;  // rows of the target's pass beside one for each of `rows`: prefill, scores, sequences that may not draft
  int32_t silent_rows = 0;  // of them, those without logits
  double context = 0;       // mean of `rows`; 0 without any
  bool decoupled = false;   // the drafter on other workers drafts for them

  // A prompt runs: some sequence has more rows than one.
  bool prefills() const { return other_rows > batch - static_cast<int32_t>(rows.size()); }
};

// What is done in a tick. REQUIRES: where drafters != 0, depth, top_k and verify_tokens are within the limits of policy.h.
struct TickPlan {
  uint32_t drafters = 0;  // bit d: drafter d proposes; 0: plain decoding
  int32_t depth = 0;      // of the deepest node
  int32_t top_k = 1;
  int32_t verify_tokens = 0;  // nodes of a row's forest
  int32_t drafter_nodes =
      0;  // of one drafter in a row's forest, where select() cuts them to verify_tokens; 0: equal shares of verify_tokens
  std::vector<int32_t> row_depth;    // by row: its own limit, 0: it goes without; empty: depth for all
  std::vector<int32_t> model_depth;  // by row: a lower limit for drafters with a model; empty: none

  // What the chooser expects, for the trace; 0 where it expects nothing.
  double expected_ms = 0;
  double expected_tokens = 0;  // of all rows of the view

  void clear() {
    drafters = 0, depth = 0, top_k = 1, verify_tokens = drafter_nodes = 0, expected_ms = expected_tokens = 0;
    row_depth.clear();
    model_depth.clear();
  }
};

struct RowOutcome {
  int32_t row;                         // of the view
  int32_t drafted;                     // nodes that were verified
  int32_t accepted;                    // of them, kept
  int32_t num_new;                     // tokens the tick gave it
  bool ended;                          // its response is complete
  std::span<const int32_t> kept = {};  // the accepted nodes of its forest
};

struct TickOutcome {
  std::span<const RowOutcome> rows = {};        // in the view's order; without those that failed
  std::span<const Forest* const> forests = {};  // what was verified, by row of the view
  DraftWork work = {};                          // of drafters with a model
  int32_t verify_rows = 0;                      // rows of the target's pass, all of them
  double draft_ms = 0;                          // inside the drafters
  double verify_ms = 0;                         // inside the target's pass and its draws
  double tick_ms = 0;                           // all of it
};

class Chooser {
 public:
  virtual ~Chooser() = default;
  // Fills `plan`, which is clear.
  virtual void choose(const TickView& view, TickPlan* plan) = 0;
  // Asked between a tick's drafters; null: they grow to the plan's depth.
  virtual DraftGate* gate() { return nullptr; }
  // Cuts the forests, one a row of the view, to the plan's verify_tokens each and `max_nodes` together; a node goes only with
  // all that is below it. `work`: what drafting took. May set what the plan expects.
  virtual void select(const TickView&, TickPlan*, std::span<Forest* const>, const DraftWork&, int32_t /*max_nodes*/) {}
  virtual void observe(const TickView& view, const TickPlan& plan, const TickOutcome& outcome) = 0;
  // The engine has run dry: a step is over.
  virtual void end_step() {}
};

}  // namespace otr
