// DraftLink: what joins a verifying worker with a drafting one: bounded queues with one writer and one reader each.
//
//   verifying worker (RemoteDrafter)   -- opened: requests, with what is known of them -->   drafting worker (DraftServer)
//                                      -- verdicts -->
//                                      <-- drafts --
//
// A verdict of a request comes after its opening. Nobody waits for room: what finds none is kept and offered again. Whoever has
// written rings the reader's mailbox.
//
// Thread safety: each end of a queue belongs to one thread. Nothing is allocated after construction.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "runtime/request.h"
#include "runtime/worker_mailbox.h"
#include "sched/window.h"

namespace otr {

template <typename T>
class SpscQueue {
 public:
  // `delay_seed`: 0, or for proofs: at random the reader does not see what is there yet.
  SpscQueue(size_t capacity, uint32_t delay_seed) : slots_(capacity + 1), delays_(delay_seed != 0), random_(delay_seed) {}

  bool full() const { return next(written_.load(std::memory_order_relaxed)) == read_.load(std::memory_order_acquire); }
  // REQUIRES: not full. The writer's.
  void push(T value) {
    const size_t at = written_.load(std::memory_order_relaxed);
    slots_[at] = std::move(value);
    written_.store(next(at), std::memory_order_release);
  }
  bool empty() const { return read_.load(std::memory_order_relaxed) == written_.load(std::memory_order_acquire); }
  // The oldest there is, until pop(); null: there is none. The reader's, as pop().
  T* front() {
    constexpr uint32_t kOneIn = 3;
    if (empty() || (delays_ && random_() % kOneIn != 0)) return nullptr;
    return &slots_[read_.load(std::memory_order_relaxed)];
  }
  void pop() { read_.store(next(read_.load(std::memory_order_relaxed)), std::memory_order_release); }

 private:
  size_t next(size_t at) const { return at + 1 == slots_.size() ? 0 : at + 1; }

  std::vector<T> slots_;  // one stays free
  const bool delays_;
  std::mt19937 random_;  // the reader's
  alignas(64) std::atomic<size_t> written_{0};
  alignas(64) std::atomic<size_t> read_{0};
};

struct DraftLink {
  // `capacity`: of each queue.
  DraftLink(size_t capacity, uint32_t delay_seed)
      : opened(capacity, delay_seed),
        verdicts(capacity, delay_seed == 0 ? 0 : delay_seed + 1),
        drafts(capacity, delay_seed == 0 ? 0 : delay_seed + 2) {}

  SpscQueue<std::unique_ptr<Sequence>> opened;  // Sequence::age: its name on this link
  SpscQueue<VerdictMessage> verdicts;
  SpscQueue<DraftMessage> drafts;
  WorkerMailbox* server = nullptr;    // the drafting worker's
  WorkerMailbox* verifier = nullptr;  // both are set before any thread begins
};

}  // namespace otr
