#include "loader/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "kernels/base/descriptor.h"

namespace otr {
namespace {

// Linux transfers at most 2^31 - 4096 bytes a call anyway.
constexpr size_t kMostPerCall = size_t{1} << 30;

Status system_error(const std::string& path, const char* what) {
  return io_error(path + ": " + what + ": " + std::strerror(errno));
}

// A new file beside `path`, with the permissions that ReplacedFile promises; -1 and errno where there can be none.
int open_beside(const std::string& path, std::string* name) {
  const int fd = make_beside(
      path, name, [](const char* n) { return above_standard(::open(n, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666)); });
  struct stat old, made;
  if (fd < 0 || ::stat(path.c_str(), &old) != 0 || !S_ISREG(old.st_mode)) return fd;
  constexpr mode_t kPermissions = 0777;
  if (::fstat(fd, &made) == 0 && ((old.st_mode ^ made.st_mode) & kPermissions) == 0) return fd;
  if (::fchmod(fd, old.st_mode & kPermissions) == 0) return fd;
  const int reason = errno;
  ::close(fd);
  ::unlink(name->c_str());
  errno = reason;
  return -1;
}

}  // namespace

Result<File> File::open(const std::string& path) {
  // O_NONBLOCK: opening a pipe without a writer would wait for one. It has no effect on regular files.
  int fd;
  do {
    fd = above_standard(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  } while (fd < 0 && errno == EINTR);
  if (fd < 0) return system_error(path, "cannot open");
  File file(path, fd, 0);
  struct stat info;
  if (::fstat(fd, &info) != 0) return system_error(path, "cannot stat");
  if (!S_ISREG(info.st_mode)) return bad_input(path + ": not a regular file");
  file.size_ = static_cast<uint64_t>(info.st_size);
  return file;
}

File& File::operator=(File&& other) noexcept {
  path_.swap(other.path_);
  std::swap(fd_, other.fd_);
  std::swap(size_, other.size_);
  return *this;
}

File::~File() {
  if (fd_ >= 0) ::close(fd_);
}

Status File::read_exact(uint64_t offset, std::span<std::byte> bytes) const {
  while (!bytes.empty()) {
    const ssize_t got = ::pread(fd_, bytes.data(), std::min(bytes.size(), kMostPerCall), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return system_error(path_, ("cannot read at offset " + std::to_string(offset)).c_str());
    if (got == 0) {
      return bad_input(path_ + ": the file ends at offset " + std::to_string(offset) + ", " + std::to_string(bytes.size()) +
                       " bytes early (it had " + std::to_string(size_) + " bytes when it was opened)");
    }
    offset += static_cast<uint64_t>(got);
    bytes = bytes.subspan(static_cast<size_t>(got));
  }
  return {};
}

Result<NewFile> NewFile::create(const std::string& path) {
  const int fd = above_standard(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (fd < 0) return system_error(path, "cannot create");
  return NewFile(path, fd);
}

NewFile& NewFile::operator=(NewFile&& other) noexcept {
  path_.swap(other.path_);
  std::swap(fd_, other.fd_);
  return *this;
}

NewFile::~NewFile() {
  if (fd_ >= 0) ::close(fd_);
}

Status NewFile::append(std::span<const std::byte> bytes) {
  const NoSizeSignal no_signal;
  while (!bytes.empty()) {
    const ssize_t put = ::write(fd_, bytes.data(), std::min(bytes.size(), kMostPerCall));
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) return system_error(path_, "cannot write");
    bytes = bytes.subspan(static_cast<size_t>(put));
  }
  return {};
}

Status NewFile::finish() { return ::fsync(fd_) == 0 ? Status() : system_error(path_, "cannot make durable"); }

namespace {

// What a link leads to, if it leads anywhere: links stay.
std::string behind_links(const std::string& path) {
  struct stat info;
  char whole[PATH_MAX];
  const bool is_link = ::lstat(path.c_str(), &info) == 0 && S_ISLNK(info.st_mode);
  return is_link && ::realpath(path.c_str(), whole) != nullptr ? whole : path;
}

bool is_replaceable(const std::string& path) {
  struct stat info;
  return ::stat(path.c_str(), &info) != 0 || S_ISREG(info.st_mode);
}

}  // namespace

ReplacedFile::ReplacedFile(const std::string& path)
    : path_(behind_links(path)),
      is_replaceable_(is_replaceable(path_)),
      fd_(is_replaceable_ ? open_beside(path_, &name_) : -1) {}

ReplacedFile::~ReplacedFile() {
  if (fd_ < 0) return;
  ::close(fd_);
  if (!renamed_) ::unlink(name_.c_str());
}

Status ReplacedFile::created() const {
  if (!is_replaceable_) return io_error(path_ + ": is not a regular file, and is not replaced by one");
  return fd_ >= 0 ? Status() : io_error(path_ + ": cannot create a temporary file beside it: " + std::strerror(errno));
}

Status ReplacedFile::write(const void* data, size_t size) {
  OTR_RETURN_IF_ERROR(write_at(written_, data, size));
  written_ += size;
  return {};
}

Status ReplacedFile::write_at(uint64_t offset, const void* data, size_t size) const {
  const NoSizeSignal no_signal;
  for (const char* p = static_cast<const char*>(data); size > 0;) {
    const ssize_t n = ::pwrite(fd_, p, std::min(size, kMostPerCall), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return failed("cannot write");
    p += n;
    offset += static_cast<uint64_t>(n);
    size -= static_cast<size_t>(n);
  }
  return {};
}

Status ReplacedFile::rename() {
  if (::fsync(fd_) != 0) return failed("cannot make durable");
  if (::rename(name_.c_str(), path_.c_str()) != 0) return failed("cannot rename");
  renamed_ = true;
  const size_t slash = path_.rfind('/');
  const int folder =
      ::open(slash == std::string::npos ? "." : path_.substr(0, slash + 1).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder >= 0) {  // the name itself; without it the old file may come back after a crash, which is whole too
    ::fsync(folder);
    ::close(folder);
  }
  return {};
}

Status ReplacedFile::failed(const char* what) const { return system_error(name_, what); }

Result<std::string> read_text_file(const std::string& path, uint64_t max_bytes) {
  OTR_ASSIGN_OR_RETURN(const File file, File::open(path));
  if (file.size() > max_bytes) {
    return bad_input(path + ": " + std::to_string(file.size()) + " bytes are more than the " + std::to_string(max_bytes) +
                     " such a file may have");
  }
  std::string text(file.size(), '\0');
  OTR_RETURN_IF_ERROR(file.read_exact(0, std::as_writable_bytes(std::span(text))));
  return text;
}

int make_beside(const std::string& path, std::string* name, const std::function<int(const char*)>& make) {
  int made = -1;
  for (int attempt = 0; made < 0 && attempt < 100; ++attempt) {
    uint32_t random = 0;
    if (::getentropy(&random, sizeof random) != 0) return -1;
    char suffix[16];
    std::snprintf(suffix, sizeof suffix, ".%06x", random & 0xffffffu);
    *name = path + suffix;
    made = make(name->c_str());
    if (made < 0 && errno != EEXIST && errno != EINTR) return -1;
  }
  return made;
}

bool path_exists(const std::string& path) {
  struct stat info;
  return ::lstat(path.c_str(), &info) == 0;
}

std::string join_path(const std::string& folder, const std::string& name) {
  return folder.empty() || folder.back() == '/' ? folder + name : folder + "/" + name;
}

}  // namespace otr
