// What every path does after its own part: rows whose key and value stand on further pages too (KvCopy). Copies bits.
#include "kernels/base/thread_pool.h"
#include "kernels/rope_append/rope_append.h"

namespace otr {

void rope_append_copies(const RopeAppendParams& p, ThreadPool& pool) {
  const RowBatch& rows = *p.rows;
  if (rows.num_copies == 0) return;
  const int64_t head_dim = p.layout.head_dim, page_elements = p.layout.page_elements();
  pool.parallel_for(rows.num_copies, [&](int i, int) {
    const KvCopy& copy = rows.copies[i];
    const int64_t slot = rows.positions[copy.row] % kPageTokens;
    for (int h = 0; h < p.layout.num_kv_heads; ++h) {
      const Element* from = p.pages + copy.from * page_elements;
      Element* to = p.pages + copy.to * page_elements;
      for (int64_t d = 0; d < head_dim; ++d) {
        const int64_t k = p.layout.k_offset(p.layer, h) + p.layout.k_index(slot, d);
        const int64_t v = p.layout.v_offset(p.layer, h) + p.layout.v_index(slot, d);
        to[k] = from[k];
        to[v] = from[v];
      }
    }
  });
}

}  // namespace otr
