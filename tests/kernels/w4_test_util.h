// What the tests of the 4-bit kernels share: packing for linear, and reading a quantised weight through the layout's functions.
#pragma once

#include "kernels/linear_w4/linear_w4.h"
#include "kernels/quantize_w4/quantize_w4.h"
#include "tests/kernels/kernel_test_util.h"

namespace otr::testing_util {

struct W4Shape {
  int n, k;
};
inline constexpr W4Shape kW4Shapes[] = {{1, 1},    {33, 31},  {32, 33},  {31, 127}, {64, 128}, {15, 129},
                                        {70, 224}, {17, 160}, {40, 257}, {1, 4864}, {33, 896}};

inline uint32_t w4_word(const uint8_t* packed, int64_t n, int64_t k, int64_t in_features) {
  uint32_t word;
  std::memcpy(&word, packed + w4_cpu_word_offset(n, k / kW4GroupK, in_features), sizeof word);
  return word;
}
inline int w4_zero(const uint8_t* packed, int64_t n, int64_t k, int64_t in_features) {
  return static_cast<int>(w4_word(packed, n, k, in_features) & 15);
}
inline int w4_nibble(const uint8_t* packed, int64_t n, int64_t k, int64_t in_features) {
  const int64_t at = w4_cpu_nibble_index(n, k, in_features);
  return packed[at / 2] >> (at % 2 * 4) & 15;
}
inline void set_w4_nibble(uint8_t* packed, int64_t n, int64_t k, int64_t in_features, int value) {
  const int64_t at = w4_cpu_nibble_index(n, k, in_features);
  packed[at / 2] = static_cast<uint8_t>((packed[at / 2] & (at % 2 != 0 ? 0x0f : 0xf0)) | value << (at % 2 * 4));
}
inline double w4_weight(const uint8_t* packed, int64_t n, int64_t k, int64_t in_features) {
  const double scale = static_cast<double>(float_from_bits(w4_word(packed, n, k, in_features)));
  return scale * (w4_nibble(packed, n, k, in_features) - w4_zero(packed, n, k, in_features));
}

// Quantises w [n][k] by a path's kernel, both operands guarded.
inline std::vector<uint8_t> quantize(const KernelTable& kernels, const std::vector<Element>& w, W4Shape s,
                                     Guard guard = Guard::kAtEnd, int threads = 1) {
  GuardedBuffer<Element> weight(static_cast<size_t>(linear_packed_elements(s.n, s.k)), guard);
  GuardedBuffer<uint8_t> packed(static_cast<size_t>(w4_cpu_packed_bytes(s.n, s.k)), guard);
  std::memset(packed.data(), 0xa5, packed.values().size());
  pack_linear(w.data(), s.n, s.k, weight.data());
  ThreadPool pool(threads);
  kernels.quantize_w4({{s.k, s.n, weight.data(), nullptr}, packed.data()}, pool);
  return packed.values();
}

}  // namespace otr::testing_util
