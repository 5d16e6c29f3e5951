// ChildProcess: a program that runs beside this one, joined to it by a socket that it finds as its file 3.
//
// It is spawned, never forked; it has a process group of its own (a Ctrl-C is for its parent), no signal blocked, and no other
// file of ours but the standard ones. Destroying the object kills it and waits for its end: no zombie is left.
//
// Thread safety: none needed, it owns. Errors, with the executable and the reason: kIoError; kOutOfMemory where the system is
// short of what it takes, and may have it a moment later.
#pragma once

#include <sys/types.h>

#include <csignal>
#include <string>
#include <utility>

#include "runtime/worker_channel.h"

namespace otr {

class ChildProcess {
 public:
  static constexpr int kSocket = 3;

  // Runs "EXECUTABLE worker 3"; our end of the socket goes to *socket.
  static Result<ChildProcess> spawn(const std::string& executable, OwnedFd* socket);
  ChildProcess() = default;
  ChildProcess(ChildProcess&& other) noexcept
      : pid_(std::exchange(other.pid_, -1)), end_(std::exchange(other.end_, {})), signal_(other.signal_) {}
  ChildProcess& operator=(ChildProcess&& other) noexcept;
  ~ChildProcess() { kill(); }

  pid_t pid() const { return pid_; }
  // Waits up to so long for its end; whether that has come.
  bool wait(int64_t timeout_ms);
  // SIGKILL, and its end.
  void kill();
  // "killed by signal 9", "exited with status 1"; "" while it runs.
  const std::string& end() const { return end_; }
  bool was_killed() const { return signal_ == SIGKILL; }
  // By a signal that somebody sends, or the system when memory ends, and that no fault of its own gives.
  bool was_ended_from_outside() const;

 private:
  pid_t pid_ = -1;  // -1: none, or it has ended
  std::string end_;
  int signal_ = 0;  // that ended it; 0: none
};

}  // namespace otr
