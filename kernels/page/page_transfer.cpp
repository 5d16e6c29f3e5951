// The definition, and every CPU path.
#include "kernels/page/page_transfer.h"

#include <type_traits>

#include "kernels/base/thread_pool.h"

namespace otr {
namespace {

// Copies `heads` pairs of K and V out of a page, or into it.
template <KvPacking kPacking, bool kOut>
void move_packed(KvLayout layout, int64_t heads, std::conditional_t<kOut, const Element, Element>* page,
                 std::conditional_t<kOut, Element, const Element>* rows) {
  layout.packing = kPacking;
  const int64_t half = layout.head_elements(), head_dim = layout.head_dim;
  for (int64_t head = 0; head < heads; ++head, page += 2 * half, rows += 2 * half) {
    for (int64_t slot = 0; slot < kPageTokens; ++slot) {
      for (int64_t d = 0; d < head_dim; ++d) {
        auto& k = page[layout.k_index(slot, d)];
        auto& v = page[half + layout.v_index(slot, d)];
        auto &k_row = rows[slot * head_dim + d], &v_row = rows[half + slot * head_dim + d];
        if constexpr (kOut) k_row = k, v_row = v;
        else k = k_row, v = v_row;
      }
    }
  }
}

void move_out(const KvLayout& layout, int64_t heads, const Element* page, Element* rows) {
  if (layout.packing == KvPacking::kRows) move_packed<KvPacking::kRows, true>(layout, heads, page, rows);
  else move_packed<KvPacking::kPairs, true>(layout, heads, page, rows);
}

void move_in(const KvLayout& layout, int64_t heads, const Element* rows, Element* page) {
  if (layout.packing == KvPacking::kRows) move_packed<KvPacking::kRows, false>(layout, heads, page, rows);
  else move_packed<KvPacking::kPairs, false>(layout, heads, page, rows);
}

}  // namespace

void page_gather(const PageGatherParams& p, ThreadPool& pool) {
  const int64_t elements = p.layout.page_elements(), heads = int64_t{p.layout.num_layers} * p.layout.num_kv_heads;
  pool.parallel_for(p.num_ids,
                    [&](int i, int) { move_out(p.layout, heads, p.pages + p.ids[i] * elements, p.transfer + i * elements); });
}

void page_scatter(const PageScatterParams& p, ThreadPool& pool) {
  const int64_t elements = p.layout.page_elements(), heads = int64_t{p.layout.num_layers} * p.layout.num_kv_heads;
  pool.parallel_for(p.num_ids,
                    [&](int i, int) { move_in(p.layout, heads, p.transfer + i * elements, p.pages + p.ids[i] * elements); });
}

void page_scatter_layer(const PageScatterParams& p, int32_t layer, ThreadPool& pool) {
  const int64_t elements = p.layout.page_elements(), at = layer * p.layout.layer_elements();
  pool.parallel_for(p.num_ids, [&](int i, int) {
    move_in(p.layout, p.layout.num_kv_heads, p.transfer + i * elements + at, p.pages + p.ids[i] * elements + at);
  });
}

}  // namespace otr
