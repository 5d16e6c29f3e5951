// XXH64 (the algorithm of Yann Collet's xxHash, 64-bit, seed 0): the checksum of everything in an .otr file. Runs at memory
// speed; it finds accidents, not adversaries.
#pragma once

#include <cstddef>
#include <cstdint>

namespace otr {

uint64_t xxh64(const void* data, size_t size);

}  // namespace otr
