#include "runtime/self_drafter.h"

namespace otr {

Result<std::unique_ptr<SelfDrafter>> SelfDrafter::create(const TreeDrafterOptions& options, ModelRunner& target,
                                                         const LiveSequences& live) {
  TreeDrafterOptions o = options;
  o.chunk = 0;  // it never runs more of a sequence than its last token
  OTR_RETURN_IF_ERROR(target.add_quantized(bucket(o)));
  std::unique_ptr<SelfDrafter> drafter(new SelfDrafter(o, target, live));
  OTR_RETURN_IF_ERROR(drafter->create_chain());
  return drafter;
}

SelfDrafter::SelfDrafter(const TreeDrafterOptions& options, ModelRunner& target, const LiveSequences& live)
    : TreeDrafter(options, target, target.quantized_program(), live) {}

}  // namespace otr
