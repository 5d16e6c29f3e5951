// ModelDrafter: a smaller checkpoint with the target's vocabulary, with pages of its own. It draws as the target will, with the same
// noise, filters and penalties, from its own logits.
//
// Before it drafts it catches up with the committed tokens, prompt included (sharing the prompt's full pages inside a group);
// what it computed for tokens that were kept stays. If its pages run out, sequences that do not draft in this tick give theirs
// up; if that is not enough, a row goes without a draft.
//
// Thread safety: used by the engine thread. Errors: create() as ModelRunner, or kInvalidArgument for another vocabulary.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "graph/row_batch_builder.h"
#include "runtime/draft_penalties.h"
#include "runtime/worker.h"
#include "spec/drafter.h"
#include "spec/keep_rate.h"

namespace otr {

struct ModelDrafterOptions {
  int number;         // its bit in the forests
  std::string name;
  std::string path;
  int32_t max_batch;  // rows of one propose()
  int32_t chunk;      // further rows of a pass that catches up
  int32_t num_pages;
};

class ModelDrafter final : public Drafter {
 public:
  // `live`: the engine's sequences by slot. It and `worker` outlive the drafter.
  static Result<std::unique_ptr<ModelDrafter>> create(const ModelDrafterOptions& options, Worker& worker,
                                                      const std::vector<std::unique_ptr<Sequence>>& live);
  ~ModelDrafter() override;

  void join(const DraftSequence& sequence) override;
  void propose(std::span<const DraftRow> rows, int32_t top_k, int32_t max_nodes) override;
  void observe(const DraftVerdict& verdict) override;
  void leave(int32_t slot) override;

  const ModelRunner& model() const { return *model_; }

 private:
  struct Member {
    bool drafts = false;         // takes part in this propose()
    PageTable pages;
    int32_t num_computed = 0;    // committed positions in `pages`
    std::vector<int32_t> draft;  // the last proposal
    int32_t draft_computed = 0;  // of its tokens, how many are in `pages` behind the committed ones
    int32_t tip = Forest::kRoot; // its deepest node
  };

  ModelDrafter(const ModelDrafterOptions& options, std::unique_ptr<ModelRunner> model, const std::vector<std::unique_ptr<Sequence>>& live);
  Member& member(int32_t slot) { return members_[static_cast<size_t>(slot)]; }
  const Sequence& sequence(int32_t slot) const { return *live_[static_cast<size_t>(slot)]; }
  bool may_start(std::span<const DraftRow> before, const DraftRow& row);
  bool take_pages(const DraftRow& row, int32_t depth);
  void catch_up(std::span<const DraftRow> rows);
  void advance(const DraftSequence& s, int32_t end);
  void run_level(std::span<const DraftRow> rows, int32_t level, int32_t max_nodes);

  const ModelDrafterOptions options_;
  std::unique_ptr<ModelRunner> model_;
  const std::vector<std::unique_ptr<Sequence>>& live_;
  std::vector<Member> members_;  // by slot
  RowBatchBuilder rows_;
  PageWork page_work_;
  DraftPenalties penalties_;
  std::vector<SampleDraw> draws_;
  std::vector<SampleResult> results_;
  KeepRate rate_;
};

}  // namespace otr
