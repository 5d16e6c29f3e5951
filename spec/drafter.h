// Drafter: whoever rides ahead. It proposes nodes after the last committed token of a sequence; the target decides.
//
// Nothing a drafter does can change a result, only when it comes: see verify.h. A sequence is known by its slot in its worker's
// table from join() to leave(); between them it may be preempted and resumed without the drafter being told.
//
// Thread safety: used by a worker's thread.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "kernels/base/noise.h"
#include "spec/forest.h"

namespace otr {

// What a drafter may know of a sequence. The spans are valid during the call.
struct DraftSequence {
  int32_t slot;
  uint64_t group;
  std::span<const int32_t> tokens;  // prompt and response so far
  int32_t num_prompt;
  NoiseStream noise;         // what the target will draw with
  float temperature = 1.0f;  // 0: without noise
};

// A sequence that wants nodes at the depths 1 … max_depth.
struct DraftRow {
  DraftSequence sequence;
  int32_t max_depth;
  Forest* forest;  // may hold other drafters' nodes already
};

// A sequence whose response has grown.
struct DraftVerdict {
  DraftSequence sequence;             // the new tokens included
  int32_t num_new;                    // tokens
  const Forest* forest;               // what was verified; may be empty
  std::span<const int32_t> accepted;  // nodes that were kept, by depth
};

// Asked by drafters that grow level by level, which may cost more than it brings.
class DraftGate {
 public:
  virtual ~DraftGate() = default;
  // Level `level`, 2 or more, would run a row for each of these nodes, whose A is given. Returns the least A that is worth its
  // row: nodes below it stay without children. More than 1: the draft ends here.
  virtual float least_acceptance(int drafter, int32_t level, std::span<const float> acceptance) = 0;
};

// What a propose() took of a model of the drafter's own; nothing for retrieval.
struct DraftWork {
  int32_t passes = 0, rows = 0;
  int32_t silent = 0;  // of the rows, those without logits: tokens that it caught up with
};

struct DraftLimits {
  int32_t top_k = 1;          // candidates at one place, at most
  int32_t max_nodes = 0;      // of one row, at most
  DraftGate* gate = nullptr;  // null: levels are grown as far as depth and nodes allow
};

class Drafter {
 public:
  virtual ~Drafter() = default;
  // A sequence will be decoded. One that comes from another worker has a part of its response already.
  virtual void join(const DraftSequence& sequence) = 0;
  // Asks a device for what it can do by itself while other drafters propose. True: it has, and the propose() of these rows and
  // limits, which follows, waits for it.
  virtual bool begin(std::span<const DraftRow>, const DraftLimits&) { return false; }
  // Adds nodes to the rows' forests, under its own number.
  virtual DraftWork propose(std::span<const DraftRow> rows, const DraftLimits& limits) = 0;
  // These rows' forests are being verified, on a device: time to prepare for what will probably be drawn.
  virtual void look_ahead(std::span<const DraftRow>) {}
  virtual void observe(const DraftVerdict& verdict) = 0;
  // Tokens of the sequence, beside the newest, that a model of its own would have to run before it drafts for it.
  virtual int32_t behind(const DraftSequence&) const { return 0; }
  // The sequence has ended, or goes to another worker.
  virtual void leave(int32_t slot) = 0;
};

}  // namespace otr
