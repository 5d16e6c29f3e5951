// File: a regular file opened for reading with pread, never mapped: a file that shrinks gives an error, not a signal.
// NewFile: a file that is written from front to back. ReplacedFile: one that is written anywhere.
//
// Thread safety: a File is immutable after open; reads may run from any number of threads. The others are single-threaded.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>

#include "kernels/base/status.h"

namespace otr {

class File {
 public:
  // Anything but a regular file (after symbolic links) is refused; opening never blocks on a pipe.
  static Result<File> open(const std::string& path);

  File(File&& other) noexcept : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)), size_(other.size_) {}
  File& operator=(File&& other) noexcept;
  ~File();

  const std::string& path() const { return path_; }
  uint64_t size() const { return size_; }  // at open

  // Fills `bytes` from `offset`, or fails naming file and offset: kBadInput where the file ends too early.
  Status read_exact(uint64_t offset, std::span<std::byte> bytes) const;

 private:
  File(std::string path, int fd, uint64_t size) : path_(std::move(path)), fd_(fd), size_(size) {}

  std::string path_;
  int fd_ = -1;
  uint64_t size_ = 0;
};

class NewFile {
 public:
  // `path` must not exist.
  static Result<NewFile> create(const std::string& path);

  NewFile(NewFile&& other) noexcept : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)) {}
  NewFile& operator=(NewFile&& other) noexcept;
  ~NewFile();

  Status append(std::span<const std::byte> bytes);
  Status finish();  // everything is on disk when it succeeds; REQUIRES: nothing is appended afterwards

 private:
  NewFile(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}

  std::string path_;
  int fd_ = -1;
};

// A file that takes the place of another, or none, at once, when it is complete: a temporary one beside it that is unlinked
// unless it is renamed. It has the permissions of the file that it replaces, from before it holds anything; else what the umask
// leaves. Of links the file behind them is replaced; devices, pipes and folders are not.
class ReplacedFile {
 public:
  explicit ReplacedFile(const std::string& path);
  ~ReplacedFile();
  ReplacedFile(const ReplacedFile&) = delete;
  ReplacedFile& operator=(const ReplacedFile&) = delete;

  Status created() const;                            // to be asked first
  const std::string& name() const { return name_; }  // of the temporary one
  Status write(const void* data, size_t size);       // behind what write() has written before
  Status write_at(uint64_t offset, const void* data, size_t size) const;
  Status rename();  // everything is on disk when it succeeds

 private:
  Status failed(const char* what) const;

  const std::string path_;
  std::string name_;
  const bool is_replaceable_;
  const int fd_;
  uint64_t written_ = 0;
  bool renamed_ = false;
};

// The whole contents. A file larger than `max_bytes` is kBadInput.
Result<std::string> read_text_file(const std::string& path, uint64_t max_bytes);

// Has something made under a name beside `path` that is not taken: path.xxxxxx. `make(name)` returns -1 and errno where it
// fails, of which EEXIST and EINTR are tried again with other names; its result is returned.
int make_beside(const std::string& path, std::string* name, const std::function<int(const char*)>& make);

// True if `path` names something, a dangling symbolic link included.
bool path_exists(const std::string& path);

// folder + "/" + name.
std::string join_path(const std::string& folder, const std::string& name);

}  // namespace otr
