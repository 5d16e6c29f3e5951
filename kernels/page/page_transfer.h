// Pages as they leave an engine and come back, whatever packing its path uses inside: [num_layers][num_kv_heads]{ K
// [64][head_dim], V [64][head_dim] }, row-major, one page behind the other in `transfer`.
//
// Errors: none. Thread safety: what is read may be read by others.
#pragma once

#include "kernels/page/page.h"

namespace otr {

struct PageGatherParams {
  KvLayout layout;
  const Element* pages;  // [num_pages][page_elements]
  const PageId* ids;     // [num_ids]
  int32_t num_ids;
  Element* transfer;  // [num_ids][page_elements], aligned to 16 bytes
};
void page_gather(const PageGatherParams& params, ThreadPool& pool);

struct PageScatterParams {
  KvLayout layout;
  Element* pages;     // [num_pages][page_elements]
  const PageId* ids;  // [num_ids], distinct
  int32_t num_ids;
  const Element* transfer;  // [num_ids][page_elements], aligned to 16 bytes
};
void page_scatter(const PageScatterParams& params, ThreadPool& pool);
// One layer of them, on the host.
void page_scatter_layer(const PageScatterParams& params, int32_t layer, ThreadPool& pool);

}  // namespace otr
