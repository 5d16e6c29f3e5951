#include "tools/outrider/output_file.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "tools/outrider/failure.h"

namespace otr::cli {
namespace {

// The name of a file, as far as its folder can be made durable.
void sync_name(const std::string& path) {
  const int folder = ::open((std::filesystem::path(path).parent_path() / ".").c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) return;
  ::fsync(folder);
  ::close(folder);
}

}  // namespace

OutputFile::OutputFile(const std::string& path) : name_(path == "-" ? "<stdout>" : path), is_stdout_(path == "-") {
  if (is_stdout_) {
    fd_ = STDOUT_FILENO;
    return;
  }
  fd_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  is_new_ = fd_ >= 0;
  // Not O_EXCL alone: a link to a file that is not there yet is followed.
  if (fd_ < 0 && errno == EEXIST) fd_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
  if (fd_ < 0) fail();
}

OutputFile::~OutputFile() {
  if (is_new_) ::unlink(name_.c_str());
  if (fd_ >= 0 && !is_stdout_) ::close(fd_);
}

void OutputFile::fail() const { throw Failure(kExitFailure, "cannot write " + name_ + ": " + std::strerror(errno)); }

bool OutputFile::is_regular() const {
  struct stat info;
  return ::fstat(fd_, &info) == 0 && S_ISREG(info.st_mode);
}

void OutputFile::start() {
  is_new_ = false;
  if (!is_stdout_ && is_regular() && ::ftruncate(fd_, 0) != 0) fail();
}

void OutputFile::start_behind(int64_t bytes) {
  struct stat info;
  if (::fstat(fd_, &info) != 0) fail();
  if (!S_ISREG(info.st_mode) || info.st_size < bytes) {
    throw Failure(kExitBadInput, name_ + " has " + std::to_string(info.st_size) + " bytes; the run to go on with had written " +
                                     std::to_string(bytes));
  }
  is_new_ = false;
  if (::ftruncate(fd_, bytes) != 0 || ::lseek(fd_, bytes, SEEK_SET) < 0) fail();
  written_ = bytes;
}

void OutputFile::sync() {
  if (::fdatasync(fd_) != 0) fail();
  if (!is_name_synced_) sync_name(name_);
  is_name_synced_ = true;
}

void OutputFile::write_line(std::string_view line) {
  buffer_.assign(line);
  buffer_ += '\n';
  for (size_t done = 0; done < buffer_.size();) {
    const ssize_t put = ::write(fd_, buffer_.data() + done, buffer_.size() - done);
    if (put > 0) done += static_cast<size_t>(put);
    if (put >= 0 || errno == EINTR) continue;
    if (errno != EAGAIN) fail();
    struct pollfd full = {fd_, POLLOUT, 0};  // whoever shares the pipe or the terminal has made it not block
    if (::poll(&full, 1, -1) < 0 && errno != EINTR) fail();
  }
  written_ += static_cast<int64_t>(buffer_.size());
}

void OutputFile::close() {
  if (is_stdout_) return;
  if (::close(std::exchange(fd_, -1)) != 0) fail();
}

}  // namespace otr::cli
