// What the processor and the operating system offer, asked once.
#pragma once

#include <string>

namespace otr {

// Each returns true, or false with the reason in *why.
bool cpu_has_avx2(std::string* why);    // AVX2, FMA, F16C, and YMM state enabled
bool cpu_has_avx512(std::string* why);  // AVX-512 F, BW, DQ, VL, BF16 and VNNI, and ZMM state enabled
bool cpu_has_amx(std::string* why);  // AMX-TILE, -BF16 and -INT8 on top of AVX-512, and tile permission granted to the process
bool request_tile_permission(std::string* why);  // the last of these conditions alone; a sandbox may refuse it

}  // namespace otr
