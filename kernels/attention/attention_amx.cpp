// cpu-amx: a task is up to 128 lanes (query rows of a TileBundle x heads of one KV head's group), in groups of 16 columns of a
// tile.
//
//   for each split of kAttentionSplit keys, ascending                      (see attention.h)
//     for each block of up to four groups                                  one load of K or V^T serves them all
//       S^T [keys][16] = K q^T, page by page, and m                        masked keys: S = -inf
//       m' = m, or the split's where that is much greater; O, l *= exp(m - m')   left out where no lane's m changes
//       P = bf16(exp(S - m')), in place
//       O^T [head_dim][16] += V^T P^T; l += 1^T P^T                        the tiles of the running sums are the accumulators
//   after each segment of kAttentionAmxSegment keys, if there are more: merge (m, l, O) into the total
//   out = O / l
//
// A lane never sees its neighbours: what rows, tiles, groups and blocks a task takes does not show in its bits. Keys past its
// end have P = 0, and such steps add +0; a factor exp(0) is exactly 1. In a split in which a lane has no key at all its sums
// are put back, so that what another sequence, or a later row, writes there cannot reach it, be it NaN.
//
// Tiles: 0 … 3 = sums of 16 keys, or rows of V^T, of four groups; 4 = K or V^T, straight from the page; 5 and 6 = q or P in
// turn. A head_dim that is not a multiple of 32 leaves a last step of K with fewer columns, or a last tile of V^T with fewer
// rows: those are copied into a zero-padded tile, so that nothing past the operand is read and no stray value meets a zero.
//
// Reduction order: dot, steps of 32 of head_dim ascending; O and l, steps of 32 keys ascending through the splits of a
// segment, scaled between them; segments merged. Inside a step TDPBF16PS's own: even and odd positions in two fma chains
// ascending, added, then added to the sum; denormals are zero.
//
// Roofline: decode reads K and V at memory's rate: while a split is worked on, the next one, or the first one of the next
// tile's own, is fetched a few lines a tile. A prefill at head_dim 128 has 8.5 cycles of products a key and group and 5 of
// softmax (attention_amx_softmax.h). They hardly overlap: a running product leaves vectors one port of two, and storing a tile
// takes 16 cycles without a product, 65 where its lines are not in L1. Measured, 2 threads: decode at 8k and head_dim 128 0.79
// of reads, at 64 0.68; 8 samples of one prompt of 4k 1.4 to 1.5 times one; prefill of 4096 tokens 0.28 to 0.30 of the tile
// rate at 128, 0.22 at 64: before there were segments, whose merging is a hundredth of their work by count.
#include "kernels/amx/tile.h"
#include "kernels/attention/attention_amx_rows.h"
#include "kernels/attention/attention_amx_softmax.h"
#include "kernels/attention/attention_lanes.h"
#include "kernels/attention/attention_pieces.h"
#include "kernels/base/thread_pool.h"

