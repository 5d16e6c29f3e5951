// LinkBell: what wakes whoever reads the other end of a DraftLink: a worker of this process, or the relay to another process.
//
// Thread safety: ring() may be called from any thread; it neither waits nor allocates.
#pragma once

namespace otr {

class LinkBell {
 public:
  virtual ~LinkBell() = default;
  virtual void ring() = 0;
};

}  // namespace otr
