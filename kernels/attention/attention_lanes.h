// What a task of the CPU's attention takes: up to so many query rows x heads of one group (its lanes) against one KV head, and
// the keys of a split.
#pragma once

#include <cstdint>

#include "kernels/attention/attention.h"
#include "kernels/base/integers.h"

namespace otr {

// Which rows and heads a task's lanes are.
struct AttentionLanes {
  int64_t first_row;
  int first_lane;  // of the bundle's rows x group, row-major
  int count;
  int kv_head, group;

  OTR_INLINE int64_t row(const AttentionLanes& t, int lane) { return t.first_row + (t.first_lane + lane) / t.group; }
  // Element offset of a lane's head in a [num_rows][…] array whose rows are `stride` apart.
  OTR_INLINE int64_t offset(const AttentionLanes& t, int lane, int64_t stride, int head_dim) {
    const int i = t.first_lane + lane;
    return (t.first_row + i / t.group) * stride + (int64_t{t.kv_head} * t.group + i % t.group) * head_dim;
  }
};

// A bundle's units: KV heads x parts of at most `most_lanes` of its lanes. More than one part: a tile is one token of a large
// group.
OTR_INLINE int attention_parts(const AttentionParams& p, int most_lanes) {
  return divide_up(p.num_heads / p.layout.num_kv_heads, most_lanes);
}
OTR_INLINE int attention_units(const AttentionParams& p, int most_lanes) {
  return p.layout.num_kv_heads * attention_parts(p, most_lanes);
}

// Unit 0 … attention_units() - 1 of a bundle.
OTR_INLINE AttentionLanes attention_lanes(const AttentionParams& p, int most_lanes, const TileBundle& bundle, int unit) {
  const RowBatch& rows = *p.rows;
  const RowTile &first = rows.tiles[bundle.first_tile], &last = rows.tiles[bundle.first_tile + bundle.num_tiles - 1];
  const int group = p.num_heads / p.layout.num_kv_heads, parts = attention_parts(p, most_lanes);
  const int first_lane = unit % parts * most_lanes;
  const int left = (last.first_row + last.num_rows - first.first_row) * group - first_lane;
  return {first.first_row, first_lane, smaller_of(left, most_lanes), unit / parts, group};
}

// Up to kAttentionSplit keys from `begin` on, and where they are.
struct AttentionSplit {
  const Element* k[kAttentionSplitPages];
  const Element* v[kAttentionSplitPages];
  int keys;
};
OTR_INLINE AttentionSplit attention_split(const AttentionParams& p, int kv_head, const PageId* table, int begin, int end) {
  AttentionSplit split;
  split.keys = end - begin < kAttentionSplit ? end - begin : kAttentionSplit;
  for (int i = 0; i * kPageTokens < split.keys; ++i) {
    const Element* page = p.pages + table[begin / kPageTokens + i] * p.layout.page_elements();
    split.k[i] = page + p.layout.k_offset(p.layer, kv_head);
    split.v[i] = page + p.layout.v_offset(p.layer, kv_head);
  }
  return split;
}

}  // namespace otr