namespace otr {
namespace {

constexpr int kBlock = 4;  // groups
constexpr int kGroups = kAttentionAmxLanes / kAttentionLanes;
constexpr int kTileFloats = kTileRows * kTileColumns;
constexpr int kFetchLines = 4;  // of 64 bytes: the unit of Ahead

// 16 lanes: their queries and running sums.
struct alignas(64) Group {
  Element q[kAttentionMaxHeadDim / 2][kAttentionLanes][2];
  float o[kAttentionMaxHeadDim + kTileRows]
         [kAttentionLanes];  // [head_dim rounded up to 16] of O, then a tile whose first row is l
  float m[kAttentionLanes];
  int32_t rows[kAttentionLanes],
      ends[kAttentionLanes];         // of the batch; position + 1. Lanes past the last one are like it, with q = 0
  int32_t visible[kAttentionLanes];  // keys of the current split
  int min_visible, max_visible;
  uint32_t nan_lanes, summed_lanes;  // lanes that have keys of the current segment in their sums
};

// m, O and l of the segments merged so far, as a group has them.
struct alignas(64) Total {
  float o[kAttentionMaxHeadDim + kTileRows][kAttentionLanes];
  float m[kAttentionLanes];
  uint32_t lanes;  // that have any
};
// What the pieces of a unit share.
struct alignas(64) SharedTotals {
  int turn;                                 // the piece that is to merge next
  alignas(64) uint32_t nan_lanes[kGroups];  // not on the line that others watch
  Total groups[kGroups];
};

struct Scratch {  // of which head_dim 128 touches 172 KB and a decoding row of it 30; of more than a segment 240 and 40
  Group groups[kGroups];
  Total totals[kGroups];
  float s[kBlock][kAttentionSplit][kAttentionLanes];  // scores; from the front, P [keys / 2][16 lanes][2]
};
static_assert(sizeof(Scratch) + AttentionDeal::kMostUnitsPerThread * sizeof(SharedTotals) <= ThreadPool::kScratchBytes);

struct alignas(64) OnesTile {
  Element rows[kTileRows][kTileDepth];
};
// The left operand that sums up P: ones in the first row.
constexpr OnesTile ones_tile() {
  OnesTile tile = {};
  for (Element& one : tile.rows[0]) one = Element{0x3f80};
  return tile;
}
constexpr OnesTile kOnes = ones_tile();

// Brings the next split to L2, a few lines at a time: a burst of prefetches would stall like loads.
struct Ahead {
  const char* pieces[2 * kAttentionSplitPages];
  int num_pieces = 0, piece = 0;
  int64_t at = 0, piece_bytes = 0;
  int per_step = 0, per_exp = 0;  // units a tile of K or V, and a piece of attention_amx_exp

  // So that a split's work on `groups` groups fetches a split. Four take so long over exp that memory would rest.
  void pace(int groups) {
    per_step = groups < kBlock ? 4 : groups == kBlock ? 3 : 2;
    per_exp = groups == kBlock ? 2 : 0;
  }

