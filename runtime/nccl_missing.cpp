// In place of nccl_port.cpp where the build has no CUDA, or found no nccl.h.
#include "runtime/page_port.h"

namespace otr {
namespace {

Status missing() { return unsupported("NCCL: this build has none (it needs OUTRIDER_CUDA and nccl.h)"); }

}  // namespace

Result<std::unique_ptr<PagePort>> open_nccl_port(const std::string&, int32_t, std::shared_ptr<Accelerator>, int32_t) {
  return missing();
}
Result<NetId> make_nccl_id(const std::string&) { return missing(); }

}  // namespace otr
