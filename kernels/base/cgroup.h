// What the control groups of a container leave its process: memory and processor time.
//
// Of cgroup v1, v2 or both at once; a group is held to its ancestors' limits too, as far as they can be seen (inside a
// container its own group is the top). What is missing, unreadable or no number limits nothing. `root` is the folder of proc
// and sys: "/", and in tests one that pretends.
//
// Thread safety: functions without state. They read some ten files and allocate: for create, not for ticks.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace otr {

// Bytes that can be had without swapping: what the system has available (MemAvailable), or less where a group's limit is
// nearer. None: neither is known.
std::optional<uint64_t> free_memory(const std::string& root);

// The least quota of processor time, in CPUs, rounded up, at least 1. None: no quota.
std::optional<int> cpu_quota(const std::string& root);

}  // namespace otr
