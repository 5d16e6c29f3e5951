// cpu-scalar: the definition. A group's partial sum is one float32 chain over k ascending; products of a bf16 and an integer up
// to 15 are exact in float32, so multiply-then-add rounds once a step, as an fma would.
#include "kernels/base/thread_pool.h"
#include "kernels/linear/linear_epilogue.h"
#include "kernels/linear_w4/linear_w4.h"

namespace otr {
namespace {

// acc[lane] += scale * partial, for the 16 outputs of a tile. `words`: their scale words; `nibbles`: their tile of the first
// piece.
void add_group(const uint8_t* words, const uint8_t* nibbles, int pieces, const Element* x, float* acc) {
  for (int lane = 0; lane < kLinearTileN; ++lane) {
    uint32_t word;
    __builtin_memcpy(&word, words + lane * 4, sizeof word);
    const int zero = static_cast<int>(word & kW4ZeroPointMask);
    float partial = 0.0f;
    for (int piece = 0; piece < pieces; ++piece) {
      uint32_t q;
      __builtin_memcpy(&q, nibbles + piece * kW4PieceBytes + lane * 4, sizeof q);
      for (int i = 0; i < kW4PieceK; ++i) {
        const int nibble = static_cast<int>(q >> (i % 2 * 16 + i / 2 * 4) & 0xf);
        partial += to_float(x[piece * kW4PieceK + i]) * static_cast<float>(nibble - zero);
      }
    }
    acc[lane] = fma_(float_from_bits(word), partial, acc[lane]);
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
        for (int tile = 0; tile < 2; ++tile) {
          add_group(group + tile * kLinearTileN * 4, group + kW4WordsBytes + tile * kW4TileBytes,
                    w4_cpu_pieces(w.in_features, g), p.x + row * p.x_stride + g * kW4GroupK, sums + tile * kLinearTileN);
        }
      }
      linear_finish(shape, row, block, sums);
    }
  });
}

}  // namespace otr
