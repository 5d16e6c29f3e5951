#include "kernels/base/elementary.h"
#include "kernels/base/thread_pool.h"
#include "kernels/silu_mul/silu_mul.h"

namespace otr {

void silu_mul_scalar(const SiluMulParams& p, ThreadPool& pool) {
  pool.parallel_for(p.num_rows, [&](int row, int) {
    const float* gate = p.gate_up + int64_t{row} * 2 * p.intermediate_size;
    const float* up = gate + p.intermediate_size;
    Element* out = p.out + row * p.out_stride;
    for (int i = 0; i < p.intermediate_size; ++i) out[i] = to_element(gate[i] / (1.0f + exp32(-gate[i])) * up[i]);
    for (int64_t i = p.intermediate_size; i < p.out_stride; ++i) out[i] = Element{};
  });
}

}  // namespace otr
