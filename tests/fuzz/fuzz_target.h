// What the fuzz targets share. A target is one file that defines LLVMFuzzerTestOneInput: it feeds the bytes to one parser and
// checks what the parser's header promises, by require(). README.md says how to run them.
//
// Single-threaded.
#pragma once

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>

#include "kernels/base/status.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace otr::fuzz {

// Ends the program where a promise is broken, in builds without assertions too.
inline void require(bool kept, const char* promise) {
  if (kept) return;
  std::fprintf(stderr, "broken promise: %s\n", promise);
  std::abort();
}

// A refusal names the file and is a message of one line, however long and hostile the input.
inline void require_reason(const Status& status, std::string_view file) {
  require(status.message().starts_with(file), "an error names the file");
  require(status.message().size() < 1000 + file.size(), "an error is short");
  require(status.message().find('\n') == std::string::npos, "an error is one line");
  require(status.code() == StatusCode::kBadInput || status.code() == StatusCode::kUnsupported, "bad contents are bad input");
}

inline std::string_view as_text(const uint8_t* data, size_t size) { return {reinterpret_cast<const char*>(data), size}; }

inline void write_all(int fd, std::string_view contents) {
  require(::ftruncate(fd, 0) == 0, "the file can be emptied");
  require(::pwrite(fd, contents.data(), contents.size(), 0) == static_cast<ssize_t>(contents.size()),
          "the file can be written");
}

// A file in memory with a path.
class MemoryFile {
 public:
  MemoryFile() : fd_(::memfd_create("input", MFD_CLOEXEC)) { require(fd_ >= 0, "there is memory for a file"); }
  ~MemoryFile() { ::close(fd_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  std::string path() const { return "/proc/self/fd/" + std::to_string(fd_); }
  void write(std::string_view contents) const { write_all(fd_, contents); }

 private:
  int fd_;
};

// A folder that goes away when main returns; libFuzzer ends without that and leaves it in TMPDIR.
class Folder {
 public:
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "outrider-fuzz-XXXXXX").string();
    require(::mkdtemp(name.data()) != nullptr, "there is a place for a folder");
    path_ = name;
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace otr::fuzz
