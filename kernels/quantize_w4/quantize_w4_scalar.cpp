// The definition: one output and group at a time.
#include "kernels/base/thread_pool.h"
#include "kernels/quantize_w4/quantize_w4.h"

namespace otr {
namespace {

constexpr float kMagic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer, in the lowest mantissa bits

struct GroupScale {
  uint32_t word;
  float inverse;  // 0: every q is 0
  float magic_and_zero;
};

GroupScale scale_of(float max, float min, bool finite) {
  if (!finite) return {kW4NotFinite, 0.0f, kMagic};
  const float base = (max * 0.5f - min * 0.5f) / 7.5f;
  if (base < kW4SmallestBase) return {0, 0.0f, kMagic};
  const uint32_t cleared = bits_from_float(base) & ~kW4ZeroPointMask;
  const float inverse = 1.0f / float_from_bits(cleared);
  float zero = -min * inverse + kMagic;
  if (zero > kMagic + 15.0f) zero = kMagic + 15.0f;
  return {cleared | (bits_from_float(zero) & kW4ZeroPointMask), inverse, zero};
}

uint32_t quantize(float w, const GroupScale& scale) {
  if (scale.inverse == 0.0f) return 0;
  const float q = w * scale.inverse + scale.magic_and_zero;
  if (q < kMagic) return 0;
  return q > kMagic + 15.0f ? 15 : bits_from_float(q) & 0xf;
}

void quantize_group(const LinearWeight& weight, int64_t n, int64_t g, uint8_t* packed) {
  const int64_t k = weight.in_features;
  const int64_t begin = g * kW4GroupK, end = begin + w4_cpu_pieces(k, g) * kW4PieceK;
  float max = 0.0f, min = 0.0f;
  bool finite = true;
  for (int64_t i = begin; i < end; ++i) {
    const float w = to_float(weight.packed[linear_packed_index(n, i, k)]);
    max = w > max ? w : max;
    min = w < min ? w : min;
    finite = finite && is_finite_bits(w);
  }
  const GroupScale scale = scale_of(max, min, finite);
  __builtin_memcpy(packed + w4_cpu_word_offset(n, g, k), &scale.word, sizeof scale.word);
  for (int64_t i = begin; i < end; i += 4) {  // even or odd inputs of a piece are whole bytes: i and i + 2, i + 1 and i + 3
    for (int64_t odd = 0; odd < 2; ++odd) {
      const uint32_t lower = quantize(to_float(weight.packed[linear_packed_index(n, i + odd, k)]), scale);
      const uint32_t upper = quantize(to_float(weight.packed[linear_packed_index(n, i + odd + 2, k)]), scale);
      packed[w4_cpu_nibble_index(n, i + odd, k) / 2] = static_cast<uint8_t>(lower | upper << 4);
    }
  }
}

}  // namespace

void quantize_w4_scalar(const QuantizeW4Params& p, ThreadPool& pool) {
  const int blocks = static_cast<int>(linear_padded(p.weight.out_features) / kLinearBlockN);
  pool.parallel_for(blocks, [&](int block, int) {
    for (int lane = 0; lane < kLinearBlockN; ++lane) {
      for (int64_t g = 0; g < w4_cpu_groups(p.weight.in_features); ++g) {
        quantize_group(p.weight, int64_t{block} * kLinearBlockN + lane, g, p.packed);
      }
    }
  });
}

}  // namespace otr
