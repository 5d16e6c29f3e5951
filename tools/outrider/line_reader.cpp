#include "tools/outrider/line_reader.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "tools/outrider/failure.h"

namespace otr::cli {
namespace {

constexpr size_t kReadBytes = size_t{1} << 18;

}  // namespace

LineReader::LineReader(const std::string& path) : name_(path == "-" ? "<stdin>" : path) {
  fd_ = path == "-" ? STDIN_FILENO : ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd_ < 0) throw Failure(kExitBadInput, name_ + ": " + std::strerror(errno));
  struct stat info;
  if (::fstat(fd_, &info) != 0) return;
  if (S_ISREG(info.st_mode)) size_ = info.st_size;
  if (S_ISDIR(info.st_mode) && fd_ != STDIN_FILENO) {
    ::close(fd_);
    throw Failure(kExitBadInput, name_ + ": " + std::strerror(EISDIR));
  }
}

LineReader::~LineReader() {
  if (fd_ != STDIN_FILENO) ::close(fd_);
}

// Reads once. False: nothing there yet. REQUIRES: !end_.
bool LineReader::fill(bool may_block) {
  if (begin_ > 0) {
    buffer_.erase(0, begin_);
    scanned_ -= begin_;
    begin_ = 0;
  }
  const size_t old_size = buffer_.size();
  buffer_.resize(old_size + kReadBytes);
  ssize_t got;
  do {  // polled in any case: whoever shares it may have made it not block
    struct pollfd descriptor = {fd_, POLLIN, 0};
    if (::poll(&descriptor, 1, may_block ? -1 : 0) == 0) {
      buffer_.resize(old_size);
      return false;
    }
    got = ::read(fd_, buffer_.data() + old_size, kReadBytes);
  } while (got < 0 && (errno == EINTR || errno == EAGAIN));
  if (got < 0) throw Failure(kExitBadInput, name_ + ": " + std::strerror(errno));
  buffer_.resize(old_size + static_cast<size_t>(got));
  end_ = got == 0;
  return true;
}

LineReader::Next LineReader::next(bool may_block, std::string_view* line) {
  while (true) {
    const size_t newline = buffer_.find('\n', scanned_);
    const bool found = newline != std::string::npos;
    const size_t stop = found ? newline : buffer_.size();
    const bool last = !found && end_;
    const size_t length = stop - begin_;
    if (found || (last && (length > 0 || skipping_))) {
      ++line_number_;
      consumed_ += static_cast<int64_t>(length) + found;
      *line = std::string_view(buffer_).substr(begin_, length);
      begin_ = scanned_ = stop + found;
      const bool too_long = skipping_ || length > kMaxLineBytes;
      skipping_ = false;
      return too_long ? Next::kTooLong : Next::kLine;
    }
    if (last) return Next::kEnd;
    scanned_ = stop;
    if (length > kMaxLineBytes) {  // the rest of the line is dropped as it comes
      skipping_ = true;
      consumed_ += static_cast<int64_t>(length);
      begin_ = scanned_ = stop;
    }
    if (!fill(may_block)) return Next::kNotYet;
  }
}

}  // namespace otr::cli
