#include "kernels/attention/attention.h"
#include "kernels/base/elementary.h"
#include "kernels/base/thread_pool.h"

namespace otr {
namespace {

// Running (m, l, o) of one query row and head.
struct Partial {
  float m, l;
  float o[kAttentionMaxHeadDim];
};

void attend_split(const AttentionParams& p, const Element* q, int kv_head, const PageId* table, int begin, int end,
                  Partial* part) {
  const int hd = p.layout.head_dim;
  float s[kAttentionSplit];
  part->m = -__builtin_inff();
  for (int j = begin; j < end; ++j) {
    const Element* page = p.pages + table[j / kPageTokens] * p.layout.page_elements();
    const Element* k = page + p.layout.k_offset(p.layer, kv_head);
    float dot = 0.0f;
    for (int d = 0; d < hd; ++d) dot += to_float(q[d]) * to_float(k[p.layout.k_index(j % kPageTokens, d)]);
    s[j - begin] = dot * p.scale;
    part->m = s[j - begin] > part->m ? s[j - begin] : part->m;
  }
  part->l = 0.0f;
  for (int d = 0; d < hd; ++d) part->o[d] = 0.0f;
  for (int j = begin; j < end; ++j) {
    const Element* page = p.pages + table[j / kPageTokens] * p.layout.page_elements();
    const Element* v = page + p.layout.v_offset(p.layer, kv_head);
    const float w = exp32(s[j - begin] - part->m);
    const float w_element = to_float(to_element(w));
    part->l += w;
    for (int d = 0; d < hd; ++d) part->o[d] += w_element * to_float(v[p.layout.v_index(j % kPageTokens, d)]);
  }
}

void merge(const Partial& next, int head_dim, Partial* acc) {
  const float m = next.m > acc->m ? next.m : acc->m;
  const float a = exp32(acc->m - m), b = exp32(next.m - m);
  acc->m = m;
  acc->l = acc->l * a + next.l * b;
  for (int d = 0; d < head_dim; ++d) acc->o[d] = acc->o[d] * a + next.o[d] * b;
}

}  // namespace

void attention_scalar(const AttentionParams& p, ThreadPool& pool) {
  const RowBatch& rows = *p.rows;
  const int hd = p.layout.head_dim, group = p.num_heads / p.layout.num_kv_heads;
  pool.parallel_for(rows.num_tiles * p.num_heads, [&](int task, int) {
    const RowTile& tile = rows.tiles[task / p.num_heads];
    const int head = task % p.num_heads;
    const PageId* table = rows.page_tables + rows.segments[tile.segment].first_page;
    for (int64_t row = tile.first_row; row < tile.first_row + tile.num_rows; ++row) {
      const Element* q = p.q + (row * p.num_heads + head) * hd;
      const int num_keys = rows.positions[row] + 1;
      Partial acc, next;
      attend_split(p, q, head / group, table, 0, num_keys < kAttentionSplit ? num_keys : kAttentionSplit, &acc);
      for (int begin = kAttentionSplit; begin < num_keys; begin += kAttentionSplit) {
        const int end = begin + kAttentionSplit < num_keys ? begin + kAttentionSplit : num_keys;
        attend_split(p, q, head / group, table, begin, end, &next);
        merge(next, hd, &acc);
      }
      Element* out = p.out + row * p.out_stride + int64_t{head} * hd;
      for (int d = 0; d < hd; ++d) out[d] = to_element(acc.o[d] / acc.l);
    }
  });
}

}  // namespace otr
