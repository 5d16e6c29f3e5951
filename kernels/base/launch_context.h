// LaunchContext: where a launch runs: on the host's threads, or in an accelerator's queue. A thread pool is one by itself.
//
// Thread safety: a pair of references; see what they refer to.
#pragma once

#include "kernels/base/accelerator.h"

namespace otr {

class ThreadPool;

struct LaunchContext {
  LaunchContext(ThreadPool& threads) : pool(threads) {}
  LaunchContext(ThreadPool& threads, Accelerator* device) : pool(threads), accelerator(device) {}

  ThreadPool& pool;
  Accelerator* accelerator = nullptr;  // null: host
};

}  // namespace otr
