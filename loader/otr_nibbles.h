// Nibble coding of 16-bit weights: three quarters of their size, at the speed of a copy. Internal to the .otr reader and
// writer.
//
// A bf16 value's high byte is its sign and seven bits of exponent. Weights of one layer hardly ever span more than eight of the
// 128 exponents, a factor of 65,536, so four bits say sign and distance from the frame's largest; the few others are listed.
//
//   u8 top, 3 zero bytes, u32 number of exceptions
//   groups of 32 values, 16 bytes each: value j is in byte j % 16, from bit 4 (j / 16): sign << 3 | top - exponent
//   the low bytes, one a value
//   exceptions, positions ascending: u32 position << 8 | high byte
//
// Thread safety: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace otr {

// Encodes `bytes` / 2 values. REQUIRES: bytes is even and at most 4 MiB.
std::vector<uint8_t> encode_nibbles(const uint8_t* values, size_t bytes);

// Decodes exactly `bytes` / 2 values; false if `coded` is not their coding, in which case `values` is unspecified.
bool decode_nibbles(const uint8_t* coded, size_t size, uint8_t* values, size_t bytes);

}  // namespace otr
