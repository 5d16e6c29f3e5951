// rope_append, sm_90a: norm per head, rotation, and k and v into their pages.
//
// Shapes and layouts: rope_append.h. Grid: tiles of rows by heads (queries, keys, values); a warp takes rows w, w + 4, … of its
// tile, a lane elements lane, lane + 32, … of the head. Reduction: rope_append_sm90.h. No shared memory, no block barrier.
// Roofline: memory; a qkv row read (4 bytes an element), q and a page slot written (2 bytes). A value's column of a page is
// written 2 bytes in 128: nothing beside the weights of a layer.
#include "kernels/base/elementary.h"
#include "kernels/base/elementary64.h"
#include "kernels/base/launch_status.h"
#include "kernels/rope_append/rope_append_sm90.h"

namespace otr {
namespace {

constexpr int kWarps = 4, kThreads = kWarps * 32;

__global__ void __launch_bounds__(kThreads) rope_table_kernel(const RopeTableParams p) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= int64_t{p.num_rows} * p.half_dim) return;
  const float position = static_cast<float>(p.positions[i / p.half_dim]);
  const SinCos sc = sincos64(static_cast<double>(p.inv_freq[i % p.half_dim] * position));
  p.cos[i] = static_cast<float>(sc.cos) * p.scale;
  p.sin[i] = static_cast<float>(sc.sin) * p.scale;
}

// The factor by which the norm scales a head, computed by a warp; every lane gets it.
OTR_DEVICE float head_inverse(const float* x, int head_dim, float eps, int lane) {
  float sum = 0.0f;
  for (int i = lane; i < head_dim; i += 32) sum = fma_(x[i], x[i], sum);
  for (int distance = 16; distance > 0; distance /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, distance);
  return 1.0f / sqrtf(sum / static_cast<float>(head_dim) + eps);
}

OTR_DEVICE Element finite_or_zero(float x, uint8_t* fault) {
  const Element e = to_element(x);
  if (is_finite_bits(to_float(e))) return e;
  *fault = 1;
  return Element{};
}

__global__ void __launch_bounds__(kThreads) rope_append_kernel(const RopeAppendParams p, const RowBatch rows) {
  const RowTile tile = rows.tiles[blockIdx.x];
  const PageId* table = rows.page_tables + rows.segments[tile.segment].first_page;
  const int head = static_cast<int>(blockIdx.y), lane = static_cast<int>(threadIdx.x) % 32;
  const int head_dim = p.layout.head_dim, half = head_dim / 2, num_kv_heads = p.layout.num_kv_heads;
  const bool is_query = head < p.num_heads, is_key = !is_query && head < p.num_heads + num_kv_heads;
  const int kv_head = is_query ? 0 : (head - p.num_heads) % num_kv_heads;
  const float* norm = is_query ? p.q_norm : p.k_norm;
  for (int64_t row = tile.first_row + static_cast<int>(threadIdx.x) / 32; row < tile.first_row + tile.num_rows; row += kWarps) {
    const float* x = p.qkv + (row * (p.num_heads + 2 * num_kv_heads) + head) * head_dim;
    const int position = rows.positions[row], slot = position % kPageTokens;
    Element* page = p.pages + table[position / kPageTokens] * p.layout.page_elements();
    if (!is_query && !is_key) {
      Element* v_slot = page + p.layout.v_offset(p.layer, kv_head) + slot;
      for (int i = lane; i < head_dim; i += 32) v_slot[i * kPageTokens] = finite_or_zero(x[i], &p.fault[row]);
      continue;
    }
    const float inverse = norm != nullptr ? head_inverse(x, head_dim, p.norm_eps, lane) : 1.0f;
    Element* out =
        is_query ? p.q + (row * p.num_heads + head) * head_dim : page + p.layout.k_offset(p.layer, kv_head) + slot * head_dim;
    for (int i = lane; i < half; i += 32) {
      const float cos = p.cos[row * half + i], sin = p.sin[row * half + i];
      const float a = norm != nullptr ? x[i] * inverse * norm[i] : x[i];
      const float b = norm != nullptr ? x[i + half] * inverse * norm[i + half] : x[i + half];
      const float first = a * cos - b * sin, second = b * cos + a * sin;
      out[i] = is_query ? to_element(first) : finite_or_zero(first, &p.fault[row]);
      out[i + half] = is_query ? to_element(second) : finite_or_zero(second, &p.fault[row]);
    }
  }
}

// Blocks of a key-value head take the copies in turn, after every row is written, up to one of row -1.
__global__ void __launch_bounds__(kThreads) rope_copies_kernel(const RopeAppendParams p, const RowBatch rows) {
  const int head_dim = p.layout.head_dim, kv_head = static_cast<int>(blockIdx.y);
  for (int i = static_cast<int>(blockIdx.x); i < rows.num_copies; i += static_cast<int>(gridDim.x)) {
    const KvCopy copy = rows.copies[i];
    if (copy.row < 0) return;
    const int slot = rows.positions[copy.row] % kPageTokens;
    const int64_t k = p.layout.k_offset(p.layer, kv_head) + slot * head_dim, v = p.layout.v_offset(p.layer, kv_head) + slot;
    const Element* from = p.pages + copy.from * p.layout.page_elements();
    Element* to = p.pages + copy.to * p.layout.page_elements();
    for (int d = static_cast<int>(threadIdx.x); d < head_dim; d += kThreads) {
      to[k + d] = from[k + d];
      to[v + d * kPageTokens] = from[v + d * kPageTokens];
    }
  }
}

}  // namespace

Status rope_table_sm90(const RopeTableParams& p, cudaStream_t stream) {
  const int64_t entries = int64_t{p.num_rows} * p.half_dim;
  if (entries == 0) return {};
  rope_table_kernel<<<static_cast<unsigned>((entries + kThreads - 1) / kThreads), kThreads, 0, stream>>>(p);
  return launch_status("rope_table");
}

Status rope_append_sm90(const RopeAppendParams& p, cudaStream_t stream) {
  const RowBatch& rows = *p.rows;
  if (rows.num_tiles == 0) return {};
  const unsigned heads = static_cast<unsigned>(p.num_heads + 2 * p.layout.num_kv_heads);
  rope_append_kernel<<<dim3(static_cast<unsigned>(rows.num_tiles), heads), kThreads, 0, stream>>>(p, rows);
  OTR_RETURN_IF_ERROR(launch_status("rope_append"));
  if (rows.num_copies == 0) return {};
  const int blocks = rows.num_copies < kKvCopyBlocks ? rows.num_copies : kKvCopyBlocks;
  const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(p.layout.num_kv_heads));
  rope_copies_kernel<<<grid, kThreads, 0, stream>>>(p, rows);
  return launch_status("rope_append");
}

Status load_rope_append_sm90() {
  return load_kernels("rope_append", rope_table_kernel, rope_append_kernel, rope_copies_kernel);
}

}  // namespace otr
