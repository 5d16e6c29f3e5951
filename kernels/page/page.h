// The KV page: 64 tokens of K and V of every layer, the unit of allocation, sharing and transfer.
//
// One page is contiguous: [num_layers][num_kv_heads]{ K, V }, Element; K and V are packed as the path's attention reads them:
//
//   kRows    K [64][head_dim], V [head_dim][64]: both are the left operand of a small matrix product whose 16 columns are query
//            rows: S^T = K q^T and O^T = V^T P^T
//   kPairs   K [64 / 16][head_dim / 2][16 keys][2], V [head_dim / 16][64 / 2][16][2 keys]: both are the right operand, in the
//            order in which vectors of 16 pairs are read: S = q K^T and O = P V. REQUIRES: head_dim is a multiple of 16
//
// (Attention asks that slots never written hold finite values: pages are zeroed when they are handed out.)
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/base/element.h"
#include "kernels/base/row_batch.h"

namespace otr {

class ThreadPool;

inline constexpr int kPageTokens = 64;
inline constexpr int kKvLanes = 16;  // keys, or channels of values, of a vector of kPairs

enum class KvPacking : uint8_t { kRows, kPairs };

struct KvLayout {
  int32_t num_layers = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  KvPacking packing = KvPacking::kRows;

  OTR_INLINE_MEMBER constexpr int64_t head_elements() const { return int64_t{kPageTokens} * head_dim; }  // of K or of V
  OTR_INLINE_MEMBER constexpr int64_t layer_elements() const {
    return 2 * head_elements() * num_kv_heads;
  }  // of a page: in one piece
  OTR_INLINE_MEMBER constexpr int64_t page_elements() const { return layer_elements() * num_layers; }
  OTR_INLINE_MEMBER constexpr int64_t page_bytes() const { return page_elements() * static_cast<int64_t>(sizeof(Element)); }
  // Element offsets inside a page.
  OTR_INLINE_MEMBER constexpr int64_t k_offset(int layer, int kv_head) const {
    return (int64_t{layer} * num_kv_heads + kv_head) * 2 * head_elements();
  }
  OTR_INLINE_MEMBER constexpr int64_t v_offset(int layer, int kv_head) const {
    return k_offset(layer, kv_head) + head_elements();
  }
  // From there to channel d of the key or value in `slot`.
  OTR_INLINE_MEMBER constexpr int64_t k_index(int64_t slot, int64_t d) const {
    if (packing == KvPacking::kRows) return slot * head_dim + d;
    return ((slot / kKvLanes * head_dim + d / 2 * 2) * kKvLanes) + slot % kKvLanes * 2 + d % 2;
  }
  OTR_INLINE_MEMBER constexpr int64_t v_index(int64_t slot, int64_t d) const {
    if (packing == KvPacking::kRows) return d * kPageTokens + slot;
    return ((d / kKvLanes * kPageTokens + slot / 2 * 2) * kKvLanes) + d % kKvLanes * 2 + slot % 2;
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
