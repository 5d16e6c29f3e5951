// cpu-scalar: the definition.
#include "kernels/base/integers.h"
#include "kernels/base/thread_pool.h"
#include "kernels/linear/linear_epilogue.h"
#include "kernels/linear_w4/linear_w4.h"
#include "kernels/simd/four.h"

namespace otr {
namespace {

constexpr int kRows = 32;
constexpr int kFours = kLinearTileN / 4;

// A group of 16 outputs: quantised weights less their zero points, inputs ascending. Integers in float32: products and sums of
// a group stay below 2^18, so that they are exact in any order.
union WideGroup {
  float integer[kW4GroupK][kLinearTileN];
  Four fours[kW4GroupK][kFours];
};

// A group of x: integers, in order of the inputs, times `unit`.
struct RoundedGroup {
  float integers[kW4GroupK];
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
    rounded.integers[i] = static_cast<float>(nearest_multiple > 127 ? 127 : nearest_multiple);
  }
  return rounded;
}

// `words`: scale words of a tile's 16 outputs; `nibbles`: their tile of the first piece.
void widen(const uint8_t* words, const uint8_t* nibbles, int pieces, WideGroup* wide) {
  for (int lane = 0; lane < kLinearTileN; ++lane) {
    uint32_t word;
    __builtin_memcpy(&word, words + lane * 4, sizeof word);
    const int zero = static_cast<int>(word & kW4ZeroPointMask);
    for (int piece = 0; piece < pieces; ++piece) {
      uint32_t q;
      __builtin_memcpy(&q, nibbles + piece * kW4PieceBytes + lane * 4, sizeof q);
      for (int i = 0; i < kW4PieceK; ++i) {
        const int nibble = static_cast<int>(q >> (i % 2 * 16 + i / 2 * 4) & 0xf);
        wide->integer[piece * kW4PieceK + i][lane] = static_cast<float>(nibble - zero);
      }
    }
  }
}

// acc[lane] += scale * unit * partial, for the 16 outputs of a tile.
void add_group(const uint8_t* words, const WideGroup& wide, int inputs, const RoundedGroup& x, float* acc) {
  Four partial[kFours] = {};
  for (int input = 0; input < inputs; ++input) {
    for (int i = 0; i < kFours; ++i) partial[i] += x.integers[input] * wide.fours[input][i];
  }
  for (int lane = 0; lane < kLinearTileN; ++lane) {
    uint32_t word;
    __builtin_memcpy(&word, words + lane * 4, sizeof word);
    acc[lane] = fma_(float_from_bits(word) * x.unit, partial[lane / 4][lane % 4], acc[lane]);
  }
}

}  // namespace

void linear_w4_scalar(const LinearW4Params& p, ThreadPool& pool) {
  const LinearW4Weight& w = p.weight;
  const LinearParams shape = linear_shape(p);
  const int blocks = static_cast<int>(linear_padded(w.out_features) / kLinearBlockN);
  pool.parallel_for(blocks, [&](int block, int) {
    const uint8_t* packed = w.packed + block * w4_cpu_block_bytes(w.in_features);
    for (int64_t first = 0; first < p.num_rows; first += kRows) {
      const int rows = static_cast<int>(smaller_of<int64_t>(p.num_rows - first, kRows));
      float sums[kRows][kLinearBlockN] = {};
      for (int64_t g = 0; g < w4_cpu_groups(w.in_features); ++g) {
        const uint8_t* group = packed + g * kW4GroupBytes;
        const int pieces = w4_cpu_pieces(w.in_features, g), inputs = pieces * kW4PieceK;
        WideGroup wide[2];
        for (int tile = 0; tile < 2; ++tile) {
          widen(group + tile * kLinearTileN * 4, group + kW4WordsBytes + tile * kW4TileBytes, pieces, &wide[tile]);
        }
        for (int row = 0; row < rows; ++row) {
          const RoundedGroup x = round_group(p.x + (first + row) * p.x_stride + g * kW4GroupK, inputs);
          for (int tile = 0; tile < 2; ++tile) {
            add_group(group + tile * kLinearTileN * 4, wide[tile], inputs, x, sums[row] + tile * kLinearTileN);
          }
        }
      }
      for (int row = 0; row < rows; ++row) linear_finish(shape, first + row, block, sums[row]);
    }
  });
}

}  // namespace otr
