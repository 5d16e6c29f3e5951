// WorkerShare: what a worker gets of what its engine has. The workers split batch, threads and CPUs among them.
//
// Thread safety: values.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/base/thread_pool.h"
#include "runtime/engine_options.h"

namespace otr {

struct WorkerShare {
  int32_t max_batch, max_draft_rows, num_threads, first_cpu;

  WorkerShare(const EngineOptions& o, const Policy& policy, int32_t index) {
    const int32_t threads = o.device.num_threads > 0 ? o.device.num_threads : ThreadPool::default_threads();
    max_batch = part_of(o.max_batch, index, o.num_workers);
    max_draft_rows = draft_row_limit(policy);
    num_threads = std::max(1, part_of(threads, index, o.num_workers));
    first_cpu = 0;
    for (int32_t i = 0; i < index; ++i) first_cpu += std::max(1, part_of(threads, i, o.num_workers));
  }

 private:
  // More nodes a tick than this do not pay on any machine we know, and each costs a row of logits.
  static constexpr int32_t kMostDraftRows = 512, kMostDraftRowsOfAuto = 256;

  // What the i-th of `parts` gets of a whole.
  static int32_t part_of(int32_t whole, int32_t i, int32_t parts) { return whole / parts + (i < whole % parts ? 1 : 0); }
  int32_t draft_row_limit(const Policy& policy) const {
    const int32_t most = policy.kind == PolicyKind::kAuto ? kMostDraftRowsOfAuto : kMostDraftRows;
    return std::max(policy.verify_tokens, std::min(max_batch * policy.verify_tokens, most));
  }
};

}  // namespace otr
