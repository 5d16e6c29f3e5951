#include "kernels/base/elementary64.h"
#include "kernels/base/thread_pool.h"
#include "kernels/rope_append/rope_append.h"

namespace otr {

void rope_table(const RopeTableParams& p, ThreadPool& pool) {
  pool.parallel_for(p.num_rows, [&](int row, int) {
    const float position = static_cast<float>(p.positions[row]);
    for (int i = 0; i < p.half_dim; ++i) {
      const SinCos sc = sincos64(static_cast<double>(p.inv_freq[i] * position));
      p.cos[int64_t{row} * p.half_dim + i] = static_cast<float>(sc.cos) * p.scale;
      p.sin[int64_t{row} * p.half_dim + i] = static_cast<float>(sc.sin) * p.scale;
    }
  });
}

}  // namespace otr
