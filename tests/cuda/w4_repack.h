// A 4-bit weight from the CPU paths' layout into that of sm_90a and back, nibble by nibble.
#pragma once

#include <cstring>
#include <vector>

#include "kernels/layouts/w4_fragments.h"
#include "kernels/linear_w4/linear_w4.h"

namespace otr::testing_util {

// Where the CPU paths' gated weight has row n of the gates, then the ups.
inline int64_t gated_row(int64_t n, int64_t out_features) {
  const int64_t i = n % (out_features / 2);
  return i / kLinearTileN * kLinearBlockN + i % kLinearTileN + (n < out_features / 2 ? 0 : kLinearTileN);
}

inline int w4_nibble_at(const uint8_t* packed, int64_t index) { return packed[index / 2] >> (index % 2 * 4) & 15; }
inline void set_w4_nibble_at(uint8_t* packed, int64_t index, int value) {
  packed[index / 2] = static_cast<uint8_t>((packed[index / 2] & (index % 2 != 0 ? 0x0f : 0xf0)) | value << (index % 2 * 4));
}

// `paired`: a gated weight. Padding is what quantize_w4_sm90 makes of zeros: every q the zero point, scales of no output 0.
inline std::vector<uint8_t> repack_w4(const uint8_t* packed, int64_t out_features, int64_t in_features, bool paired) {
  std::vector<uint8_t> to(static_cast<size_t>(w4_sm90_packed_bytes(out_features, in_features)));
  for (int64_t n = 0; n < out_features; ++n) {
    const int64_t from_row = paired ? gated_row(n, out_features) : n, row = w4_sm90_row(n, out_features, paired);
    for (int64_t g = 0; g < w4_sm90_groups(in_features); ++g) {
      uint32_t word;
      std::memcpy(&word, packed + w4_cpu_word_offset(from_row, g, in_features), sizeof word);
      std::memcpy(to.data() + w4_sm90_word_offset(row, g, in_features), &word, sizeof word);
      for (int64_t k = g * kW4GroupK; k < (g + 1) * kW4GroupK; ++k) {
        const int q = k < in_features ? w4_nibble_at(packed, w4_cpu_nibble_index(from_row, k, in_features))
                                      : static_cast<int>(word & kW4ZeroPointMask);
        set_w4_nibble_at(to.data(), w4_sm90_nibble_index(row, k, in_features), q);
      }
    }
  }
  return to;
}

// The CPU paths' form, padding included, of a weight that is not paired.
inline void unpack_w4(const std::vector<uint8_t>& packed, int64_t out_features, int64_t in_features, uint8_t* to) {
  for (int64_t row = 0; row < linear_padded(out_features); ++row) {
    for (int64_t g = 0; g < w4_cpu_groups(in_features); ++g)
      std::memcpy(to + w4_cpu_word_offset(row, g, in_features), packed.data() + w4_sm90_word_offset(row, g, in_features), 4);
    for (int64_t k = 0; k < linear_padded(in_features); ++k) {
      set_w4_nibble_at(to, w4_cpu_nibble_index(row, k, in_features),
                       w4_nibble_at(packed.data(), w4_sm90_nibble_index(row, k, in_features)));
    }
  }
}

}  // namespace otr::testing_util