  void start(const AttentionSplit& next, int head_dim) {
    const int pages = (next.keys + kPageTokens - 1) / kPageTokens;
    for (int i = 0; i < pages; ++i) {
      pieces[i] = reinterpret_cast<const char*>(next.k[i]);
      pieces[pages + i] = reinterpret_cast<const char*>(next.v[i]);
    }
    num_pieces = 2 * pages;
    piece_bytes = int64_t{head_dim} * kPageTokens * 2;
  }
  OTR_INLINE void fetch(Ahead& t, int units) {
    for (int i = 0; i < units && t.piece < t.num_pieces; ++i) {
      const char* line = t.pieces[t.piece] + t.at;
#pragma GCC unroll 4
      for (int j = 0; j < kFetchLines; ++j) _mm_prefetch(line + 64 * j, _MM_HINT_T1);
      t.at += 64 * kFetchLines;
      if (t.at >= t.piece_bytes) {
        t.at = 0;
        ++t.piece;
      }
    }
  }
};

// Loads up to 16 rows of up to 32 elements of K or V^T, which leave P and the queries in L1; the rest of the tile is zero.
template <int kTile>
OTR_INLINE void load_left(const Element* a, int64_t stride, int rows, int columns) {
  if (rows >= kTileRows && columns >= kTileDepth) {
    tile_load_once<kTile>(a, stride * 2);
    return;
  }
  alignas(64) Element staged[kTileRows][kTileDepth] = {};
  const unsigned bytes = static_cast<unsigned>(columns < kTileDepth ? columns : kTileDepth) * 2;
  for (int r = 0; r < rows && r < kTileRows; ++r) __builtin_memcpy(staged[r], a + r * stride, bytes);
  tile_load<kTile>(staged, kTileBytes);
}

// Tile 4 times a tile of each of kCount groups, `group_bytes` apart.
template <int kCount>
OTR_INLINE void dot_groups(const void* b, int64_t group_bytes) {
  const char* at = static_cast<const char*>(b);
  tile_load<5>(at, kTileBytes);
  tile_dot<0, 4, 5>();
  if constexpr (kCount > 1) tile_load<6>(at + group_bytes, kTileBytes);
  if constexpr (kCount > 1) tile_dot<1, 4, 6>();
  if constexpr (kCount > 2) tile_load<5>(at + 2 * group_bytes, kTileBytes);
  if constexpr (kCount > 2) tile_dot<2, 4, 5>();
  if constexpr (kCount > 3) tile_load<6>(at + 3 * group_bytes, kTileBytes);
  if constexpr (kCount > 3) tile_dot<3, 4, 6>();
}
template <int kCount>
OTR_INLINE void zero_sums() {
  tile_zero<0>();
  if constexpr (kCount > 1) tile_zero<1>();
  if constexpr (kCount > 2) tile_zero<2>();
  if constexpr (kCount > 3) tile_zero<3>();
}
template <int kCount>
OTR_INLINE void load_sums(const float* c, int64_t group_bytes) {
  const char* at = reinterpret_cast<const char*>(c);
  tile_load<0>(at, kTileBytes);
  if constexpr (kCount > 1) tile_load<1>(at + group_bytes, kTileBytes);
  if constexpr (kCount > 2) tile_load<2>(at + 2 * group_bytes, kTileBytes);
  if constexpr (kCount > 3) tile_load<3>(at + 3 * group_bytes, kTileBytes);
}
template <int kCount>
OTR_INLINE void store_sums(float* c, int64_t group_bytes) {
  char* at = reinterpret_cast<char*>(c);
  tile_store<0>(at, kTileBytes);
  if constexpr (kCount > 1) tile_store<1>(at + group_bytes, kTileBytes);
  if constexpr (kCount > 2) tile_store<2>(at + 2 * group_bytes, kTileBytes);
  if constexpr (kCount > 3) tile_store<3>(at + 3 * group_bytes, kTileBytes);
}

// Scores of `keys` keys of one page: s [kCount][kAttentionSplit][16], from s[0] on.
template <int kCount>
__attribute__((noinline)) void scores(const Element* k, int keys, int head_dim, const Group* groups, float* s, Ahead& ahead) {
  for (int key = 0; key < keys; key += kTileRows, k += kTileRows * head_dim, s += kTileFloats) {
    zero_sums<kCount>();
    for (int d = 0; d < head_dim; d += kTileDepth) {
      load_left<4>(k + d, head_dim, kTileRows, head_dim - d);
      dot_groups<kCount>(groups->q[d / 2], sizeof(Group));
      Ahead::fetch(ahead, ahead.per_step);
    }
    store_sums<kCount>(s, kAttentionSplit * kTileBytes);
  }
}

// Adds V^T P^T and 1^T P^T to the groups' sums, or sets them; a lane that the split has no key for keeps its own.
template <int kCount>
__attribute__((noinline)) void values(const Element* const* v, int keys, int head_dim,
                                      const float (*p)[kAttentionSplit][kAttentionLanes], bool set, Group* groups,
                                      Ahead& ahead) {
  bool all_take_part = true;
  for (int g = 0; g < kCount; ++g) all_take_part &= groups[g].min_visible > 0;
  const int l_row = attention_amx_l_row(head_dim);
  for (int d = 0; d <= l_row; d += kTileRows) {
    const bool is_sum = d == l_row;
    if (set) {
      zero_sums<kCount>();
    } else {
      load_sums<kCount>(groups->o[d], sizeof(Group));
    }
    if (is_sum) tile_load<4>(kOnes.rows, kTileBytes);
    for (int key = 0; key < keys; key += kTileDepth) {
      if (!is_sum) {
        load_left<4>(v[key / kPageTokens] + d * kPageTokens + key % kPageTokens, kPageTokens, head_dim - d, kTileDepth);
        Ahead::fetch(ahead, ahead.per_step);
      }
      dot_groups<kCount>(p[0][key / 2], sizeof p[0]);
    }
    if (all_take_part) {
      store_sums<kCount>(groups->o[d], sizeof(Group));
    } else {
      alignas(64) float sums[kBlock][kTileRows][kAttentionLanes];
      store_sums<kCount>(sums[0][0], sizeof sums[0]);
      for (int g = 0; g < kCount; ++g) {
        const __mmask16 lanes = attention_amx_lanes_with_keys(groups[g].visible);
        for (int r = 0; r < kTileRows; ++r) _mm512_mask_store_ps(groups[g].o[d + r], lanes, _mm512_load_ps(sums[g][r]));
      }
    }
  }
}

template <int kCount>
void block_split(const AttentionParams& p, const AttentionSplit& pages, bool first, Group* groups, Scratch& scratch,
                 Ahead& ahead) {
  const int head_dim = p.layout.head_dim;
  int keys = 0;
  for (int g = 0; g < kCount; ++g) keys = groups[g].max_visible > keys ? groups[g].max_visible : keys;
  keys = (keys + kTileDepth - 1) / kTileDepth * kTileDepth;
  __m512 m[kCount];
  for (int g = 0; g < kCount; ++g) m[g] = _mm512_set1_ps(-__builtin_inff());
  for (int key = 0; key < keys; key += kPageTokens) {
    const int count = keys - key < kPageTokens ? keys - key : kPageTokens;
    scores<kCount>(pages.k[key / kPageTokens], count, head_dim, groups, scratch.s[0][key], ahead);
    for (int g = 0; g < kCount; ++g) {
      if (groups[g].min_visible < key + count)
        attention_amx_mask(scratch.s[g], key, key + count, groups[g].min_visible, groups[g].visible);
      m[g] = attention_amx_max(scratch.s[g] + key, count, m[g]);
    }
  }
  const float scale = p.scale * kLog2E;
  for (int g = 0; g < kCount; ++g) {
    Group& group = groups[g];
    const __m512 before = _mm512_load_ps(group.m);
    if (first) {  // a lane without keys keeps a number: exp(-inf - m) is 0
      m[g] = _mm512_mask_mov_ps(before, attention_amx_lanes_with_keys(group.visible), m[g]);
    } else {
      m[g] = attention_amx_reference(before, m[g], scale);
      attention_amx_rescale(group.o, attention_amx_l_row(head_dim) + 1, before, m[g], p.scale);
    }
    _mm512_store_ps(group.m, m[g]);
    const uint32_t nan_lanes = attention_amx_exp(scratch.s[g], keys, m[g], scale, [&] { Ahead::fetch(ahead, ahead.per_exp); });
    const uint32_t lanes_with_keys = attention_amx_lanes_with_keys(group.visible);
    group.nan_lanes |= nan_lanes & lanes_with_keys;
    group.summed_lanes |= lanes_with_keys;
  }
  values<kCount>(pages.v, keys, head_dim, scratch.s, first, groups, ahead);
}

// Moves the sums of a segment into the total, merged with what is there.
void merge(const AttentionParams& p, Group& group, Total& total) {
  const uint32_t lanes = group.summed_lanes;
  if (lanes == 0) return;
  const __mmask16 all = static_cast<__mmask16>(lanes), merged = static_cast<__mmask16>(lanes & total.lanes);
  const __m512 m = _mm512_load_ps(group.m), before = _mm512_load_ps(total.m);
  const __m512 next = _mm512_mask_max_ps(m, merged, m, before), scale = _mm512_set1_ps(p.scale);
  const VecAvx512 add = exp32_not_positive(VecAvx512{_mm512_mul_ps(_mm512_sub_ps(m, next), scale)}),
                  keep = exp32_not_positive(VecAvx512{_mm512_mul_ps(_mm512_sub_ps(before, next), scale)});
  const int rows = attention_amx_l_row(p.layout.head_dim) + 1;
  for (int d = 0; d < rows; ++d) {
    const __m512 sum = _mm512_load_ps(group.o[d]);
    const __m512 both = _mm512_fmadd_ps(_mm512_load_ps(total.o[d]), keep.v, _mm512_mul_ps(sum, add.v));
    _mm512_mask_store_ps(total.o[d], all, _mm512_mask_mov_ps(sum, merged, both));
  }
  _mm512_mask_store_ps(total.m, all, next);
  total.lanes |= lanes;
  group.summed_lanes = 0;
}

// Keys [begin, end) of `table`, for rows [first_row, end_row).
struct KeyRange {
  const PageId* table;
  int begin, end;
  int64_t first_row, end_row;

