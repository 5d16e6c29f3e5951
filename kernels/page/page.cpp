// Whole-page moves are memory copies: the same on every CPU path.
#include "kernels/page/page.h"

#include <cstring>

#include "kernels/base/thread_pool.h"

namespace otr {

void page_copy(const PageCopyParams& p, ThreadPool& pool) {
  const int64_t elements = p.layout.page_elements();
  pool.parallel_for(p.num_copies, [&](int i, int) {
    std::memcpy(p.pages + p.to[i] * elements, p.pages + p.from[i] * elements, static_cast<size_t>(p.layout.page_bytes()));
  });
}

void page_zero(const PageZeroParams& p, ThreadPool& pool) {
  const int64_t elements = p.layout.page_elements();
  pool.parallel_for(p.num_ids, [&](int i, int) {
    std::memset(static_cast<void*>(p.pages + p.ids[i] * elements), 0, static_cast<size_t>(p.layout.page_bytes()));
  });
}

}  // namespace otr
