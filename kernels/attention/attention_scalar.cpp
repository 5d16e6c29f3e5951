// The definition, for up to 16 lanes (rows of a tile x heads of one group) at once: keys and values are widened once for all.
#include "kernels/attention/attention_lanes.h"
#include "kernels/base/elementary.h"
#include "kernels/base/thread_pool.h"
#include "kernels/simd/four.h"

namespace otr {
namespace {

constexpr int kFours = kAttentionLanes / 4;

// Running (m, l, o) of one lane.
struct Partial {
  float m, l;
  float o[kAttentionMaxHeadDim];
};

struct Scratch {
  Four q[kAttentionMaxHeadDim][kFours];       // of each lane
  float s[kAttentionSplit][kAttentionLanes];  // scores, then weights
  Partial sums[kAttentionLanes], split[kAttentionLanes];
};

const Element* page_of(const AttentionParams& p, const PageId* table, int key) {
  return p.pages + table[key / kPageTokens] * p.layout.page_elements();
}

// Scores of keys [begin, end), of kCount fours of lanes.
template <int kCount>
void scores(const AttentionParams& p, int kv_head, const PageId* table, int begin, int end, Scratch& scratch) {
  const int hd = p.layout.head_dim;
  for (int j = begin; j < end; ++j) {
    const Element* k = page_of(p, table, j) + p.layout.k_offset(p.layer, kv_head);
    Four dot[kCount] = {};
    for (int d = 0; d < hd; ++d) {
      const float key = to_float(k[p.layout.k_index(j % kPageTokens, d)]);
      for (int i = 0; i < kCount; ++i) dot[i] += scratch.q[d][i] * key;
    }
    for (int i = 0; i < kCount; ++i) dot[i] *= p.scale;
    __builtin_memcpy(scratch.s[j - begin], dot, sizeof dot);
  }
}

// m and l of a lane's first `visible` keys; their scores become weights.
void softmax(int lane, int visible, Scratch& scratch) {
  Partial& part = scratch.split[lane];
  part.m = -__builtin_inff();
  for (int j = 0; j < visible; ++j) part.m = scratch.s[j][lane] > part.m ? scratch.s[j][lane] : part.m;
  part.l = 0.0f;
  for (int j = 0; j < visible; ++j) {
    const float w = exp32(scratch.s[j][lane] - part.m);
    part.l += w;
    scratch.s[j][lane] = to_float(to_element(w));
  }
}

// o of the lanes: lane i of its first visible[i] keys.
void values(const AttentionParams& p, int kv_head, const PageId* table, int begin, int end, const int* visible, int lanes,
            Scratch& scratch) {
  const int hd = p.layout.head_dim;
  for (int lane = 0; lane < lanes; ++lane) {
    for (int d = 0; d < hd; ++d) scratch.split[lane].o[d] = 0.0f;
  }
  float v[kAttentionMaxHeadDim];
  for (int j = begin; j < end; ++j) {
    const Element* from = page_of(p, table, j) + p.layout.v_offset(p.layer, kv_head);
    for (int d = 0; d < hd; ++d) v[d] = to_float(from[p.layout.v_index(j % kPageTokens, d)]);
    for (int lane = 0; lane < lanes; ++lane) {
      if (j - begin >= visible[lane]) continue;
      const float w = scratch.s[j - begin][lane];
      float* o = scratch.split[lane].o;
      for (int d = 0; d < hd; ++d) o[d] += w * v[d];
    }
  }
}

void merge(const Partial& next, int head_dim, Partial* acc) {
  const float m = next.m > acc->m ? next.m : acc->m;
  const float a = exp32(acc->m - m), b = exp32(next.m - m);
  acc->m = m;
  acc->l = acc->l * a + next.l * b;
  for (int d = 0; d < head_dim; ++d) acc->o[d] = acc->o[d] * a + next.o[d] * b;
}

constexpr decltype(&scores<1>) kScores[] = {nullptr, scores<1>, scores<2>, scores<3>, scores<4>};

void run_unit(const AttentionParams& p, const AttentionLanes& t, const PageId* table) {
  const int hd = p.layout.head_dim;
  Scratch scratch;
  for (int d = 0; d < hd; ++d) {
    alignas(16) float q[kAttentionLanes] = {};
    for (int lane = 0; lane < t.count; ++lane) {
      q[lane] = to_float(p.q[AttentionLanes::offset(t, lane, int64_t{p.num_heads} * hd, hd) + d]);
    }
    __builtin_memcpy(scratch.q[d], q, sizeof q);
  }
  const int num_keys = p.rows->positions[AttentionLanes::row(t, t.count - 1)] + 1;
  for (int begin = 0; begin < num_keys; begin += kAttentionSplit) {
    const int end = smaller_of(begin + kAttentionSplit, num_keys);
    int visible[kAttentionLanes];
    kScores[divide_up(t.count, 4)](p, t.kv_head, table, begin, end, scratch);
    for (int lane = 0; lane < t.count; ++lane) {
      visible[lane] = smaller_of(greater_of(p.rows->positions[AttentionLanes::row(t, lane)] + 1 - begin, 0), end - begin);
      softmax(lane, visible[lane], scratch);
    }
    values(p, t.kv_head, table, begin, end, visible, t.count, scratch);
    for (int lane = 0; lane < t.count; ++lane) {
      if (begin == 0) scratch.sums[lane] = scratch.split[lane];
      else if (visible[lane] > 0) merge(scratch.split[lane], hd, &scratch.sums[lane]);
    }
  }
  for (int lane = 0; lane < t.count; ++lane) {
    Element* out = p.out + AttentionLanes::offset(t, lane, p.out_stride, hd);
    for (int d = 0; d < hd; ++d) out[d] = to_element(scratch.sums[lane].o[d] / scratch.sums[lane].l);
  }
}

}  // namespace

void attention_scalar(const AttentionParams& p, ThreadPool& pool) {
  const RowBatch& rows = *p.rows;
  const int units = attention_units(p, kAttentionLanes);
  // Where there are few, each is four tasks of up to four lanes.
  const int parts = rows.num_tiles * units < pool.num_threads() ? kFours : 1, most = kAttentionLanes / parts;
  pool.parallel_for(rows.num_tiles * units * parts, [&](int task, int) {
    const TileBundle tile = {task / parts / units, 1, 0};
    AttentionLanes lanes = attention_lanes(p, kAttentionLanes, tile, task / parts % units);
    lanes.first_lane += task % parts * most;
    lanes.count = smaller_of(lanes.count - task % parts * most, most);
    if (lanes.count <= 0) return;
    run_unit(p, lanes, rows.page_tables + rows.segments[rows.tiles[tile.first_tile].segment].first_page);
  });
}

}  // namespace otr
