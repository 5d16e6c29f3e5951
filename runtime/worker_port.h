// WorkerPort: how an engine speaks to a worker, wherever that runs. What comes back goes to the engine as WorkerHost (a thread)
// or ProcessHost (a process).
//
// Thread safety: all functions may be called from any thread. They return at once: what is said is done before the worker's
// next tick.
#pragma once

#include <cstdint>
#include <memory>

#include "runtime/request.h"
#include "sched/placement.h"
#include "sched/window.h"

namespace otr {

// Who drafts, decided while nothing runs, or because a drafting worker is lost.
struct DraftRoles {
  bool decoupled = false;
  WindowSetting setting;
};

// A worker that has nothing to run gets replicas of what this one runs, to race with it.
struct Lend {
  int32_t to = 0;
  int32_t rung = 1;    // of the replicas; a sample has one of each
  int32_t most = 0;    // replicas
  bool leaps = false;  // they exchange what they find
};

class WorkerPort {
 public:
  virtual ~WorkerPort() = default;

  // The sequence, with those that its group has blocked, is the worker's.
  virtual void start(std::unique_ptr<Sequence> s) = 0;
  // This group was cancelled: see Group::cancelled.
  virtual void cancel(uint64_t group) = 0;
  virtual void give(const Move& move) = 0;  // REQUIRES: the one before was answered
  virtual void end_step() = 0;
  virtual void set_roles(const DraftRoles& roles) = 0;
  virtual void lend(const Lend& lend) = 0;  // REQUIRES: as give()

  // Between pause() and resume() no tick begins. Whoever has paused the worker waits for at_rest(), or, if all that he wants is
  // that no tick begins, for rests_in_pause().
  virtual void pause() = 0;
  virtual void resume() = 0;
  virtual void stop() = 0;
  virtual bool at_rest() const = 0;
  virtual bool rests_in_pause() const { return at_rest(); }
};

}  // namespace otr
