// LineReader: the lines of a file or of standard input, in bounded memory and, where asked, without waiting for a slow writer.
//
// Single-threaded.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace otr::cli {

inline constexpr size_t kMaxLineBytes = size_t{64} << 20;

class LineReader {
 public:
  // `path` may be "-": standard input. Throws Failure (bad input) if it cannot be opened.
  explicit LineReader(const std::string& path);
  ~LineReader();
  LineReader(const LineReader&) = delete;
  LineReader& operator=(const LineReader&) = delete;

  enum class Next {
    kLine,
    kTooLong,  // a line of more than kMaxLineBytes was skipped
    kNotYet,   // only if !may_block: no whole line has arrived
    kEnd,
  };
  // The next line without its newline; `*line` lives until the next call. Throws Failure (bad input) if reading fails.
  Next next(bool may_block, std::string_view* line);

  const std::string& name() const { return name_; }  // for messages
  int fd() const { return fd_; }
  int64_t line_number() const { return line_number_; }  // of the line next() gave last, from 1
  int64_t size() const { return size_; }                // of a regular file, else 0
  int64_t consumed() const { return consumed_; }        // bytes up to the end of that line

 private:
  bool fill(bool may_block);

  std::string name_;
  int fd_ = -1;
  int64_t size_ = 0;
  int64_t consumed_ = 0;
  int64_t line_number_ = 0;
  std::string buffer_;
  size_t begin_ = 0;    // of the next line, in buffer_
  size_t scanned_ = 0;  // no newline in [begin_, scanned_)
  bool skipping_ = false;
  bool end_ = false;
};

}  // namespace otr::cli
