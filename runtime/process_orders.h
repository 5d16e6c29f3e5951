// ProcessOrders: what a worker process is to do and has not been told yet (ProcessWorker).
//
// Thread safety: none; its owner's lock guards it. Nothing allocates but `cancels` and `handed_on`, and `relinks` beyond what
// is reserved.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "runtime/link_wire.h"
#include "runtime/sequence_queue.h"
#include "runtime/worker_port.h"
#include "runtime/worker_wire.h"

namespace otr {

struct ProcessOrders {
  SequenceQueue starts;
  std::vector<uint64_t> cancels;
  std::optional<Move> move;
  std::optional<DraftRoles> roles;
  std::optional<Lend> lend;
  std::vector<Relink> relinks;  // of a link the last one
  std::deque<std::pair<WireType, WireBytes>> handed_on;
  bool end_step = false, weights = false, withdraw = false;

  bool empty() const {
    return starts.empty() && cancels.empty() && !move && !roles && !lend && relinks.empty() && handed_on.empty() && !end_step &&
           !weights && !withdraw;
  }
  void discard();
  // The next one, with its contents in *bytes, which are empty before, but for a start, which is *s. None: there is none.
  std::optional<WireType> take(WireBytes* bytes, std::unique_ptr<Sequence>* s);
};

}  // namespace otr
