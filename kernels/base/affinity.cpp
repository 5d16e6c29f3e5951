#include "kernels/base/affinity.h"

#include <sched.h>

#include <algorithm>
#include <memory>
#include <new>

namespace otr {
namespace {

// A cpu_set_t has room for 1,024 CPUs, and the system refuses a set that is too small for those the machine may ever have.
constexpr size_t kMostCpus = size_t{1} << 20;

struct FreedSet {
  void operator()(cpu_set_t* set) const { CPU_FREE(set); }
};
using CpuSet = std::unique_ptr<cpu_set_t, FreedSet>;

}  // namespace

std::vector<int> cpu_affinity(pid_t thread) {
  for (size_t capacity = CPU_SETSIZE; capacity <= kMostCpus; capacity *= 2) {
    const CpuSet set(CPU_ALLOC(capacity));
    if (set == nullptr) throw std::bad_alloc();
    const size_t bytes = CPU_ALLOC_SIZE(capacity);
    if (sched_getaffinity(thread, bytes, set.get()) == 0) {
      std::vector<int> cpus;
      for (size_t cpu = 0; cpu < capacity; ++cpu) {
        if (CPU_ISSET_S(cpu, bytes, set.get())) cpus.push_back(static_cast<int>(cpu));
      }
      return cpus;
    }
  }
  return {};
}

bool set_cpu_affinity(std::span<const int> cpus) noexcept {
  if (cpus.empty()) return false;
  const size_t capacity = static_cast<size_t>(*std::max_element(cpus.begin(), cpus.end())) + 1,
               bytes = CPU_ALLOC_SIZE(capacity);
  const CpuSet set(CPU_ALLOC(capacity));
  if (set == nullptr) return false;
  CPU_ZERO_S(bytes, set.get());
  for (const int cpu : cpus) CPU_SET_S(static_cast<size_t>(cpu), bytes, set.get());
  return sched_setaffinity(0, bytes, set.get()) == 0;
}

}  // namespace otr