  AttentionSplit split(const AttentionParams& p, int kv_head, int at) const {
    return attention_split(p, kv_head, table, at, end);
  }
};

// Adds a range's keys, of one segment, to the sums of its rows; brings near what `next`, if there is one, begins with.
void add_keys(const AttentionParams& p, int num_groups, int kv_head, const KeyRange& range, const KeyRange* next,
              Scratch& scratch) {
  for (int begin = range.begin; begin < range.end; begin += kAttentionSplit) {
    const AttentionSplit pages = range.split(p, kv_head, begin);
    Ahead ahead;
    if (begin + kAttentionSplit < range.end) {
      ahead.start(range.split(p, kv_head, begin + kAttentionSplit), p.layout.head_dim);
    } else if (next != nullptr) {
      ahead.start(next->split(p, kv_head, next->begin), p.layout.head_dim);
    }
    const bool first = begin % kAttentionAmxSegment == 0;
    int from = 0, active = 0;  // groups from the first to the last that has a row in the range
    for (int g = 0; g < num_groups; ++g) {
      Group& group = scratch.groups[g];
      attention_amx_visible(group.rows, group.ends, range.first_row, range.end_row, begin, group.visible, &group.min_visible,
                            &group.max_visible);
      if (group.max_visible == 0) continue;
      if (active == 0) from = g;
      active = g - from + 1;
    }
    ahead.pace(active);
    for (int g = from; g < from + active; g += kBlock) {
      const auto run = [&]<int kCount>() { block_split<kCount>(p, pages, first, scratch.groups + g, scratch, ahead); };
      switch (from + active - g) {
        case 1: run.template operator()<1>(); break;
        case 2: run.template operator()<2>(); break;
        case 3: run.template operator()<3>(); break;
        default: run.template operator()<4>();
      }
    }
  }
}

int num_groups(const AttentionLanes& t) { return divide_up(t.count, kAttentionLanes); }

AttentionLanes group_lanes(const AttentionLanes& t, int g) {
  AttentionLanes lanes = t;
  lanes.first_lane += g * kAttentionLanes;
  lanes.count = smaller_of(t.count - g * kAttentionLanes, kAttentionLanes);
  return lanes;
}

void start(const AttentionParams& p, const AttentionLanes& t, Scratch& scratch) {
  for (int g = 0; g < num_groups(t); ++g) {
    Group& group = scratch.groups[g];
    const AttentionLanes lanes = group_lanes(t, g);
    attention_amx_pack_q(p, lanes, group.q);
    for (int lane = 0; lane < kAttentionLanes; ++lane) {
      const int64_t row = AttentionLanes::row(lanes, lane < lanes.count ? lane : lanes.count - 1);
      group.rows[lane] = static_cast<int32_t>(row);
      group.ends[lane] = p.rows->positions[row] + 1;
      group.m[lane] = 0.0f;
    }
    group.nan_lanes = group.summed_lanes = scratch.totals[g].lanes = 0;
  }
}

// Keys [begin, end) of what a bundle's tiles share (i = -1), or of tile i's own; as far as there are any.
KeyRange range_of(const RowBatch& rows, const TileBundle& bundle, int i, int begin, int end) {
  const RowTile& tile = rows.tiles[bundle.first_tile + greater_of(i, 0)];
  const PageId* table = rows.page_tables + rows.segments[tile.segment].first_page;
  if (i < 0) return {table, begin, smaller_of(end, bundle.shared_keys), 0, rows.num_rows};
  return {table, greater_of(begin, bundle.shared_keys), smaller_of(end, attention_tile_keys(rows, tile)), tile.first_row,
          int64_t{tile.first_row} + tile.num_rows};
}

// Adds the keys of a segment to the sums of all lanes. `more`: the next one is this thread's too.
void add_segment(const AttentionParams& p, const AttentionLanes& t, const TileBundle& bundle, int segment, bool more,
                 Scratch& scratch) {
  const int begin = segment * kAttentionAmxSegment, end = begin + kAttentionAmxSegment;
  KeyRange range = {};
  for (int i = -1; i < bundle.num_tiles; ++i) {
    const KeyRange next = range_of(*p.rows, bundle, i, begin, end);
    if (next.begin >= next.end) continue;
    if (range.end > 0) add_keys(p, num_groups(t), t.kv_head, range, &next, scratch);
    range = next;
  }
  KeyRange next = {};
  for (int i = -1; more && i < bundle.num_tiles && next.begin >= next.end; ++i) {
    next = range_of(*p.rows, bundle, i, end, end + kAttentionAmxSegment);
  }
  add_keys(p, num_groups(t), t.kv_head, range, next.begin < next.end ? &next : nullptr, scratch);
}

void run_unit(const AttentionParams& p, const AttentionLanes& t, const TileBundle& bundle, Scratch& scratch) {
  start(p, t, scratch);
  const int segments = divide_up(attention_bundle_keys(*p.rows, bundle), kAttentionAmxSegment);
  for (int segment = 0; segment < segments; ++segment) {
    add_segment(p, t, bundle, segment, segment + 1 < segments, scratch);
    for (int g = 0; segments > 1 && g < num_groups(t); ++g) merge(p, scratch.groups[g], scratch.totals[g]);
  }
  for (int g = 0; g < num_groups(t); ++g) {
    const Group& group = scratch.groups[g];
    attention_amx_write(p, group_lanes(t, g), segments > 1 ? scratch.totals[g].o : group.o, group.nan_lanes);
  }
}

// A segment of a unit.
void run_piece(const AttentionParams& p, const AttentionLanes& t, const TileBundle& bundle, const AttentionPiece& piece,
               Scratch& scratch, SharedTotals& shared) {
  start(p, t, scratch);
  add_segment(p, t, bundle, piece.index, false, scratch);
  tile_release();  // what waits holds no tiles
  attention_await_turn(shared.turn, piece);
  for (int g = 0; g < num_groups(t); ++g) {
    Group& group = scratch.groups[g];
    merge(p, group, shared.groups[g]);
    shared.nan_lanes[g] |= group.nan_lanes;
    if (piece.last) attention_amx_write(p, group_lanes(t, g), shared.groups[g].o, shared.nan_lanes[g]);
  }
  attention_pass_turn(shared.turn, piece);
}

}  // namespace

int attention_amx_tile_rows(int num_heads, int num_kv_heads) {
  const int group = num_heads / num_kv_heads;
  return group >= kAttentionAmxLanes ? 1 : kAttentionAmxLanes / group;
}

void attention_amx(const AttentionParams& p, ThreadPool& pool) {
  constexpr int kPieceSplits = kAttentionAmxSegment / kAttentionSplit;
  attention_run<SharedTotals>(
      *p.rows, attention_units(p, kAttentionAmxLanes), {.least = kPieceSplits, .most = kPieceSplits, .of_keys = true}, pool,
      [](SharedTotals& shared) {
        shared.turn = 0;
        for (int g = 0; g < kGroups; ++g) shared.nan_lanes[g] = shared.groups[g].lanes = 0;
      },
      [&](const TileBundle& bundle, int unit, const AttentionPiece& piece, SharedTotals& shared, int thread) {
        tile_configure(full_tiles());
        run_piece(p, attention_lanes(p, kAttentionAmxLanes, bundle, unit), bundle, piece,
                  *static_cast<Scratch*>(pool.scratch(thread)), shared);
      },
      [&](const TileBundle& bundle, int unit, int thread) {
        tile_configure(full_tiles());
        run_unit(p, attention_lanes(p, kAttentionAmxLanes, bundle, unit), bundle, *static_cast<Scratch*>(pool.scratch(thread)));
        tile_release();
      });
}

}  // namespace otr
