#include "loader/otr_nibbles.h"

#include <emmintrin.h>

#include <algorithm>
#include <cstring>

namespace otr {
namespace {

constexpr size_t kGroup = 32, kGroupBytes = 16, kHeaderBytes = 8;
constexpr int kExponents = 8;

size_t num_groups(size_t n) { return (n + kGroup - 1) / kGroup; }

uint32_t load32(const uint8_t* p) {
  uint32_t v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

void append32(std::vector<uint8_t>* out, uint32_t v) {
  const uint8_t* p = reinterpret_cast<const uint8_t*>(&v);
  out->insert(out->end(), p, p + sizeof v);
}

// The largest exponent of the window of eight that holds most values.
int best_top(const uint8_t* values, size_t n) {
  size_t count[128] = {};
  for (size_t i = 0; i < n; ++i) ++count[values[2 * i + 1] & 0x7f];
  int best = kExponents - 1;
  size_t most = 0, held = 0;
  for (int top = 0; top < 128; ++top) {
    held += count[top];
    if (top >= kExponents) held -= count[top - kExponents];
    if (top >= kExponents - 1 && held > most) best = top, most = held;
  }
  return best;
}

uint8_t high_byte(int code, int top) { return static_cast<uint8_t>((code & 8) << 4 | (top - (code & 7))); }

// 16 codes, one a byte, to high bytes.
__m128i high_bytes(__m128i codes, __m128i top) {
  const __m128i sign = _mm_slli_epi16(_mm_and_si128(codes, _mm_set1_epi8(8)), 4);
  return _mm_or_si128(sign, _mm_sub_epi8(top, _mm_and_si128(codes, _mm_set1_epi8(7))));
}

// A whole group: 16 bytes of codes and 32 low bytes to 64 bytes of values; past the caches (kStream) where they are aligned. A
// model is much larger than those, and decoding is twice as quick (28 against 14 GB/s of a Zen 4 core) where no line is fetched
// just to be overwritten.
template <bool kStream>
void decode_group(const uint8_t* codes, const uint8_t* low, __m128i top, uint8_t* values) {
  const auto load = [](const uint8_t* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); };
  const auto store = [](uint8_t* p, __m128i x) {
    if constexpr (kStream) _mm_stream_si128(reinterpret_cast<__m128i*>(p), x);
    else _mm_storeu_si128(reinterpret_cast<__m128i*>(p), x);
  };
  const __m128i both = load(codes), mask = _mm_set1_epi8(0x0f);
  const __m128i high[2] = {high_bytes(_mm_and_si128(both, mask), top),
                           high_bytes(_mm_and_si128(_mm_srli_epi16(both, 4), mask), top)};
  for (int half = 0; half < 2; ++half) {
    const __m128i l = load(low + 16 * half);
    store(values + 32 * half, _mm_unpacklo_epi8(l, high[half]));
    store(values + 32 * half + 16, _mm_unpackhi_epi8(l, high[half]));
  }
}

template <bool kStream>
void decode_groups(const uint8_t* codes, const uint8_t* low, size_t groups, int top, uint8_t* values) {
  const __m128i tops = _mm_set1_epi8(static_cast<char>(top));
  for (size_t g = 0; g < groups; ++g) {
    decode_group<kStream>(codes + g * kGroupBytes, low + g * kGroup, tops, values + g * kGroup * 2);
  }
  if (kStream) _mm_sfence();  // other threads read them
}

}  // namespace

std::vector<uint8_t> encode_nibbles(const uint8_t* values, size_t bytes) {
  const size_t n = bytes / 2;
  const int top = best_top(values, n);
  std::vector<uint8_t> out(kHeaderBytes + num_groups(n) * kGroupBytes + n);
  uint8_t* codes = out.data() + kHeaderBytes;
  uint8_t* low = codes + num_groups(n) * kGroupBytes;
  uint32_t num_exceptions = 0;
  for (size_t i = 0; i < n; ++i) {
    const uint8_t high = values[2 * i + 1];
    const int distance = top - (high & 0x7f);
    low[i] = values[2 * i];
    if (distance < 0 || distance >= kExponents) {
      ++num_exceptions;
      continue;
    }
    const size_t j = i % kGroup;
    codes[i / kGroup * kGroupBytes + j % 16] |= static_cast<uint8_t>((high >> 7 << 3 | distance) << (j / 16 * 4));
  }
  out[0] = static_cast<uint8_t>(top);
  std::memcpy(out.data() + 4, &num_exceptions, sizeof num_exceptions);
  out.reserve(out.size() + num_exceptions * sizeof num_exceptions);
  for (size_t i = 0; i < n && num_exceptions > 0; ++i) {
    const uint8_t high = values[2 * i + 1];
    const int distance = top - (high & 0x7f);
    if (distance < 0 || distance >= kExponents) append32(&out, static_cast<uint32_t>(i) << 8 | high);
  }
  return out;
}

bool decode_nibbles(const uint8_t* coded, size_t size, uint8_t* values, size_t bytes) {
  const size_t n = bytes / 2, codes_bytes = num_groups(n) * kGroupBytes;
  if (size < kHeaderBytes + codes_bytes + n) return false;
  const int top = coded[0];
  const uint32_t num_exceptions = load32(coded + 4);
  if (top < kExponents - 1 || top > 127 || coded[1] != 0 || coded[2] != 0 || coded[3] != 0) return false;
  if (size - (kHeaderBytes + codes_bytes + n) != uint64_t{num_exceptions} * sizeof(uint32_t)) return false;
  const uint8_t* codes = coded + kHeaderBytes;
  const uint8_t* low = codes + codes_bytes;
  const uint8_t* exceptions = low + n;

  const size_t whole = n / kGroup;
  const bool aligned = reinterpret_cast<uintptr_t>(values) % sizeof(__m128i) == 0;
  (aligned ? decode_groups<true> : decode_groups<false>)(codes, low, whole, top, values);
  for (size_t i = whole * kGroup; i < n; ++i) {
    const size_t j = i % kGroup;
    values[2 * i] = low[i];
    values[2 * i + 1] = high_byte(codes[whole * kGroupBytes + j % 16] >> (j / 16 * 4) & 0x0f, top);
  }
  size_t next = 0;  // the least position that may follow
  for (uint32_t e = 0; e < num_exceptions; ++e) {
    const uint32_t word = load32(exceptions + e * sizeof word), at = word >> 8;
    if (at < next || at >= n) return false;
    values[2 * size_t{at} + 1] = static_cast<uint8_t>(word);
    next = size_t{at} + 1;
  }
  return true;
}

}  // namespace otr
