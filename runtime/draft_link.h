// DraftLink: what joins a verifying worker with a drafting one: bounded queues with one writer and one reader each.
//
//   verifying worker (RemoteDrafter)   -- opened: requests, with what is known of them -->   drafting worker (DraftServer)
//                                      -- verdicts -->
//                                      <-- drafts --
//
// A verdict of a request comes after its opening. Nobody waits for room: what finds none is kept and offered again. Whoever has
// written rings the reader's bell, and who takes from a full queue the writer's; where that looked full to the writer alone, it
// looks again before long.
//
// Between processes each has a link of its own, whose other end is the LinkRelay's. When the process at the other end is lost,
// the relay raises `generation`: the worker forgets what the other knew and asked for, throws away what it has not read, and
// writes nothing until the relay has thrown away the rest; then it sets `followed`. The relay brings nothing new before that.
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

#include "runtime/link_bell.h"
#include "runtime/request.h"
#include "sched/window.h"

namespace otr {

template <typename T>
class SpscQueue {
 public:
  // `delay_seed`: 0, or for proofs: at random the reader does not see what is there yet.
  SpscQueue(size_t capacity, uint32_t delay_seed) : slots_(capacity + 1), delays_(delay_seed != 0), random_(delay_seed) {}

  // Either end's; to the reader a hint.
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
  // The reader's: what there is at least.
  size_t size() const {
    const size_t written = written_.load(std::memory_order_acquire), read = read_.load(std::memory_order_relaxed);
    return written >= read ? written - read : written + slots_.size() - read;
  }
  // Throws away all there is, whatever was to be seen late. The reader's.
  void clear() {
    for (; !empty(); pop()) slots_[read_.load(std::memory_order_relaxed)] = T();
  }

 private:
  size_t next(size_t at) const { return at + 1 == slots_.size() ? 0 : at + 1; }

  std::vector<T> slots_;  // one stays free
  const bool delays_;
  std::mt19937 random_;  // the reader's
  alignas(64) std::atomic<size_t> written_{0};
  alignas(64) std::atomic<size_t> read_{0};
};

// Of a request that the drafter has no place for: it is told of so many at once, and tries again then.
inline constexpr int32_t kQuietTokens = 32;  // one verdict has more

struct DraftLink {
  // `capacity`: of each queue.
  DraftLink(size_t capacity, uint32_t delay_seed)
      : opened(capacity, delay_seed),
        verdicts(capacity, delay_seed == 0 ? 0 : delay_seed + 1),
        drafts(capacity, delay_seed == 0 ? 0 : delay_seed + 2) {}

  SpscQueue<std::unique_ptr<Sequence>> opened;  // Sequence::age: its name on this link
  SpscQueue<VerdictMessage> verdicts;
  SpscQueue<DraftMessage> drafts;
  LinkBell* server = nullptr;           // the drafting worker's
  LinkBell* verifier = nullptr;         // both are set before any thread begins
  std::atomic<uint32_t> generation{0};  // how often an end was lost: the relay's to write
  std::atomic<uint32_t> followed{0};    // the worker's
  bool is_current() const { return generation.load(std::memory_order_acquire) == followed.load(std::memory_order_acquire); }
};

}  // namespace otr
