#include "tools/outrider/output_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "tools/outrider/failure.h"

namespace otr::cli {
namespace {

bool same_regular_file(int a, int b) {
  struct stat x, y;
  return ::fstat(a, &x) == 0 && ::fstat(b, &y) == 0 && S_ISREG(x.st_mode) && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

}  // namespace

OutputFile::OutputFile(const std::string& path, int input_fd) : name_(path == "-" ? "<stdout>" : path) {
  if (path == "-") {
    fd_ = STDOUT_FILENO;
    return;
  }
  fd_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  is_new_ = fd_ >= 0;
  // Not O_EXCL alone: a link to a file that is not there yet is followed.
  if (fd_ < 0 && errno == EEXIST) fd_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
  if (fd_ < 0) fail();
  if (same_regular_file(fd_, input_fd)) {
    ::close(fd_);
    throw Failure(kExitUsage, "--out: " + name_ + " is also the input");
  }
}

OutputFile::~OutputFile() {
  if (is_new_) ::unlink(name_.c_str());
  if (fd_ > STDOUT_FILENO) ::close(fd_);
}

void OutputFile::fail() const { throw Failure(kExitFailure, "cannot write " + name_ + ": " + std::strerror(errno)); }

void OutputFile::start() {
  is_new_ = false;
  struct stat info;
  const bool regular = fd_ != STDOUT_FILENO && ::fstat(fd_, &info) == 0 && S_ISREG(info.st_mode);
  if (regular && ::ftruncate(fd_, 0) != 0) fail();
}

void OutputFile::start_behind(int64_t bytes) {
  struct stat info;
  if (::fstat(fd_, &info) != 0) fail();
  if (!S_ISREG(info.st_mode) || info.st_size < bytes) {
    throw Failure(kExitBadInput, name_ + " has " + std::to_string(info.st_size) + " bytes; the run to go on with had written " + std::to_string(bytes));
  }
  is_new_ = false;
  if (::ftruncate(fd_, bytes) != 0 || ::lseek(fd_, bytes, SEEK_SET) < 0) fail();
  written_ = bytes;
}

void OutputFile::sync() const {
  if (::fdatasync(fd_) != 0) fail();
}

void OutputFile::write_line(std::string_view line) {
  buffer_.assign(line);
  buffer_ += '\n';
  for (size_t done = 0; done < buffer_.size();) {
    const ssize_t put = ::write(fd_, buffer_.data() + done, buffer_.size() - done);
    if (put < 0 && errno != EINTR) fail();
    if (put > 0) done += static_cast<size_t>(put);
  }
  written_ += static_cast<int64_t>(buffer_.size());
}

void OutputFile::close() {
  const int fd = fd_;
  if (fd == STDOUT_FILENO) return;
  fd_ = -1;
  if (::close(fd) != 0) fail();
}

}  // namespace otr::cli
