// The definition, and every CPU path.
#include "kernels/page/page_transfer.h"

#include <cstring>

#include "kernels/base/thread_pool.h"

namespace otr {
namespace {

// One head's K or V between a page and rows [64][head_dim]; kOut: out of the page.
template <bool kOut, typename Page, typename Rows>
void move(Page* page, Rows* rows, int64_t elements) {
  const size_t bytes = static_cast<size_t>(elements) * sizeof(Element);
  if constexpr (kOut) std::memcpy(rows, page, bytes);
  else std::memcpy(page, rows, bytes);
}

template <bool kOut, typename Page, typename Rows>
void move_keys(const KvLayout& layout, Page* page, Rows* rows) {
  if (layout.packing == KvPacking::kRows) return move<kOut>(page, rows, layout.head_elements());
  for (int64_t slot = 0; slot < kPageTokens; ++slot, rows += layout.head_dim) {
    Page* pair = page + layout.k_index(slot, 0);
    for (int64_t d = 0; d < layout.head_dim; d += 2, pair += 2 * kKvLanes) move<kOut>(pair, rows + d, 2);
  }
}

// In the order in which they lie in the page: of either packing.
template <bool kOut, typename Page, typename Rows>
void move_values(const KvLayout& layout, Page* page, Rows* rows) {
  const int64_t head_dim = layout.head_dim, pairs = layout.packing == KvPacking::kPairs ? 2 : 1;
  const int64_t width = pairs == 2 ? kKvLanes : 1;  // channels beside each other
  for (int64_t first = 0; first < head_dim; first += width) {
    for (int64_t slot = 0; slot < kPageTokens; slot += pairs) {
      for (int64_t d = first; d < first + width; ++d) {
        for (int64_t i = 0; i < pairs; ++i, ++page) move<kOut>(page, rows + (slot + i) * head_dim + d, 1);
      }
    }
  }
}

// `heads` pairs of K and V.
template <bool kOut, typename Page, typename Rows>
void move_heads(const KvLayout& layout, int64_t heads, Page* page, Rows* rows) {
  const int64_t half = layout.head_elements();
  for (int64_t head = 0; head < heads; ++head, page += 2 * half, rows += 2 * half) {
    move_keys<kOut>(layout, page, rows);
    move_values<kOut>(layout, page + half, rows + half);
  }
}

}  // namespace

void page_gather(const PageGatherParams& p, ThreadPool& pool) {
  const int64_t elements = p.layout.page_elements(), heads = int64_t{p.layout.num_layers} * p.layout.num_kv_heads;
  pool.parallel_for(p.num_ids, [&](int i, int) {
    move_heads<true>(p.layout, heads, p.pages + p.ids[i] * elements, p.transfer + i * elements);
  });
}

void page_scatter(const PageScatterParams& p, ThreadPool& pool) {
  const int64_t elements = p.layout.page_elements(), heads = int64_t{p.layout.num_layers} * p.layout.num_kv_heads;
  pool.parallel_for(p.num_ids, [&](int i, int) {
    move_heads<false>(p.layout, heads, p.pages + p.ids[i] * elements, p.transfer + i * elements);
  });
}

void page_scatter_layer(const PageScatterParams& p, int32_t layer, ThreadPool& pool) {
  const int64_t elements = p.layout.page_elements(), at = layer * p.layout.layer_elements();
  pool.parallel_for(p.num_ids, [&](int i, int) {
    move_heads<false>(p.layout, p.layout.num_kv_heads, p.pages + p.ids[i] * elements + at, p.transfer + i * elements + at);
  });
}

}  // namespace otr
