#include "loader/xxh64.h"

#include <bit>
#include <cstring>

namespace otr {
namespace {

constexpr uint64_t kP1 = 0x9E3779B185EBCA87ull, kP2 = 0xC2B2AE3D27D4EB4Full, kP3 = 0x165667B19E3779F9ull,
                   kP4 = 0x85EBCA77C2B2AE63ull, kP5 = 0x27D4EB2F165667C5ull;

uint64_t load64(const unsigned char* p) {
  uint64_t v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

uint64_t round(uint64_t acc, uint64_t lane) { return std::rotl(acc + lane * kP2, 31) * kP1; }

uint64_t merge(uint64_t hash, uint64_t acc) { return (hash ^ round(0, acc)) * kP1 + kP4; }

}  // namespace

uint64_t xxh64(const void* data, size_t size) {
  const unsigned char* p = static_cast<const unsigned char*>(data);
  const unsigned char* const end = p + size;
  uint64_t hash = kP5;
  if (size >= 32) {
    uint64_t a[4] = {kP1 + kP2, kP2, 0, 0 - kP1};
    for (; end - p >= 32; p += 32) {
      for (int i = 0; i < 4; ++i) a[i] = round(a[i], load64(p + 8 * i));
    }
    hash = std::rotl(a[0], 1) + std::rotl(a[1], 7) + std::rotl(a[2], 12) + std::rotl(a[3], 18);
    for (uint64_t acc : a) hash = merge(hash, acc);
  }
  hash += size;
  for (; end - p >= 8; p += 8) hash = std::rotl(hash ^ round(0, load64(p)), 27) * kP1 + kP4;
  if (end - p >= 4) {
    uint32_t word;
    std::memcpy(&word, p, sizeof word);
    hash = std::rotl(hash ^ (word * kP1), 23) * kP2 + kP3;
    p += 4;
  }
  for (; p < end; ++p) hash = std::rotl(hash ^ (*p * kP5), 11) * kP1;
  hash = (hash ^ (hash >> 33)) * kP2;
  hash = (hash ^ (hash >> 29)) * kP3;
  return hash ^ (hash >> 32);
}

}  // namespace otr
