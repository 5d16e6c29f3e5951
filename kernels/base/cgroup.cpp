#include "kernels/base/cgroup.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <string_view>
#include <vector>

#include "kernels/base/descriptor.h"

namespace otr {
namespace {

constexpr uint64_t kUnlimited = uint64_t{1} << 62;  // v1 writes "no limit" as 2^63 less one page

// Empty if there is no such file.
std::string contents(const std::string& path) {
  const OwnedFd file(above_standard(::open(path.c_str(), O_RDONLY | O_CLOEXEC)));
  std::string text;
  char part[4096];
  for (ssize_t size; file.get() >= 0 && (size = ::read(file.get(), part, sizeof part)) > 0;)
    text.append(part, static_cast<size_t>(size));
  return text;
}

// The parts between any of `separators`, without empty ones.
std::vector<std::string_view> split(std::string_view text, std::string_view separators) {
  std::vector<std::string_view> parts;
  for (size_t begin = 0, end; (begin = text.find_first_not_of(separators, begin)) != text.npos; begin = end) {
    end = std::min(text.find_first_of(separators, begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
  }
  return parts;
}

std::optional<uint64_t> number(std::string_view text) {
  uint64_t value;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return {};
  return value;
}

// The i-th word of a file.
std::optional<uint64_t> number_in(const std::string& path, size_t i = 0) {
  const std::string text = contents(path);
  const std::vector<std::string_view> words = split(text, " \n");
  return i < words.size() ? number(words[i]) : std::nullopt;
}

// What follows `key` in a file of keys and numbers.
std::optional<uint64_t> number_after(std::string_view key, const std::string& path) {
  const std::string text = contents(path);
  const std::vector<std::string_view> words = split(text, " \n");
  const auto found = std::find(words.begin(), words.end(), key);
  return words.end() - found > 1 ? number(found[1]) : std::nullopt;
}

template <typename T>
std::optional<T> least(std::optional<T> a, std::optional<T> b) {
  return a && b ? std::min(*a, *b) : a ? a : b;
}

bool has_part(std::string_view list, std::string_view part) {
  const std::vector<std::string_view> parts = split(list, ",");
  return std::find(parts.begin(), parts.end(), part) != parts.end();
}

// The process's group in the hierarchy of a controller of v1, or in v2's, whose controller is "".
std::optional<std::string> group_of(const std::string& root, std::string_view controller) {
  const std::string text = contents(root + "/proc/self/cgroup");
  for (const std::string_view line : split(text, "\n")) {  // 4:cpu,cpuacct:/path, 0::/path
    const size_t first = line.find(':'), second = line.find(':', std::min(first, line.size() - 1) + 1);
    if (second == line.npos) continue;
    const std::string_view controllers = line.substr(first + 1, second - first - 1);
    if (controller.empty() ? controllers.empty() : has_part(controllers, controller))
      return std::string(line.substr(second + 1));
  }
  return {};
}

struct Mount {
  std::string_view group, folder;  // that group of the hierarchy is seen as this folder
};

// `text` is that of /proc/self/mountinfo: "35 31 0:32 GROUP FOLDER rw - cgroup cgroup rw,memory", with options of any number
// before the dash.
std::vector<Mount> mounts_of(std::string_view text, std::string_view controller) {
  std::vector<Mount> mounts;
  for (const std::string_view line : split(text, "\n")) {
    const std::vector<std::string_view> words = split(line, " ");
    const auto dash = std::find(words.begin(), words.end(), "-");
    if (dash - words.begin() < 6 || words.end() - dash < 3) continue;
    if (controller.empty() ? dash[1] == "cgroup2" : dash[1] == "cgroup" && has_part(words.back(), controller)) {
      mounts.push_back({words[3], words[4]});
    }
  }
  return mounts;
}

// Where `group` lies below the mount: "" for the mount itself. None: not below it, as in a namespace that mounts a part only.
std::optional<std::string> below(const Mount& mount, std::string_view group) {
  const std::string_view top = mount.group == "/" ? "" : mount.group;
  if (!group.starts_with(top)) return {};
  const std::string_view rest = group.substr(top.size());
  if (!rest.empty() && (rest[0] != '/' || rest.find("/..") != rest.npos)) return {};
  return std::string(rest);
}

// The folders of the process's group and of its ancestors, up to what is mounted: inside a container, its own group, whatever
// the path says.
std::vector<std::string> group_folders(const std::string& root, std::string_view controller) {
  const std::optional<std::string> group = group_of(root, controller);
  if (!group) return {};
  const std::string text = contents(root + "/proc/self/mountinfo");
  const std::vector<Mount> mounts = mounts_of(text, controller);
  for (const Mount& mount : mounts) {
    const std::string top = root + std::string(mount.folder);
    std::optional<std::string> rest = below(mount, *group);
    if (!rest) continue;
    std::vector<std::string> folders{top + *rest};
    while (!rest->empty()) {
      rest->resize(rest->rfind('/'));
      folders.push_back(top + *rest);
    }
    return folders;
  }
  if (mounts.empty()) return {};
  return {root + std::string(mounts[0].folder)};
}

// Cached pages of files count as used, though the kernel drops them before it refuses memory: a model that has just been read
// would seem to fill its container. Only the inactive ones, which it drops first: the others were used more than once, and the
// engine may be what uses them.
std::optional<uint64_t> left(std::optional<uint64_t> limit, std::optional<uint64_t> used, std::optional<uint64_t> inactive) {
  if (!limit || *limit >= kUnlimited) return {};
  const uint64_t kept = used.value_or(0) - std::min(used.value_or(0), inactive.value_or(0));
  return *limit - std::min(*limit, kept);
}

std::optional<int> cpus(std::optional<uint64_t> quota, std::optional<uint64_t> period) {
  if (!quota || !period || *period == 0) return {};
  const uint64_t rounded_up = *quota / *period + (*quota % *period != 0 ? 1 : 0);
  return static_cast<int>(std::clamp<uint64_t>(rounded_up, 1, std::numeric_limits<int>::max()));
}

}  // namespace

std::optional<uint64_t> free_memory(const std::string& root) {
  std::optional<uint64_t> bytes = number_after("MemAvailable:", root + "/proc/meminfo");
  if (bytes) *bytes *= 1024;
  for (const std::string& group : group_folders(root, "")) {
    bytes = least(bytes, left(number_in(group + "/memory.max"), number_in(group + "/memory.current"),
                              number_after("inactive_file", group + "/memory.stat")));
  }
  for (const std::string& group : group_folders(root, "memory")) {  // total_: with the groups within, as usage is
    bytes = least(bytes, left(number_in(group + "/memory.limit_in_bytes"), number_in(group + "/memory.usage_in_bytes"),
                              number_after("total_inactive_file", group + "/memory.stat")));
  }
  return bytes;
}

std::optional<int> cpu_quota(const std::string& root) {
  std::optional<int> quota;
  for (const std::string& group : group_folders(root, "")) {
    quota = least(quota, cpus(number_in(group + "/cpu.max"), number_in(group + "/cpu.max", 1)));
  }
  for (const std::string& group : group_folders(root, "cpu")) {
    quota = least(quota, cpus(number_in(group + "/cpu.cfs_quota_us"), number_in(group + "/cpu.cfs_period_us")));
  }
  return quota;
}

}  // namespace otr
