// Batcher: which sequences run in a tick, how many of their positions, and who gives way when pages run out.
//
// Continuous batching with chunked prefill. Running sequences are served by age; a sequence one token behind decodes, one
// further behind takes from the tick's prefill chunk. Waiting sequences join, oldest first, while the batch and the pages
// allow. When the running sequences need more pages than there are, those that are lent come back; then the one with the most
// left to do (among those whose preemption frees a page) is sent back to wait, its tokens kept; the oldest running sequence is
// immune, so there is always progress. Nothing decided here can change a result, only when it comes.
//
// Pure: sees sequences through BatchHost only. Single-threaded. Allocates only in add().
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "sched/slot_heap.h"

namespace otr {

// A sequence as the batcher sees it.
struct SequenceView {
  int32_t num_target;           // positions that should be computed: to decode, all known tokens
  int32_t num_computed;         // positions whose keys and values are in pages
  int32_t remaining;            // tokens it may still produce: what is left to do
  int32_t logits_from;          // positions from here on want logits (each takes a row of the logits buffer)
  int32_t runs_to = INT32_MAX;  // positions from here on are not to be run yet: their keys and values are on the way
  bool waits = false;  // for its draft: if it runs it keeps its place and has no rows. The same all through a schedule()
};

// Positions [begin, end) of sequence `slot` run in this tick.
struct RowRun {
  int32_t slot;
  int32_t begin, end;
};

class BatchHost {
 public:
  virtual ~BatchHost() = default;
  virtual SequenceView view(int32_t slot) const = 0;
  virtual int32_t pages_available() const = 0;
  // Takes back pages that are lent to other workers. False: there are none.
  virtual bool reclaim_pages() { return false; }
  virtual int32_t pages_held(int32_t slot) const = 0;
  // Pages that only this sequence holds: what preempting it frees.
  virtual int32_t pages_private(int32_t slot) const = 0;
  virtual int32_t pages_to_write(int32_t slot, int32_t begin, int32_t end) const = 0;
  // The sequence is about to join: reuse what the prefix cache has. May raise num_computed.
  virtual void attach_prefix(int32_t slot) = 0;
  // Gives all of the sequence's pages back; num_computed becomes 0. `counted`: it was running.
  virtual void drop_pages(int32_t slot, bool counted) = 0;
  // Makes [begin, end) writable. REQUIRES: pages_to_write() <= pages_available().
  virtual void take_pages(int32_t slot, int32_t begin, int32_t end) = 0;
};

struct BatchLimits {
  int32_t max_batch;       // running sequences
  int32_t prefill_chunk;   // rows a tick for sequences more than one token behind
  int32_t max_logit_rows;  // >= max_batch
};

class Batcher {
 public:
  explicit Batcher(const BatchLimits& limits);

  // `age` orders sequences: smaller is older; unique.
  void add(int32_t slot, uint64_t age);
  // The sequence is finished, cancelled, or goes to another worker. REQUIRES: it was added and not removed.
  void remove(int32_t slot);

  bool empty() const { return running_.empty() && waiting_.empty(); }
  int32_t num_running() const { return static_cast<int32_t>(running_.size()); }
  int32_t num_waiting() const { return static_cast<int32_t>(waiting_.size()); }
  int32_t running_slot(int32_t index) const { return running_[static_cast<size_t>(index)].slot; }  // by age
  int32_t oldest_waiting() const { return waiting_.empty() ? -1 : waiting_.oldest().slot; }

  // Sends the sequence with the most left to do back to wait, but never the oldest running one; among those that hold pages,
  // one whose pages would come free. False if there is none.
  bool preempt_one(BatchHost* host);

  // Plans one tick and takes its pages. Valid until the next call. Empty only if there is nothing to run, or what runs waits.
  const std::vector<RowRun>& schedule(BatchHost* host);

 private:
  using Entry = SlotHeap::Entry;
  int32_t rows_wanted(const SequenceView& v, int32_t chunk_left, int32_t logit_rows_left) const;
  int32_t pages_wanted(const BatchHost& host) const;
  void admit(BatchHost* host);

  const BatchLimits limits_;
  std::vector<Entry> running_;  // ascending age
  SlotHeap waiting_;
  std::vector<RowRun> plan_;
};

}  // namespace otr
