// The KV page: 64 tokens of K and V of every layer, the unit of allocation, sharing and transfer.
//
// One page is contiguous: [num_layers][num_kv_heads]{ K [64][head_dim], V [head_dim][64] }, Element.
// K is row-major and V transposed, so that in attention both products read pages as the left operand of a small matrix product
// whose 16 columns are query rows: S^T = K q^T and O^T = V^T P^T. Softmax then runs down a column: no sum crosses lanes.
// (Attention asks that slots never written hold finite values: pages are zeroed when they are handed out.)
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/base/element.h"
#include "kernels/base/row_batch.h"

namespace otr {

class ThreadPool;

inline constexpr int kPageTokens = 64;

struct KvLayout {
  int32_t num_layers = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;

  OTR_HOST_DEVICE constexpr int64_t head_elements() const { return int64_t{kPageTokens} * head_dim; }  // of K or of V
  OTR_HOST_DEVICE constexpr int64_t layer_elements() const {
    return 2 * head_elements() * num_kv_heads;
  }  // of a page: in one piece
  OTR_HOST_DEVICE constexpr int64_t page_elements() const { return layer_elements() * num_layers; }
  OTR_HOST_DEVICE constexpr int64_t page_bytes() const { return page_elements() * static_cast<int64_t>(sizeof(Element)); }
  // Element offsets inside a page.
  OTR_HOST_DEVICE constexpr int64_t k_offset(int layer, int kv_head) const {
    return (int64_t{layer} * num_kv_heads + kv_head) * 2 * head_elements();
  }
  OTR_HOST_DEVICE constexpr int64_t v_offset(int layer, int kv_head) const {
    return k_offset(layer, kv_head) + head_elements();
  }
};

struct PageCopyParams {
  KvLayout layout;
  Element* pages;      // [num_pages][page_elements]
  const PageId* from;  // [num_copies]
  const PageId* to;    // [num_copies], distinct, none among `from`
  int32_t num_copies;
};
void page_copy(const PageCopyParams& params, ThreadPool& pool);

struct PageZeroParams {
  KvLayout layout;
  Element* pages;     // [num_pages][page_elements]
  const PageId* ids;  // [num_ids]
  int32_t num_ids;
};
void page_zero(const PageZeroParams& params, ThreadPool& pool);

}  // namespace otr
