// What is to be minded where files are opened and written in somebody else's process: its standard streams may be closed, and
// it may have a limit to the size of files.
//
// Thread safety: all of it concerns the calling thread alone.
#pragma once

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <ctime>
#include <utility>

namespace otr {

// Another descriptor of the same file, behind those of the standard streams; -1 and errno where the system refuses.
inline int duplicate_descriptor(int fd) { return ::fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1); }

// What the system has just opened, where no standard stream is to be. The system gives the least number that is free: where a
// program has closed a stream of its own, what it prints there would go into our file. -1 stays -1, with its errno.
inline int above_standard(int fd) {
  if (fd < 0 || fd > STDERR_FILENO) return fd;
  const int lifted = duplicate_descriptor(fd);
  const int reason = errno;
  ::close(fd);
  errno = reason;
  return lifted;
}

// A file descriptor that is closed with its owner.
class OwnedFd {
 public:
  explicit OwnedFd(int fd = -1) : fd_(fd) {}
  OwnedFd(OwnedFd&& other) noexcept : fd_(other.release()) {}
  OwnedFd& operator=(OwnedFd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~OwnedFd() { reset(); }

  int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }
  void reset() {
    if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  }
  OwnedFd duplicate() const { return OwnedFd(duplicate_descriptor(fd_)); }  // -1 where the system refuses

 private:
  int fd_;
};

// While it lives, making a file larger than the process' limit (RLIMIT_FSIZE) fails with EFBIG, and is no signal.
class NoSizeSignal {
 public:
  NoSizeSignal() {
    sigset_t pending;
    sigemptyset(&own_);
    sigaddset(&own_, SIGXFSZ);
    was_pending_ = sigpending(&pending) == 0 && sigismember(&pending, SIGXFSZ) == 1;
    pthread_sigmask(SIG_BLOCK, &own_, &before_);
  }
  ~NoSizeSignal() {
    const int reason = errno;
    const timespec now{};
    while (!was_pending_ && sigtimedwait(&own_, nullptr, &now) < 0 && errno == EINTR) {
    }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
    errno = reason;
  }
  NoSizeSignal(const NoSizeSignal&) = delete;
  NoSizeSignal& operator=(const NoSizeSignal&) = delete;

 private:
  sigset_t own_, before_;
  bool was_pending_;
};

}  // namespace otr
