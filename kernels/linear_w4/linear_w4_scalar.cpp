// cpu-scalar: the definition.
#include "kernels/base/thread_pool.h"
#include "kernels/linear/linear_epilogue.h"
#include "kernels/linear_w4/linear_w4.h"

namespace otr {
namespace {

// A group of x: integers, in order of the inputs, times `unit`.
struct RoundedGroup {
  int integers[kW4GroupK];
  float unit;
};

// Nearest even, of a value between -2^22 and 2^22.
int nearest(float value) {
  constexpr float kMagic = 12582912.0f;  // 1.5 * 2^23: the sum's last bit is worth 1
  return static_cast<int>(bits_from_float(value + kMagic) - bits_from_float(kMagic));
}

RoundedGroup round_group(const Element* x, int inputs) {
  uint32_t greatest = 0;
  for (int i = 0; i < inputs; ++i) {
    const uint32_t magnitude = bits_from_float(to_float(x[i])) & 0x7fffffffu;
    greatest = magnitude > greatest ? magnitude : greatest;
  }
  const W4Unit unit = w4_unit(greatest >> 23);
  RoundedGroup rounded;
  rounded.unit = unit.unit;
  for (int i = 0; i < inputs; ++i) {
    const int nearest_multiple = unit.inverse == 0.0f ? 0 : nearest(to_float(x[i]) * unit.inverse);
    rounded.integers[i] = nearest_multiple > 127 ? 127 : nearest_multiple;
  }
  return rounded;
}

// acc[lane] += scale * unit * partial, for the 16 outputs of a tile. `words`: their scale words; `nibbles`: their tile of the
// first piece.
void add_group(const uint8_t* words, const uint8_t* nibbles, int pieces, const RoundedGroup& x, float* acc) {
  for (int lane = 0; lane < kLinearTileN; ++lane) {
    uint32_t word;
    __builtin_memcpy(&word, words + lane * 4, sizeof word);
    const int zero = static_cast<int>(word & kW4ZeroPointMask);
    int partial = 0;
    for (int piece = 0; piece < pieces; ++piece) {
      uint32_t q;
      __builtin_memcpy(&q, nibbles + piece * kW4PieceBytes + lane * 4, sizeof q);
      for (int i = 0; i < kW4PieceK; ++i) {
        const int nibble = static_cast<int>(q >> (i % 2 * 16 + i / 2 * 4) & 0xf);
        partial += x.integers[piece * kW4PieceK + i] * (nibble - zero);
      }
    }
    acc[lane] = fma_(float_from_bits(word) * x.unit, static_cast<float>(partial), acc[lane]);
  }
}

}  // namespace

void linear_w4_scalar(const LinearW4Params& p, ThreadPool& pool) {
  const LinearW4Weight& w = p.weight;
  const LinearParams shape = linear_shape(p);
  const int blocks = static_cast<int>(linear_padded(w.out_features) / kLinearBlockN);
  pool.parallel_for(blocks, [&](int block, int) {
    const uint8_t* packed = w.packed + block * w4_cpu_block_bytes(w.in_features);
    for (int64_t row = 0; row < p.num_rows; ++row) {
      float sums[kLinearBlockN] = {};
      for (int64_t g = 0; g < w4_cpu_groups(w.in_features); ++g) {
        const uint8_t* group = packed + g * kW4GroupBytes;
        const int pieces = w4_cpu_pieces(w.in_features, g);
        const RoundedGroup x = round_group(p.x + row * p.x_stride + g * kW4GroupK, pieces * kW4PieceK);
        for (int tile = 0; tile < 2; ++tile) {
          add_group(group + tile * kLinearTileN * 4, group + kW4WordsBytes + tile * kW4TileBytes, pieces, x,
                    sums + tile * kLinearTileN);
        }
      }
      linear_finish(shape, row, block, sums);
    }
  });
}

}  // namespace otr
