#include "kernels/base/thread_pool.h"
#include "kernels/linear/linear_epilogue.h"

namespace otr {

void linear_scalar(const LinearParams& p, ThreadPool& pool) {
  const int64_t steps = linear_padded(p.weight.in_features) / kLinearStepK;
  const int blocks = static_cast<int>(linear_padded(p.weight.out_features) / kLinearBlockN);
  pool.parallel_for(blocks, [&](int block, int) {
    const Element* weights = p.weight.packed + block * steps * 1024;
    for (int64_t row = 0; row < p.num_rows; ++row) {
      const Element* x = p.x + row * p.x_stride;
      float sums[kLinearBlockN] = {};
      for (int64_t step = 0; step < steps; ++step) {
        for (int tile = 0; tile < 2; ++tile) {
          float* acc = sums + tile * kLinearTileN;
          for (int pair = 0; pair < 16; ++pair) {
            const Element* w = weights + step * 1024 + tile * 512 + pair * 32;
            const float x0 = to_float(x[step * kLinearStepK + 2 * pair]), x1 = to_float(x[step * kLinearStepK + 2 * pair + 1]);
            for (int lane = 0; lane < kLinearTileN; ++lane) {
              acc[lane] += x0 * to_float(w[2 * lane]);
              acc[lane] += x1 * to_float(w[2 * lane + 1]);
            }
          }
        }
      }
      linear_finish(p, row, block, sums);
    }
  });
}

}  // namespace otr
