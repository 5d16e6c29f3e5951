// The CPUs a thread may run on, on machines with any number of them.
//
// Thread safety: functions without state. They allocate: for create, not for ticks.
#pragma once

#include <sys/types.h>

#include <span>
#include <vector>

namespace otr {

// In ascending order; of the calling thread (0), or of another one of the process. Empty where the system does not say. Throws
// std::bad_alloc.
std::vector<int> cpu_affinity(pid_t thread = 0);

// Of the calling thread. False: it is left as it was. REQUIRES: no negative CPU.
bool set_cpu_affinity(std::span<const int> cpus) noexcept;

}  // namespace otr
