#include <cmath>

#include "kernels/base/thread_pool.h"
#include "kernels/rope_append/rope_append.h"

namespace otr {
namespace {

// Norm (if any) and rotation of one head; `out` is float32, rounded by the caller.
void rotate_head(const float* x, const float* norm, float eps, const float* cos, const float* sin, int head_dim, float* out) {
  float normed[kRopeMaxHeadDim];
  if (norm != nullptr) {
    double sum = 0.0;
    for (int i = 0; i < head_dim; ++i) sum += static_cast<double>(x[i]) * x[i];
    const float inv = 1.0f / std::sqrt(static_cast<float>(sum / head_dim) + eps);
    for (int i = 0; i < head_dim; ++i) normed[i] = x[i] * inv * norm[i];
    x = normed;
  }
  const int half = head_dim / 2;
  for (int i = 0; i < half; ++i) {
    const float a = x[i], b = x[i + half];
    out[i] = a * cos[i] - b * sin[i];
    out[i + half] = b * cos[i] + a * sin[i];
  }
}

Element finite_or_zero(float x, uint8_t* fault) {
  if (is_finite_bits(to_float(to_element(x)))) return to_element(x);
  *fault = 1;
  return Element{};
}

}  // namespace

void rope_append_scalar(const RopeAppendParams& p, ThreadPool& pool) {
  const RowBatch& rows = *p.rows;
  const int hd = p.layout.head_dim, half = hd / 2, kv_heads = p.layout.num_kv_heads;
  const int64_t qkv_stride = int64_t{p.num_heads + 2 * kv_heads} * hd;
  pool.parallel_for(rows.num_tiles, [&](int t, int) {
    const RowTile& tile = rows.tiles[t];
    const PageId* table = rows.page_tables + rows.segments[tile.segment].first_page;
    for (int64_t row = tile.first_row; row < tile.first_row + tile.num_rows; ++row) {
      const float* qkv = p.qkv + row * qkv_stride;
      const float *cos = p.cos + row * half, *sin = p.sin + row * half;
      const int position = rows.positions[row], slot = position % kPageTokens;
      Element* page = p.pages + table[position / kPageTokens] * p.layout.page_elements();
      float rotated[kRopeMaxHeadDim];
      for (int h = 0; h < p.num_heads; ++h) {
        rotate_head(qkv + int64_t{h} * hd, p.q_norm, p.norm_eps, cos, sin, hd, rotated);
        for (int i = 0; i < hd; ++i) p.q[(row * p.num_heads + h) * hd + i] = to_element(rotated[i]);
      }
      for (int h = 0; h < kv_heads; ++h) {
        const float* v = qkv + int64_t{p.num_heads + kv_heads + h} * hd;
        Element* k_page = page + p.layout.k_offset(p.layer, h);
        Element* v_page = page + p.layout.v_offset(p.layer, h);
        rotate_head(qkv + int64_t{p.num_heads + h} * hd, p.k_norm, p.norm_eps, cos, sin, hd, rotated);
        for (int i = 0; i < hd; ++i) k_page[p.layout.k_index(slot, i)] = finite_or_zero(rotated[i], &p.fault[row]);
        for (int i = 0; i < hd; ++i) v_page[p.layout.v_index(slot, i)] = finite_or_zero(v[i], &p.fault[row]);
      }
    }
  });
  rope_append_copies(p, pool);
}

}  // namespace otr
