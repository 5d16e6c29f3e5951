// Race: replicas of one sample at several workers. All produce the same response, so the first to finish is the sample's end,
// whoever it is; the others are dropped as soon as they see that, and their pages return. A replica that fails is dropped too,
// unless it is the last one.
//
// If replicas leap, each one takes over what the others have found, log-probs included, and computes its keys and values with
// its next pass (sched/leapfrog.h). Replicas that disagree are an error in the kernels: then nobody leaps any more, and the
// test that compares outputs sees it.
//
// Between processes each replica has a race of its own: the engine passes on what they find, and says who was first.
//
// Thread safety: all functions may be called by any replica's worker, and by whoever speaks for those of other processes.
// Allocates when it is made only.
#pragma once

#include <atomic>
#include <mutex>
#include <span>
#include <vector>

#include "runtime/request.h"
#include "sched/leapfrog.h"

namespace otr {

class Race {
 public:
  static constexpr int32_t kMostReplicas = 257;  // one a worker, and all of other processes together

  // `s`: the first replica, as it is now.
  Race(const Sequence& s, bool leaps);

  // One more replica runs.
  void enter(int32_t rung);
  // Bit r: a replica of rung r has entered; of those beyond 31, none.
  uint32_t rungs() const { return rungs_.load(std::memory_order_relaxed); }
  // It runs in another process, whose engine knows who is first: see decide().
  void leave() { running_.fetch_sub(1, std::memory_order_relaxed); }
  // Another replica was first.
  void decide() { over_.store(true, std::memory_order_release); }
  bool leaps() const { return leaps_; }
  // A replica has come to its end. True: it is the sample's; false: it is to be dropped.
  bool finish(bool failed);
  bool over() const { return over_.load(std::memory_order_acquire); }

  // The replica has `num_new` tokens more, at its end.
  void publish(const Sequence& s, int32_t num_new);
  // Replicas elsewhere have found these tokens, which the response has from index `first` on.
  void publish(int32_t first, std::span<const int32_t> tokens, std::span<const float> logprobs,
               std::span<const float> raw_logprobs);
  // Appends to the replica what others have found behind its tokens, but for a token that ends the sample. Returns how many.
  int32_t adopt(Sequence* s);

 private:
  void add(int32_t replica, int32_t begin, std::span<const int32_t> tokens, std::span<const float> logprobs,
           std::span<const float> raw_logprobs);

  const int32_t begin_, num_prompt_;
  const bool leaps_;
  std::atomic<bool> over_{false};
  std::atomic<int32_t> running_{1};
  std::atomic<uint32_t> rungs_{1};
  std::mutex mutex_;
  // Guarded by mutex_.
  Leapfrog found_;
  std::vector<float> logprobs_, raw_logprobs_;  // of found_, from begin_ on
  bool disagree_ = false;
};

inline bool is_decided(const Sequence& s) { return s.race != nullptr && s.race->over(); }

}  // namespace otr
