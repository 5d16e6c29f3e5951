// While it lives, the process may open so many more files, and no more.
#pragma once

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

namespace otr {

class OpenFileLimit {
 public:
  // REQUIRES: the files that are open have the lowest numbers.
  explicit OpenFileLimit(rlim_t more) {
    const int next = fcntl(STDERR_FILENO, F_DUPFD, 0);
    close(next);
    getrlimit(RLIMIT_NOFILE, &before_);
    const rlimit limit{.rlim_cur = static_cast<rlim_t>(next) + more, .rlim_max = before_.rlim_max};
    setrlimit(RLIMIT_NOFILE, &limit);
  }
  ~OpenFileLimit() { setrlimit(RLIMIT_NOFILE, &before_); }
  OpenFileLimit(const OpenFileLimit&) = delete;
  OpenFileLimit& operator=(const OpenFileLimit&) = delete;

 private:
  rlimit before_;
};

}  // namespace otr
