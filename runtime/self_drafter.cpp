#include "runtime/self_drafter.h"

namespace otr {

Result<std::unique_ptr<SelfDrafter>> SelfDrafter::create(const TreeDrafterOptions& options, ModelRunner& target, const LiveSequences& live) {
  OTR_RETURN_IF_ERROR(target.add_quantized(bucket(options)));
  return std::unique_ptr<SelfDrafter>(new SelfDrafter(options, target, live));
}

SelfDrafter::SelfDrafter(const TreeDrafterOptions& options, ModelRunner& target, const LiveSequences& live)
    : TreeDrafter(options, target, target.quantized_program(), live) {}

}  // namespace otr
