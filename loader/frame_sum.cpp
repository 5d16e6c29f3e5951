#include "loader/frame_sum.h"

#include <emmintrin.h>

#include <cstring>

#include "loader/xxh64.h"

namespace otr {
namespace {

constexpr size_t kStripe = 64;
constexpr int kVectors = 4;  // of two words, a stripe
// Odd numbers without a pattern: the five primes of XXH64 and three multipliers of splitmix64 and its kin.
alignas(16) constexpr uint64_t kKeys[8] = {0x9E3779B185EBCA87ull, 0xC2B2AE3D27D4EB4Full, 0x165667B19E3779F9ull,
                                           0x85EBCA77C2B2AE63ull, 0x27D4EB2F165667C5ull, 0x94D049BB133111EBull,
                                           0xBF58476D1CE4E5B9ull, 0xD6E8FEB86659FD93ull};
constexpr uint64_t kKeyStep = 0x9E3779B97F4A7C15ull;

}  // namespace

uint64_t frame_sum(const void* data, size_t size) {
  const uint8_t* p = static_cast<const uint8_t*>(data);
  const __m128i step = _mm_set1_epi64x(static_cast<int64_t>(kKeyStep));
  __m128i sums[kVectors], keys[kVectors];
  for (int i = 0; i < kVectors; ++i) sums[i] = keys[i] = _mm_load_si128(reinterpret_cast<const __m128i*>(kKeys) + i);
  size_t left = size;
  for (; left >= kStripe; left -= kStripe, p += kStripe) {
    for (int i = 0; i < kVectors; ++i) {
      const __m128i words = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p) + i), keyed = _mm_xor_si128(words, keys[i]);
      const __m128i product = _mm_mul_epu32(keyed, _mm_shuffle_epi32(keyed, _MM_SHUFFLE(2, 3, 0, 1)));
      const __m128i neighbour = _mm_shuffle_epi32(words, _MM_SHUFFLE(1, 0, 3, 2));
      sums[i] = _mm_add_epi64(sums[i], _mm_add_epi64(neighbour, product));
      keys[i] = _mm_add_epi64(keys[i], step);
    }
  }
  uint8_t rest[sizeof sums + kStripe + sizeof(uint64_t)];
  const uint64_t bytes = size;
  std::memcpy(rest, sums, sizeof sums);
  if (left > 0) std::memcpy(rest + sizeof sums, p, left);
  std::memcpy(rest + sizeof sums + left, &bytes, sizeof bytes);
  return xxh64(rest, sizeof sums + left + sizeof bytes);
}

}  // namespace otr
