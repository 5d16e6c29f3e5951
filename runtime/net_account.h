// NetAccount: who of an engine's worker processes is joined to whom, GPU to GPU (page_net.h), as the engine sees it.
//
// All processes that are there join once every one is ready or gone for ever. Whoever is lost, or fails, ends the generation
// for all; then all that are there join anew, with a new id. After kMostFailures in a row that no death explains, and without
// kGoodMoves between them, pages go by file for good.
//
// Thread safety: none needed; the engine's lock guards it. Orders are given while it is held. So ids are made beforehand, by
// SpareId. Errors: an order that there is no memory for ends the call with std::bad_alloc. Nothing has changed then but what
// some were told already: whoever called ends the process that it called for, or calls again, and all hear of it once more.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/page_net_wire.h"

namespace otr {

struct NetOptions {
  std::function<Result<NetId>()> make_id;
  // The trainer's, for the first generation that has all workers: they are ranks first_rank … of num_ranks.
  std::optional<NetId> first_id = {};
  int32_t num_ranks = 0, first_rank = 0;
};

// An id that is there before it is asked for: to make one a library may be loaded and sockets opened, on a thread of its own.
// take() waits only where two are taken sooner than one is made, and no longer than its patience. A `make` that does not come
// back keeps its thread, and what it refers to, to itself: nobody waits for it. Errors: `make`'s; kTimeout; kOutOfMemory
// without a thread. The next take() tries again.
class SpareId {
 public:
  SpareId(std::function<Result<NetId>()> make, std::chrono::milliseconds patience)
      : make_(std::move(make)), patience_(patience) {
    begin();
  }
  ~SpareId() { release(); }
  SpareId(const SpareId&) = delete;
  SpareId& operator=(const SpareId&) = delete;
  Result<NetId> take();

 private:
  struct Making {
    std::mutex mutex;
    std::condition_variable changed;
    std::optional<Result<NetId>> made;  // guarded by mutex
  };
  void begin();
  void release();

  const std::function<Result<NetId>()> make_;
  const std::chrono::milliseconds patience_;
  std::shared_ptr<Making> next_;  // null: there was no thread for it
  std::thread thread_;
};

class NetAccount {
 public:
  using Order = std::function<void(int32_t worker, const NetOrder& order)>;
  static constexpr int32_t kMostFailures = 3, kGoodMoves = 100;

  NetAccount(int32_t num_workers, NetOptions options, Order order)
      : options_(std::move(options)), order_(std::move(order)), ends_(static_cast<size_t>(num_workers)) {}

  void ready(int32_t worker);
  void lost(int32_t worker, bool comes_back);
  // kBadInput: the process may not say that.
  Status news(int32_t worker, const NetNews& news);
  // A parcel that nobody will pull from.
  void end_parcel(int32_t worker, uint64_t generation, uint64_t parcel);

  bool is_up() const;  // all that are there have joined
  // {"up":true,"generation":1,"moves":12,"failures":0,"last_failure":""}: failures in all.
  std::string json() const;

 private:
  enum class State : uint8_t { kStarting, kReady, kGone };
  struct End {
    State state = State::kStarting;
    bool up = false;
    bool has_pulled = false;  // in this generation
    int32_t rank = -1;        // -1: no member of the generation
  };

  void begin();
  void end(const std::string& why);
  Status pull(int32_t worker, const NetNews& news);
  End& at(int32_t worker) { return ends_[static_cast<size_t>(worker)]; }

  NetOptions options_;
  const Order order_;
  std::vector<End> ends_;  // by worker
  uint64_t generation_ = 0;
  bool joined_ = false;  // the generation has begun, and is not over
  bool given_up_ = false;
  int32_t failures_in_a_row_ = 0;  // since the last death, or kGoodMoves
  int32_t good_moves_ = 0;         // since the last failure
  int64_t moves_ = 0, failures_ = 0;
  std::string last_failure_;
};

}  // namespace otr
