// The definition: one output and group at a time.
#include "kernels/base/thread_pool.h"
#include "kernels/quantize_w4/quantize_w4_group.h"

namespace otr {
namespace {

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
  const W4Scale scale = w4_scale(max, min, finite);
  __builtin_memcpy(packed + w4_cpu_word_offset(n, g, k), &scale.word, sizeof scale.word);
  for (int64_t i = begin; i < end; i += 4) {  // even or odd inputs of a piece are whole bytes: i and i + 2, i + 1 and i + 3
    for (int64_t odd = 0; odd < 2; ++odd) {
      const uint32_t lower = w4_quantize(to_float(weight.packed[linear_packed_index(n, i + odd, k)]), scale);
      const uint32_t upper = w4_quantize(to_float(weight.packed[linear_packed_index(n, i + odd + 2, k)]), scale);
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
