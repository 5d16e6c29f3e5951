// PagePort: one process' end of what joins the GPUs of an engine's worker processes. nccl_port.h is the one there is.
//
// Nothing waits without a limit: join() and move() return when they are done, have failed, `given_up()` says that another end
// is lost, or the port's patience is over. After an error the port is to leave(), which ends what is under way, before it joins
// again. That has a patience too; where it fails, something may touch the pages for ever, and the port is good for nothing but
// to leave() again, which fails at once.
//
// Thread safety: one thread at a time. Errors: kLost: given up; kTimeout; kInternal with the library's text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "kernels/base/accelerator.h"
#include "runtime/page_net_wire.h"

namespace otr {

// Pages between this device's memory and that of the end with rank `peer`, which moves as many the other way about.
struct PageMove {
  bool sends = false;
  int32_t peer = 0;
  std::span<std::byte* const> pages;  // on the device
  size_t page_bytes = 0;
  uint64_t word = 0;  // goes with them: given where they are sent, found where they come
};

class PagePort {
 public:
  using GivenUp = std::function<bool()>;

  virtual ~PagePort() = default;
  virtual Status join(const NetId& id, int32_t size, int32_t rank, const GivenUp& given_up) = 0;
  virtual Status move(PageMove* move, const GivenUp& given_up) = 0;  // REQUIRES: joined
  virtual Status leave() = 0;
};

// By NCCL, which is the shared library of this name or path. `device` is that of `gpu`, and not used by another thread while
// the port is opened or destroyed. `patience_ms`: of a move and of leaving; joining has three times as long. Errors:
// kUnsupported where the build has no NCCL, the library is not there, or is too old.
Result<std::unique_ptr<PagePort>> open_nccl_port(const std::string& library, int32_t gpu, std::shared_ptr<Accelerator> device,
                                                 int32_t patience_ms);
// A new one, for one generation. Whoever makes it has to live until all have joined.
Result<NetId> make_nccl_id(const std::string& library);

}  // namespace otr
