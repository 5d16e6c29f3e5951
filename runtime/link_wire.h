// What the two ends of a DraftLink say to each other when they are in different processes. The engine's process relays it, and
// checks it on the way: what an end has sent is its fault, not that of the other.
//
// A message has the number of the link (its verifying worker's), the link's generation, what has been written to the queues
// since the last one, and how much of what the other end wrote has been taken: at most link_capacity() messages of a kind are
// on their way, wherever they wait. What belongs to another generation is thrown away.
//
// Thread safety: functions of their arguments. Errors: as worker_wire.h.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/worker_wire.h"
#include "sched/window.h"

namespace otr {

// Of each queue of a link.
inline size_t link_capacity(int32_t max_batch, const WorkerProofs& proofs) {
  return proofs.link_capacity > 0 ? static_cast<size_t>(proofs.link_capacity) : 2 * static_cast<size_t>(max_batch);
}
// The first num_draft_workers draft: each for itself, should it have samples, and for its share of the others.
inline int32_t server_of(int32_t worker, int32_t num_draft_workers) {
  return worker < num_draft_workers ? worker : (worker - num_draft_workers) % num_draft_workers;
}

struct Relink {
  int32_t link = 0;
  uint32_t generation = 0;
};
void encode_relink(const Relink& relink, WireBytes* out);
Result<Relink> decode_relink(WireView in, int32_t num_workers);

struct LinkMessage {
  enum Queue { kOpened, kVerdicts, kDrafts, kNumQueues };

  int32_t link = 0;
  uint32_t generation = 0;
  std::array<uint32_t, kNumQueues> taken = {};
  std::vector<std::unique_ptr<Sequence>> opened;
  std::vector<VerdictMessage> verdicts;
  std::vector<DraftMessage> drafts;

  size_t size(Queue queue) const {
    return queue == kOpened ? opened.size() : queue == kVerdicts ? verdicts.size() : drafts.size();
  }
  bool empty() const;
  void clear();
};
void encode_link(const LinkMessage& message, WireBytes* out);
struct LinkLimits {
  StartLimits start;
  int32_t num_workers;
  uint32_t capacity;
};
Result<LinkMessage> decode_link(WireView in, const LinkLimits& limits);

// A link as the engine sees it.
class LinkAccount {
 public:
  explicit LinkAccount(uint32_t capacity) : capacity_(capacity) {}

  uint32_t generation() const { return generation_; }
  // An end was lost. The new generation.
  uint32_t lose();
  // Takes note of a message of this generation. kBadInput: it is not what this end may say, or more than there is room for.
  Status pass(const LinkMessage& message, bool from_server);

 private:
  uint32_t capacity_;
  uint32_t generation_ = 0;
  std::array<uint32_t, LinkMessage::kNumQueues> under_way_ = {};
};

}  // namespace otr
