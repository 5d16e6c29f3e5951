// WorkerMailbox: what a worker's thread is told, and whether it is at rest.
//
// Thread safety: all functions may be called from any thread, but take() and await() from the worker's alone. Posting never
// allocates.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>

#include "runtime/link_bell.h"
#include "runtime/pace.h"
#include "runtime/sequence_queue.h"
#include "runtime/worker_port.h"
#include "sched/placement.h"

namespace otr {

// What a worker is to do before its next tick.
struct WorkerOrders {
  SequenceQueue arrived;     // to start
  bool cancelled = false;    // groups were: see Group::cancelled
  std::optional<Move> move;  // to give, and to answer
  bool end_step = false;     // the engine has run dry
  bool lease_ended = false;  // pages that were lent may have come back
  bool rung = false;         // messages have come on a DraftLink
  std::optional<DraftRoles> roles;
  std::optional<Lend> lend;  // to lend, and to answer

  bool pending() const { return !arrived.empty() || cancelled || move || end_step || lease_ended || rung || roles || lend; }
};

class WorkerMailbox final : public WorkerPort, public LinkBell {
 public:
  void start(std::unique_ptr<Sequence> s) override;
  void cancel(uint64_t group) override;
  void give(const Move& move) override;
  void end_step() override;
  void set_roles(const DraftRoles& roles) override;
  void lend(const Lend& lend) override;
  void end_lease();
  void ring() override;
  // What was to start and has not been taken.
  void take_arrived(SequenceQueue* to);
  template <typename Visit>
  void for_each_arrived(const Visit& visit) {
    const std::lock_guard<std::mutex> lock(mutex_);
    orders_.arrived.for_each(visit);
  }

  // Between pause() and resume() take() does not return.
  void pause() override;
  void resume() override;
  void stop() override;
  bool at_rest() const override;
  bool is_paused() const;

  // Adds to `orders` what was posted. Waits while there is nothing and the worker is not `busy`; `rested()` is called, without
  // a lock, when it begins to. False: stop.
  template <typename Rested>
  bool take(bool busy, WorkerOrders* orders, const Rested& rested) {
    std::unique_lock<std::mutex> lock(mutex_);
    if (!awake(busy)) {
      at_rest_ = true;
      lock.unlock();
      rested();
      lock.lock();
      while (!awake(busy)) sleep(&lock, PaceClock::kForever);
      at_rest_ = false;
    }
    if (stop_) return false;
    orders->arrived.append(&orders_.arrived);
    orders->cancelled |= orders_.cancelled;
    orders->end_step |= orders_.end_step;
    orders->lease_ended |= orders_.lease_ended;
    if (orders_.move) orders->move = orders_.move;
    orders->rung |= orders_.rung;
    if (orders_.roles) orders->roles = orders_.roles;
    orders_.roles.reset();
    if (orders_.lend) orders->lend = orders_.lend;
    orders_.lend.reset();
    orders_.cancelled = orders_.end_step = orders_.lease_ended = orders_.rung = false;
    orders_.move.reset();
    return true;
  }
  // Waits until there is something to take(), at most so long. Of the worker, which goes on being busy.
  void await(double limit_ms) {
    std::unique_lock<std::mutex> lock(mutex_);
    if (!stop_ && !paused_ && !orders_.pending()) sleep(&lock, limit_ms);
  }
  // The worker sleeps by this clock. Before its thread begins.
  void set_pace(Pace* pace) { pace_ = pace; }

 private:
  bool awake(bool busy) const { return stop_ || (!paused_ && (busy || orders_.pending())); }
  void notify();
  void sleep(std::unique_lock<std::mutex>* lock, double limit_ms);

  mutable std::mutex mutex_;
  std::condition_variable posted_;
  Pace* pace_ = nullptr;  // null: the wall clock
  // Guarded by mutex_.
  WorkerOrders orders_;
  bool paused_ = false, stop_ = false;
  bool at_rest_ = false;
};

}  // namespace otr
