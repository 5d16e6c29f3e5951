#include "kernels/embed/embed.h"

#include "kernels/base/thread_pool.h"

namespace otr {

void embed(const EmbedParams& p, ThreadPool& pool) {
  pool.parallel_for(p.num_rows, [&](int row, int) {
    const Element* src = p.table + int64_t{p.token_ids[row]} * p.hidden_size;
    float* dst = p.out + int64_t{row} * p.hidden_size;
    for (int i = 0; i < p.hidden_size; ++i) dst[i] = to_float(src[i]);
  });
}

}  // namespace otr
