// The definition, and every CPU path. A page holds V transposed.
#include "kernels/page/page_transfer.h"

#include <cstring>

#include "kernels/base/thread_pool.h"

namespace otr {
namespace {

// Copies `heads` pairs of K and V; V goes from [from_rows][from_columns] to its transpose.
void move_heads(const Element* from, Element* to, int64_t heads, int from_rows, int from_columns) {
  const int64_t half = int64_t{from_rows} * from_columns;
  for (int64_t head = 0; head < heads; ++head, from += 2 * half, to += 2 * half) {
    std::memcpy(to, from, static_cast<size_t>(half) * sizeof(Element));
    for (int64_t row = 0; row < from_rows; ++row) {
      for (int64_t column = 0; column < from_columns; ++column)
        to[half + column * from_rows + row] = from[half + row * from_columns + column];
    }
  }
}

}  // namespace

void page_gather(const PageGatherParams& p, ThreadPool& pool) {
  const int64_t elements = p.layout.page_elements(), heads = int64_t{p.layout.num_layers} * p.layout.num_kv_heads;
  pool.parallel_for(p.num_ids, [&](int i, int) {
    move_heads(p.pages + p.ids[i] * elements, p.transfer + i * elements, heads, p.layout.head_dim, kPageTokens);
  });
}

void page_scatter(const PageScatterParams& p, ThreadPool& pool) {
  const int64_t elements = p.layout.page_elements(), heads = int64_t{p.layout.num_layers} * p.layout.num_kv_heads;
  pool.parallel_for(p.num_ids, [&](int i, int) {
    move_heads(p.transfer + i * elements, p.pages + p.ids[i] * elements, heads, kPageTokens, p.layout.head_dim);
  });
}

void page_scatter_layer(const PageScatterParams& p, int32_t layer, ThreadPool& pool) {
  const int64_t elements = p.layout.page_elements(), at = layer * p.layout.layer_elements();
  pool.parallel_for(p.num_ids, [&](int i, int) {
    move_heads(p.transfer + i * elements + at, p.pages + p.ids[i] * elements + at, p.layout.num_kv_heads, kPageTokens,
               p.layout.head_dim);
  });
}

}  // namespace otr
