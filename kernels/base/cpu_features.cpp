#include "kernels/base/cpu_features.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>

namespace otr {
namespace {

struct Leaf {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
};

Leaf cpuid(unsigned leaf, unsigned subleaf) {
  Leaf l;
  if (__get_cpuid_count(leaf, subleaf, &l.eax, &l.ebx, &l.ecx, &l.edx) == 0) return {};
  return l;
}

bool bit(unsigned word, int index) { return (word >> index & 1u) != 0; }

// State components the operating system saves and restores (XCR0).
uint64_t enabled_state() {
  if (!bit(cpuid(1, 0).ecx, 27)) return 0;  // OSXSAVE
  uint32_t lo, hi;
  __asm__ volatile("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
  return static_cast<uint64_t>(hi) << 32 | lo;
}

constexpr uint64_t kStateYmm = 0x6, kStateZmm = 0xe6, kStateTile = 0x60000;

bool fail(std::string* why, const char* reason) {
  *why = reason;
  return false;
}

}  // namespace

bool cpu_has_avx2(std::string* why) {
  const Leaf l1 = cpuid(1, 0), l7 = cpuid(7, 0);
  if (!bit(l7.ebx, 5)) return fail(why, "the processor has no AVX2");
  if (!bit(l1.ecx, 12) || !bit(l1.ecx, 29)) return fail(why, "the processor has no FMA or F16C");
  if ((enabled_state() & kStateYmm) != kStateYmm) return fail(why, "the operating system does not save AVX state");
  return true;
}

bool cpu_has_avx512(std::string* why) {
  if (!cpu_has_avx2(why)) return false;
  const Leaf l7 = cpuid(7, 0), l71 = cpuid(7, 1);
  if (!bit(l7.ebx, 16) || !bit(l7.ebx, 17) || !bit(l7.ebx, 30) || !bit(l7.ebx, 31)) {
    return fail(why, "the processor has no AVX-512 F, DQ, BW and VL");
  }
  if (!bit(l71.eax, 5) || !bit(l7.ecx, 11)) return fail(why, "the processor has no AVX512_BF16 and AVX512_VNNI");
  if ((enabled_state() & kStateZmm) != kStateZmm) return fail(why, "the operating system does not save AVX-512 state");
  return true;
}

bool cpu_has_amx(std::string* why) {
  if (!cpu_has_avx512(why)) return false;
  const Leaf l7 = cpuid(7, 0);
  if (!bit(l7.edx, 24) || !bit(l7.edx, 22) || !bit(l7.edx, 25)) {
    return fail(why, "the processor has no AMX-TILE, AMX-BF16 and AMX-INT8");
  }
  if ((enabled_state() & kStateTile) != kStateTile) return fail(why, "the operating system does not save AMX tile state");
  return request_tile_permission(why);
}

// Tile data is an opt-in state component: the process asks for it once, and every thread made later has it.
bool request_tile_permission(std::string* why) {
  constexpr int kArchReqXcompPerm = 0x1023, kXfeatureXtileData = 18;
  if (syscall(SYS_arch_prctl, kArchReqXcompPerm, kXfeatureXtileData) == 0) return true;
  *why = std::string("the system refused the process permission for AMX tile data (") + std::strerror(errno) + ")";
  return false;
}

}  // namespace otr
