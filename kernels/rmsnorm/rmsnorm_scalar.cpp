#include <cmath>

#include "kernels/base/thread_pool.h"
#include "kernels/rmsnorm/rmsnorm.h"

namespace otr {

void rmsnorm_scalar(const RmsNormParams& p, ThreadPool& pool) {
  pool.parallel_for(p.num_rows, [&](int row, int) {
    const int64_t source = p.row_index != nullptr ? p.row_index[row] : row;
    const float* x = p.x + source * p.hidden_size;
    Element* out = p.out + row * p.out_stride;
    double sum = 0.0;
    for (int i = 0; i < p.hidden_size; ++i) sum += static_cast<double>(x[i]) * x[i];
    const float inv = 1.0f / std::sqrt(static_cast<float>(sum / p.hidden_size) + p.eps);
    for (int i = 0; i < p.hidden_size; ++i) out[i] = to_element(x[i] * inv * p.weight[i]);
    for (int64_t i = p.hidden_size; i < p.out_stride; ++i) out[i] = Element{};
  });
}

}  // namespace otr
