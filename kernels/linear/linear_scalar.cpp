// cpu-scalar: the definition. Each output is one float32 chain over k ascending. A product of two bf16 values is exact in
// float32, so multiply-then-add rounds once a step, as an fma would.
#include "kernels/base/thread_pool.h"
#include "kernels/linear/linear.h"

namespace otr {

void linear_scalar(const LinearParams& p, ThreadPool& pool) {
  const int64_t steps = linear_padded(p.weight.in_features) / kLinearStepK;
  const int tiles = static_cast<int>((p.weight.out_features + kLinearTileN - 1) / kLinearTileN);
  pool.parallel_for(tiles, [&](int tile, int) {
    const int64_t block = tile / 2;
    const Element* w_tile = p.weight.packed + (block * steps * 2 + tile % 2) * 512;
    const int n0 = tile * kLinearTileN;
    const int lanes = p.weight.out_features - n0 < kLinearTileN ? p.weight.out_features - n0 : kLinearTileN;
    for (int64_t row = 0; row < p.num_rows; ++row) {
      const Element* x = p.x + row * p.x_stride;
      float acc[kLinearTileN] = {};
      for (int64_t step = 0; step < steps; ++step) {
        for (int pair = 0; pair < 16; ++pair) {
          const Element* w = w_tile + step * 1024 + pair * 32;
          const float x0 = to_float(x[step * kLinearStepK + 2 * pair]), x1 = to_float(x[step * kLinearStepK + 2 * pair + 1]);
          for (int lane = 0; lane < kLinearTileN; ++lane) {
            acc[lane] += x0 * to_float(w[2 * lane]);
            acc[lane] += x1 * to_float(w[2 * lane + 1]);
          }
        }
      }
      for (int lane = 0; lane < lanes; ++lane) {
        const float y = p.weight.bias != nullptr ? acc[lane] + p.weight.bias[n0 + lane] : acc[lane];
        const int64_t i = row * p.out_stride + n0 + lane;
        p.out[i] = p.residual != nullptr ? p.residual[i] + y : y;
      }
    }
  });
}

}  // namespace otr
