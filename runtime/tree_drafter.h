// TreeDrafter: what drafters with a model of their own have in common. A tick's drafts grow level by level: one pass of the
// model runs every sequence's frontier, the best candidates with the target's own noise become the next nodes, and so on
// (spec/draft_tree.h). A chain is the tree with one candidate a place.
//
// On a device chains grow there: a level's draws are the next level's tokens, and the host waits once a propose(). They are
// asked for in begin(), so that retrieval drafters look up on the host meanwhile. Not where a gate decides level by level, nor
// where penalties depend on what was drafted.
//
// Sibling nodes share a position, so every path of a tree but the first has pages of its own (memory/draft_paths.h) for the
// length of the propose(). Derived classes say where the committed tokens' keys are.
//
// Thread safety: used by the worker's thread.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "graph/row_batch_builder.h"
#include "memory/draft_paths.h"
#include "runtime/draft_penalties.h"
#include "runtime/model_runner.h"
#include "runtime/pace.h"
#include "runtime/pass_timer.h"
#include "runtime/request.h"
#include "spec/calibration.h"
#include "spec/draft_tree.h"
#include "spec/drafter.h"

namespace otr {

struct TreeDrafterOptions {
  int number;              // its bit in the forests
  int32_t top_k;           // candidates at one place, at most
  int32_t max_nodes;       // of one sequence's tree
  int32_t max_batch;       // rows of one propose()
  int32_t max_draft_rows;  // nodes of all trees of one propose()
  int32_t chunk;           // further rows of a pass, for committed tokens
  bool by_q = false;       // candidates without noise, and trees grown by the drafter's own q: for comparison
  bool uncoupled = false;  // draws with noise that the target does not see: for comparison
  PacedLevels paced = {};  // what its passes take, and where it errs: for emulation
};

class TreeDrafter : public Drafter {
 public:
  void join(const DraftSequence& sequence) override;
  bool begin(std::span<const DraftRow> rows, const DraftLimits& limits) override;
  DraftWork propose(std::span<const DraftRow> rows, const DraftLimits& limits) override;
  void observe(const DraftVerdict& verdict) override;
  void leave(int32_t slot) override;
  // What a level runs.
  TimedProgram timed_program() const { return {&model_, &program_}; }

 protected:
  using LiveSequences = std::vector<std::unique_ptr<Sequence>>;  // by slot

  TreeDrafter(const TreeDrafterOptions& options, ModelRunner& model, const ForwardProgram& program, const LiveSequences& live);
  // On a device, before the first propose(). Errors: kOutOfMemory.
  Status create_chain();

  // The row takes part with drafts of up to `depth` tokens: its committed tokens have a place, and all drafted ones but the
  // last. False: it goes without a draft. `before`: the rows asked already.
  virtual bool admit(const DraftRow& row, std::span<const DraftRow> before, int32_t depth, PageWork* work) = 0;
  // Runs committed tokens until those that are left fit one pass.
  virtual void catch_up(std::span<const DraftRow>) {}
  // Committed positions whose keys are there: less than all.
  virtual int32_t num_computed(int32_t slot) const = 0;
  virtual const PageTable& table(int32_t slot) const = 0;
  // The pass to come computes all committed positions.
  virtual void run_committed(const DraftSequence&) {}
  // Of the tokens drafted on the sequence's own pages, the first `count` were kept.
  virtual void keep_drafted(int32_t, int32_t) {}

  const Sequence& sequence(int32_t slot) const { return *live_[static_cast<size_t>(slot)]; }
  bool drafts(int32_t slot) const { return member_of(slot) != nullptr && member_of(slot)->drafts; }
  RowBatchBuilder& rows() { return rows_; }
  void run_rows();  // the program over rows()
  int32_t max_rows() const { return options_.max_batch + options_.chunk + options_.max_draft_rows; }
  static ProgramBucket bucket(const TreeDrafterOptions& o) {
    return {.max_rows = o.max_batch + o.chunk + o.max_draft_rows, .max_logit_rows = o.max_batch + o.max_draft_rows};
  }

  ModelRunner& model_;
  const ForwardProgram& program_;

 private:
  struct Member {
    bool drafts = false;      // takes part in this propose()
    int32_t depth = 0;        // levels it may have
    int32_t newest_draw = 0;  // of a chain
    DraftTree tree;
    std::vector<int32_t> place_of;  // by tree node: its index in `places`, if it was expanded
    std::vector<Candidates> places;
    std::vector<int32_t> own_chain;  // tokens whose keys stand on the sequence's own pages, behind the committed ones
  };
  // The row of the last propose() that the sequence had; null: none.
  const Member* member_of(int32_t slot) const {
    const int32_t at = static_cast<size_t>(slot) < row_of_.size() ? row_of_[static_cast<size_t>(slot)] : kNoRow;
    return at >= 0 ? &members_[static_cast<size_t>(at)] : nullptr;
  }
  Member& member(int32_t slot) { return members_[static_cast<size_t>(row_of_[static_cast<size_t>(slot)])]; }
  const Calibration& calibration(const Sequence& s) const { return calibrations_[s.group->sampling.temperature == 0.0f]; }
  void start(std::span<const DraftRow> rows, const DraftLimits& limits);
  int32_t deepest(std::span<const DraftRow> rows) const;  // of those that draft
  void pass_gate(std::span<const DraftRow> rows, int32_t level, DraftGate* gate);
  void note_work();  // of the pass over rows()
  void run_level(std::span<const DraftRow> rows, int32_t level, int32_t top_k);
  void spoil_candidates();
  void add_rows(const DraftRow& row, int32_t level);
  void add_draw(const DraftSequence& s, int32_t depth);
  void hang(Member* m, const Sequence& s, int32_t node, const Candidates& c);
  bool may_chain(std::span<const DraftRow> rows, const DraftLimits& limits) const;
  void launch_chains(std::span<const DraftRow> rows);
  void collect_chains(std::span<const DraftRow> rows);
  void run_chain_level(std::span<const DraftRow> rows, int32_t level);
  bool place(const DraftSequence& s, Member* m, int32_t node, bool first_child, int32_t max_depth);

  const TreeDrafterOptions options_;
  const LiveSequences& live_;
  // That one tree expands, those included that better ones displace later: with 3 a level, 97 of 64 nodes and 32 levels. The
  // tree has room for all their children.
  size_t most_places() const { return 2 * static_cast<size_t>(options_.max_nodes); }
  static constexpr int32_t kAbsent = -2, kNoRow = -1;
  std::vector<Member> members_;  // by row of the last propose(): as many as have joined, at most max_batch
  std::vector<int32_t> row_of_;  // by slot: of the last propose(); kNoRow: none; kAbsent: no sequence that joined
  int32_t num_joined_ = 0;
  RowBatchBuilder rows_;
  DraftPaths paths_;
  PageWork page_work_;
  DraftPenalties penalties_;
  std::vector<int32_t> tokens_;
  std::vector<CandidateDraw> draws_;
  std::vector<Candidates> candidates_;
  std::unique_ptr<DeviceChain> chain_;        // on a device
  std::vector<int32_t> from_;                 // by row of a chain's level: the draw that gives its token
  std::vector<float> frontier_;               // A of all frontiers' nodes
  DraftWork work_;                            // of the propose() that runs
  bool begun_ = false;                        // begin() has started it
  bool chains_ = false;                       // its chains grow on the device
  std::array<float, kMaxCandidates> growth_;  // of one place's candidates: what the tree is grown by
  Calibration calibrations_[2];               // of sampled and of greedy sequences
};

}  // namespace otr
