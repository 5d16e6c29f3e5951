// attention: softmax(q K^T * scale) V over a sequence's pages, causal by absolute position. One op for prefill, decode, verify.
//
// Reduction order: a function of absolute key positions alone. Keys are cut at multiples of kAttentionSplit; each split i gives
// unnormalised float32
//   m_i = max_j s_j,  l_i = sum_j exp(s_j - m_i),  o_i = sum_j Element(exp(s_j - m_i)) v_j     keys ascending
// and the splits are merged in ascending order:
//   m' = max(m, m_i);  l = l * exp(m - m') + l_i * exp(m_i - m');  o likewise;  finally out = o / l.
// s_j = (q . k_j) * scale, float32. cpu-scalar: every sum is one chain, ascending. The vector paths keep the splits and fix
// their own order inside one (attention_tile.h, common to two of them). Inside a split, with j counted from its first key:
//               q . k_j                            l_i                              o_i
//   cpu-avx2    one fma chain                      16 chains, j % 16, then halves   one fma chain over j
//   cpu-avx512  one chain of VDPBF16PS over pairs  likewise                         one chain of VDPBF16PS over pairs of j
//   cpu-amx     TDPBF16PS over steps of 32         TDPBF16PS over steps of 32 keys  TDPBF16PS over steps of 32 keys
// cpu-amx merges segments of kAttentionAmxSegment keys, and keeps running sums through the splits of one: with m_i the maximum
// of split i's dots, the reference m stays where it is unless (m_i - m) * scale * log2(e) > 8, when it becomes m_i and l and o
// are scaled by exp((m - m_i) * scale); then the split's Element(exp((dot - m) * scale)), rounded from
// attention_amx_softmax.h's own exp, are added to l as to o, in the sums themselves. The exponent is fma(dot, scale * log2(e),
// -m * scale * log2(e)), its last operand rounded, where that is smaller than 4096, else (dot - m) * (scale * log2(e)). The
// first segment is taken as it is; with m_s the reference of a later one, m' = max(m, m_s) and
//   l = fma(l, exp((m - m') * scale), l_s * exp((m_s - m') * scale));  o likewise.
//
// Keys after a row's position count exactly zero: exp gives 0 and every slot of a page holds finite values (page.h).
#pragma once

#include <cstdint>

#include "kernels/base/element.h"
#include "kernels/base/row_batch.h"
#include "kernels/page/page.h"

namespace otr {

class ThreadPool;

inline constexpr int kAttentionSplit = 256;  // keys; a multiple of kPageTokens
inline constexpr int kAttentionSplitPages = kAttentionSplit / kPageTokens;
inline constexpr int kAttentionAmxSegment = 2048;  // keys; a multiple of kAttentionSplit
inline constexpr int kAttentionLanes = 16;         // query rows x group heads that a task holds
inline constexpr int kAttentionAmxLanes = 128;     // likewise, of cpu-amx
inline constexpr int kAttentionMaxHeadDim = 256;

// Query tokens of one RowTile: as many as share a task with all heads of their group.
OTR_INLINE constexpr int attention_tile_rows(int num_heads, int num_kv_heads) {
  const int group = num_heads / num_kv_heads;
  return group >= kAttentionLanes ? 1 : kAttentionLanes / group;
}

// REQUIRES: head_dim even (cpu-avx2, cpu-avx512: a multiple of 16) and at most kAttentionMaxHeadDim; pages packed as the path's
// table says; tiles, and bundles, of at most attention_tile_rows rows (cpu-amx: attention_amx_tile_rows).
struct AttentionParams {
  const RowBatch* rows;
  int32_t layer;
  int32_t num_heads;  // a multiple of layout.num_kv_heads
  KvLayout layout;
  float scale;                 // 1 / sqrt(head_dim)
  const Element* q;            // [num_rows][num_heads][head_dim]
  const Element* pages;        // [num_pages][page_elements], packed as layout.packing says
  Element* out;                // [num_rows][out_stride]; num_heads * head_dim values, the rest is left alone
  int64_t out_stride;          // a multiple of 32
  int32_t max_keys = 0;        // on a device: bounds every row's position + 1
  float* workspace = nullptr;  // on a device: [workspace_size], may be null
  int64_t workspace_size = 0;
};

void attention_scalar(const AttentionParams& params, ThreadPool& pool);
void attention_avx2(const AttentionParams& params, ThreadPool& pool);
void attention_avx512(const AttentionParams& params, ThreadPool& pool);
void attention_amx(const AttentionParams& params, ThreadPool& pool);
int attention_amx_tile_rows(int num_heads, int num_kv_heads);

}  // namespace otr
