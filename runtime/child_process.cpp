#include "runtime/child_process.h"

#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <iterator>
#include <system_error>
#include <thread>

#include "kernels/base/descriptor.h"

extern char** environ;

namespace otr {
namespace {

using Clock = std::chrono::steady_clock;

class SpawnSettings {
 public:
  explicit SpawnSettings(int socket) {
    sigset_t none, defaults;
    sigemptyset(&none);
    sigemptyset(&defaults);
    for (const int signal : {SIGPIPE, SIGINT, SIGTERM, SIGHUP, SIGCHLD}) sigaddset(&defaults, signal);
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setsigdefault(&attributes, &defaults);
    posix_spawnattr_setpgroup(&attributes, 0);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_adddup2(&files, socket, ChildProcess::kSocket);
    posix_spawn_file_actions_addclosefrom_np(&files, ChildProcess::kSocket + 1);
  }
  ~SpawnSettings() {
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&files);
  }
  SpawnSettings(const SpawnSettings&) = delete;
  SpawnSettings& operator=(const SpawnSettings&) = delete;

  posix_spawnattr_t attributes;
  posix_spawn_file_actions_t files;
};

std::string end_text(int status) {
  if (WIFSIGNALED(status)) return "killed by signal " + std::to_string(WTERMSIG(status));
  return "exited with status " + std::to_string(WEXITSTATUS(status));
}

Status refusal(const std::string& what, int error) {
  const std::string text = what + ": " + std::generic_category().message(error);
  for (const int shortage : {EMFILE, ENFILE, ENOMEM, ENOBUFS, EAGAIN, ETXTBSY}) {
    if (error == shortage) return Status(StatusCode::kOutOfMemory, text);
  }
  return io_error(text);
}

}  // namespace

Result<ChildProcess> ChildProcess::spawn(const std::string& executable, OwnedFd* socket) {
  int pair[2];
  constexpr const char* kNoSocket = "cannot make a socket for a worker process";
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) return refusal(kNoSocket, errno);
  OwnedFd ours(above_standard(pair[0])), its(above_standard(pair[1]));
  if (ours.get() < 0 || its.get() < 0) return refusal(kNoSocket, errno);
  const SpawnSettings settings(its.get());
  std::string name = executable, command = "worker", fd = std::to_string(kSocket);
  char* const arguments[] = {name.data(), command.data(), fd.data(), nullptr};
  ChildProcess child;
  const int error = posix_spawn(&child.pid_, executable.c_str(), &settings.files, &settings.attributes, arguments, environ);
  if (error != 0) {
    child.pid_ = -1;
    return refusal("cannot run worker process '" + executable + "'", error);
  }
  *socket = std::move(ours);
  return child;
}

ChildProcess& ChildProcess::operator=(ChildProcess&& other) noexcept {
  std::swap(pid_, other.pid_);
  std::swap(end_, other.end_);
  std::swap(signal_, other.signal_);
  return *this;
}

// The system has a wait with a limit for one process only through files that old kernels lack; ends are rare enough to look
// for.
bool ChildProcess::wait(int64_t timeout_ms) {
  const Clock::time_point limit = Clock::now() + std::chrono::milliseconds(timeout_ms);
  for (int64_t pause_us = 100; pid_ > 0; pause_us = std::min<int64_t>(2 * pause_us, 5000)) {
    int status = 0;
    const pid_t ended = waitpid(pid_, &status, WNOHANG);
    if (ended == pid_) end_ = end_text(status), signal_ = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    if (ended < 0 && errno != EINTR) end_ = "ended";  // the program has told the system not to keep ends, or has taken this one
    if (!end_.empty()) pid_ = -1;
    else if (Clock::now() >= limit) return false;
    else std::this_thread::sleep_for(std::chrono::microseconds(pause_us));
  }
  return true;
}

bool ChildProcess::was_ended_from_outside() const {
  const int signals[] = {SIGKILL, SIGTERM, SIGINT, SIGHUP, SIGQUIT};
  return std::find(std::begin(signals), std::end(signals), signal_) != std::end(signals);
}

void ChildProcess::kill() {
  constexpr int64_t kLongestEndMs = 10'000;  // one in the middle of a disk's or a driver's call dies when that returns
  if (pid_ <= 0) return;
  (void)::kill(pid_, SIGKILL);
  (void)wait(kLongestEndMs);
}

}  // namespace otr
