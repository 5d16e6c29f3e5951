// The definition. Weights are widened once for up to kRows rows; 16 outputs go side by side, which compilers turn into vectors:
// with SSE2 half of what its multiplications and additions could do (one Zen 4 core: 28 of 58 GFLOP/s).
#include "kernels/base/integers.h"
#include "kernels/base/thread_pool.h"
#include "kernels/linear/linear_epilogue.h"
#include "kernels/simd/four.h"

namespace otr {
namespace {

constexpr int kRows = 32;
constexpr int kFours = kLinearTileN / 4;
union WideTile {  // a step of 16 outputs, inputs ascending
  float element[kLinearStepK][kLinearTileN];
  Four fours[kLinearStepK][kFours];
};

void widen(const Element* packed, WideTile* wide) {
  for (int input = 0; input < kLinearStepK; input += 2, packed += 2 * kLinearTileN) {
    for (int lane = 0; lane < kLinearTileN; ++lane) {
      wide->element[input][lane] = to_float(packed[2 * lane]);
      wide->element[input + 1][lane] = to_float(packed[2 * lane + 1]);
    }
  }
}

void add_step(const Element* x, const WideTile& wide, Four* sums) {
  Four acc[kFours];
  for (int i = 0; i < kFours; ++i) acc[i] = sums[i];
  for (int input = 0; input < kLinearStepK; ++input) {
    const float value = to_float(x[input]);
    for (int i = 0; i < kFours; ++i) acc[i] += value * wide.fours[input][i];
  }
  for (int i = 0; i < kFours; ++i) sums[i] = acc[i];
}

}  // namespace

void linear_scalar(const LinearParams& p, ThreadPool& pool) {
  const int64_t steps = linear_padded(p.weight.in_features) / kLinearStepK;
  const int blocks = static_cast<int>(linear_padded(p.weight.out_features) / kLinearBlockN);
  pool.parallel_for(blocks, [&](int block, int) {
    constexpr int kTileElements = kLinearStepK * kLinearTileN;
    for (int64_t first = 0; first < p.num_rows; first += kRows) {
      const int rows = static_cast<int>(smaller_of<int64_t>(p.num_rows - first, kRows));
      Four sums[kRows][2 * kFours] = {};
      const Element* packed = p.weight.packed + block * steps * 2 * kTileElements;
      for (int64_t step = 0; step < steps; ++step) {
        for (int tile = 0; tile < 2; ++tile, packed += kTileElements) {
          WideTile wide;
          widen(packed, &wide);
          for (int row = 0; row < rows; ++row) {
            add_step(p.x + (first + row) * p.x_stride + step * kLinearStepK, wide, sums[row] + tile * kFours);
          }
        }
      }
      for (int row = 0; row < rows; ++row) linear_finish(p, first + row, block, reinterpret_cast<const float*>(sums[row]));
    }
  });
}

}  // namespace otr
