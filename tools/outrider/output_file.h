// OutputFile: where a command writes its lines, standard output or a file. Every line goes out at once, for others to read.
//
// Single-threaded. Everything that fails throws Failure (failure at run time).
#pragma once

#include <string>
#include <string_view>

namespace otr::cli {

class OutputFile {
 public:
  // `path` may be "-": standard output. A file keeps its old contents until start(). A file made here goes away again if the
  // command fails before start(). That it is nobody else's file too: refuse_shared_files, between the two.
  explicit OutputFile(const std::string& path);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  void start();  // drops a file's old contents
  // Goes on behind the first `bytes` of a file. Throws Failure (bad input) if it has fewer.
  void start_behind(int64_t bytes);
  bool is_new() const { return is_new_; }       // made here, and not started
  bool is_regular() const;                      // a file, and not a pipe or device
  int64_t written() const { return written_; }  // bytes, those that were there included
  void sync();                                  // what is written is on disk
  void write_line(std::string_view line);
  void close();  // reports what a file system only says at the end

 private:
  [[noreturn]] void fail() const;

  const std::string name_;
  const bool is_stdout_;
  int fd_ = -1;
  bool is_new_ = false, is_name_synced_ = false;
  int64_t written_ = 0;
  std::string buffer_;
};

}  // namespace otr::cli
