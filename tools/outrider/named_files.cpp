#include "tools/outrider/named_files.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "tools/outrider/failure.h"

namespace otr::cli {
namespace {

struct NamedFile {
  std::string flag, path;
  bool is_written = false;
};

bool is_there(const NamedFile& file, struct stat* info) {
  if (file.path != "-") return ::stat(file.path.c_str(), info) == 0;
  return ::fstat(file.is_written ? STDOUT_FILENO : STDIN_FILENO, info) == 0;
}

std::filesystem::path whole_path(const NamedFile& file) {
  std::error_code error;
  const std::filesystem::path whole = std::filesystem::weakly_canonical(std::filesystem::absolute(file.path, error), error);
  return error ? std::filesystem::path(file.path) : whole;
}

bool same_file(const NamedFile& a, const NamedFile& b) {
  struct stat x, y;
  if (a.path == "-" && b.path == "-" && a.is_written && b.is_written) return false;  // one after the other
  const bool a_is_there = is_there(a, &x), b_is_there = is_there(b, &y);
  if (a_is_there && b_is_there) return S_ISREG(x.st_mode) && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
  return !a_is_there && !b_is_there && whole_path(a) == whole_path(b);
}

}  // namespace

std::vector<ReadFile> drafter_files(const Flags& flags) {
  std::vector<ReadFile> files;
  for (const std::string& text : flags.all("drafter")) {
    const size_t colon = text.find(':', text.find('='));  // without either the flag is refused elsewhere
    if (colon != std::string::npos) files.push_back({"--drafter", text.substr(colon + 1)});
  }
  return files;
}

void refuse_shared_files(const Flags& flags, std::initializer_list<const char*> read,
                         std::initializer_list<const char*> written, const std::vector<ReadFile>& others) {
  std::vector<NamedFile> files;
  const auto dashed = [](const std::string& name) { return (name.size() == 1 ? "-" : "--") + name; };
  const auto add = [&](const std::string& name, bool is_written) {
    const std::string path = flags.text(name, name == "out" ? "-" : "");
    if (!path.empty()) files.push_back({dashed(name), path, is_written});
  };
  for (const std::string& path : flags.positional()) files.push_back({"the input", path, false});
  for (const ReadFile& file : others) files.push_back({file.name, file.path, false});
  for (const char* name : read) add(name, false);
  for (const char* name : written) add(name, true);
  for (const NamedFile& a : files) {
    for (const NamedFile& b : files) {
      if (&a == &b || !b.is_written || !same_file(a, b)) continue;
      throw Failure(kExitUsage,
                    b.flag + " " + b.path + ": the same file as " + a.flag + (a.path == b.path ? "" : " " + a.path));
    }
  }
}

}  // namespace otr::cli
