// rope_append: splits the fused qkv row, normalises q and k per head (Qwen3), rotates them, and appends k and v to the pages.
//
//   q, k <- rmsnorm per head with q_norm / k_norm                                          if given
//   (a, b) = (x[i], x[i + d/2]) -> (a cos - b sin, b cos + a sin),  d = head_dim, i < d/2   half-split pairs, as in Qwen
//
// The angle is float32(inv_freq[i] * position), as the reference implementations compute it; its cosine and sine come from a
// table of the tick's rows (rope_table), shared by all layers. Rounded once, to Element, when stored.
//
// A non-finite k or v would reach other rows through 0 * Inf in attention, so it is stored as 0 and raises the row's fault
// flag; a faulted row that is accepted fails its request, and only that.
//
// Reduction order (the per-head norm): cpu-scalar float64 ascending; vector paths 16 float32 lanes, then by halves.
#pragma once

#include <cstdint>

#include "kernels/base/element.h"
#include "kernels/base/row_batch.h"
#include "kernels/page/page.h"

namespace otr {

class ThreadPool;

struct RopeTableParams {
  int32_t num_rows;
  int32_t half_dim;          // head_dim / 2
  const int32_t* positions;  // [num_rows]
  const float* inv_freq;     // [half_dim]
  float scale;               // multiplies cosine and sine (YaRN's attention factor; else 1)
  float* cos;                // [num_rows][half_dim]
  float* sin;                // [num_rows][half_dim]
};
void rope_table(const RopeTableParams& params, ThreadPool& pool);

inline constexpr int kRopeMaxHeadDim = 256;

// REQUIRES: head_dim at most kRopeMaxHeadDim.
struct RopeAppendParams {
  const RowBatch* rows;
  int32_t layer;
  int32_t num_heads;    // query heads
  KvLayout layout;      // num_kv_heads, head_dim, pages
  const float* qkv;     // [num_rows][(num_heads + 2 * num_kv_heads) * head_dim]
  const float* q_norm;  // [head_dim], may be null
  const float* k_norm;  // [head_dim], may be null
  float norm_eps;
  const float* cos;  // [num_rows][head_dim / 2]
  const float* sin;  // [num_rows][head_dim / 2]
  Element* q;        // [num_rows][num_heads][head_dim]
  Element* pages;    // [num_pages][page_elements]
  uint8_t* fault;    // [num_rows], set to 1 where a k or v is not finite
};

// Rows with copies (RowBatch::copies) are copied once all rows are written.
void rope_append_copies(const RopeAppendParams& params, ThreadPool& pool);  // the part that is the same on every CPU path

void rope_append_scalar(const RopeAppendParams& params, ThreadPool& pool);
void rope_append_avx2(const RopeAppendParams& params, ThreadPool& pool);
void rope_append_avx512(const RopeAppendParams& params, ThreadPool& pool);

}  // namespace otr
