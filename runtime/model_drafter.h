// ModelDrafter: a smaller checkpoint with the target's vocabulary, with pages of its own. It draws as the target will, with the
// same noise, filters and penalties, from its own logits.
//
// Before it drafts it catches up with the committed tokens, prompt included (the samples of a group share the prompt's full
// pages); what it computed for tokens that were kept stays, in the prefix cache when the sequence has left. If its pages run
// out, sequences that do not draft in this tick give theirs up; if that is not enough, a row goes without a draft.
//
// Thread safety: used by the worker's thread. Errors: create() as ModelRunner, or kInvalidArgument for another vocabulary.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "runtime/device.h"
#include "runtime/drafter_model.h"
#include "runtime/tree_drafter.h"

namespace otr {

class ModelDrafter final : public TreeDrafter {
 public:
  // `live`: the worker's sequences by slot. It and `device` outlive the drafter. `share`: another worker's runner of this
  // model, whose weights it uses; null: it loads its own, or attaches another process' (DrafterModel::shared).
  static Result<std::unique_ptr<ModelDrafter>> create(const TreeDrafterOptions& options, const DrafterModel& drafter,
                                                      Device& device, const LiveSequences& live,
                                                      const ModelRunner* share = nullptr);
  ~ModelDrafter() override;

  void join(const DraftSequence& sequence) override;
  void leave(int32_t slot) override;
  int32_t behind(const DraftSequence& sequence) const override;
  // The sequence has lost its tokens from position `num_tokens` on, and is to get others.
  void rewind(int32_t slot, int32_t num_tokens);
  // What the pages hold is lost: all is to be computed anew.
  void forget();

  const ModelRunner& model() const { return *runner_; }
  ModelRunner& model() { return *runner_; }

 private:
  struct Cache {
    PageTable pages;
    int32_t num_computed = 0;  // committed positions in `pages`
  };

  ModelDrafter(const TreeDrafterOptions& options, std::unique_ptr<ModelRunner> runner, const LiveSequences& live);
  Cache& cache(int32_t slot) { return caches_[static_cast<size_t>(slot)]; }
  bool may_start(const DraftRow& row, std::span<const DraftRow> before);
  void advance(const DraftSequence& s, int32_t end);

  bool admit(const DraftRow& row, std::span<const DraftRow> before, int32_t depth, PageWork* work) override;
  void catch_up(std::span<const DraftRow> rows) override;
  int32_t num_computed(int32_t slot) const override { return caches_[static_cast<size_t>(slot)].num_computed; }
  const PageTable& table(int32_t slot) const override { return caches_[static_cast<size_t>(slot)].pages; }
  void run_committed(const DraftSequence& s) override { advance(s, static_cast<int32_t>(s.tokens.size())); }
  void keep_drafted(int32_t slot, int32_t count) override;

  std::unique_ptr<ModelRunner> runner_;
  std::vector<Cache> caches_;  // by slot
};

}  // namespace otr
