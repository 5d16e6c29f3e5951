// SelfDrafter ("self"): the target itself in 4 bits, lm_head included (EfficientRollout, section 3.1). It has no KV cache: it
// reads the target's keys and writes provisional ones for the drafted tokens, on pages the engine has made writable;
// verification overwrites them, or they are never read. So it has nothing to catch up with, and costs its weights and a
// program's buffers, but no cache.
//
// Coupled mode only. The target quantises its weights (ModelRunner::quantize).
//
// Thread safety: used by the worker's thread. Errors: create() gives kOutOfMemory.
#pragma once

#include <memory>

#include "runtime/tree_drafter.h"

namespace otr {

class SelfDrafter final : public TreeDrafter {
 public:
  // `target` and `live` outlive the drafter.
  static Result<std::unique_ptr<SelfDrafter>> create(const TreeDrafterOptions& options, ModelRunner& target,
                                                     const LiveSequences& live);

 private:
  SelfDrafter(const TreeDrafterOptions& options, ModelRunner& target, const LiveSequences& live);

  // Not before the target has run all tokens but the newest.
  bool admit(const DraftRow& row, std::span<const DraftRow>, int32_t, PageWork*) override {
    return sequence(row.sequence.slot).num_computed == num_computed(row.sequence.slot);
  }
  int32_t num_computed(int32_t slot) const override { return sequence(slot).num_tokens() - 1; }
  const PageTable& table(int32_t slot) const override { return sequence(slot).pages; }
};

}  // namespace otr
