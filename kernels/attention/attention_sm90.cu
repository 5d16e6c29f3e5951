// attention, sm_90a: softmax(q K^T scale) V over paged keys, causal by absolute position, splits of 256 keys merged in order.
//
// Shapes and layouts: attention.h, page.h; limits and order: attention_sm90.h; tasks and slots: attention_sm90_config.h.
//
// Tile: the 64 rows of a wgmma are query tokens x heads of a group (of one or several sequences: a bundle); a split's 256 keys
// are its columns, so the split's maximum is known before its weights, and nothing is rescaled inside a split.
//
// Warp roles: warpgroup 0 computes; one thread of warpgroup 1 loads. Two blocks share a multiprocessor: one's softmax runs
// beside the other's products.
//
// Registers: 208 of a computing thread (scores 128, then their weights 64 and the split's o 64), 48 of a loading one: 128 x
// (208 + 48) is half of the register file. The merged o, which would take 64 more, waits in shared memory: it is touched once
// in 256 keys.
//
//   loader    | K0 K1 K2 K3 V0 V1 V2 V3 | K0 … of the next split, as slots become free
//   computer       | scores of 4 pages | softmax | o over 4 pages | merge |
//
// Barriers: full[slot] 1 arrival and the slot's bytes; empty[slot] the four computing warps; named barrier 1: q is in shared
// memory.
//
// Masked keys: score -inf, weight exactly 0. A split is always four pages: one that a task does not reach is its last page once
// more, from L2, masked; branches around wgmma would cost registers that are not there.
//
// Roofline: decode memory, 4 * head_dim bytes a key and KV head; prefill 4 * head_dim operations a query, key and head.
#include "kernels/attention/attention_sm90.h"
#include "kernels/base/elementary.h"
#include "kernels/base/launch_status.h"
#include "kernels/layouts/slot_ring.h"
#include "kernels/ptx/cluster.h"
#include "kernels/ptx/tensor_map.h"
#include "kernels/ptx/tma.h"
#include "kernels/ptx/wgmma.h"
// After the instructions that it is written in:
#include "kernels/attention/attention_merge_sm90.h"

namespace otr {
namespace {

constexpr int kComputing = 128, kThreads = 256;

// 256 keys that some rows of a task look at.
struct Unit {
  const PageId* pages;  // of the split
  int32_t first_key, num_pages;
  int32_t first_row, end_row;  // other rows take no part
};

// What a block takes: a part of the task of a bundle and a KV head.
struct Share {
  int bundle, kv_head, part, parts;
};

// Blocks take the tasks in turn.
OTR_DEVICE Share share_of(const KernelParams& k) {
  const int num_tasks = num_tasks_of(k), num_kv_heads = k.p.layout.num_kv_heads;
  if (num_tasks == 0) return {};  // no part of none
  const int block = static_cast<int>(blockIdx.x), task = block % num_tasks;
  return {task / num_kv_heads, task % num_kv_heads, block / num_tasks, parts_of(k, num_tasks)};
}

// visit(unit) for this block's part of the task: what the bundle's tiles share, then each tile's own keys.
template <typename Visit>
OTR_DEVICE void for_each_unit(const KernelParams& k, const Share& share, const Visit& visit) {
  const TileBundle& bundle = k.rows.bundles[share.bundle];
  const RowBatch& rows = k.rows;
  int skip = share.part;  // splits of others before this block's next
  for (int i = -1; i < bundle.num_tiles; ++i) {
    const RowTile& tile = rows.tiles[bundle.first_tile + (i < 0 ? 0 : i)];
    const RowTile& last = rows.tiles[bundle.first_tile + bundle.num_tiles - 1];
    const PageId* table = rows.page_tables + rows.segments[tile.segment].first_page;
    const int32_t end_row = i < 0 ? last.first_row + last.num_rows : tile.first_row + tile.num_rows;
    const int32_t end = i < 0 ? bundle.shared_keys : rows.positions[end_row - 1] + 1;
    for (int32_t key = i < 0 ? 0 : bundle.shared_keys; key < end; key += kAttentionSplit) {
      if (skip > 0) {
        --skip;
        continue;
      }
      skip = share.parts - 1;
      const int32_t pages = (end - key + kPageTokens - 1) / kPageTokens;
      visit(Unit{table + key / kPageTokens, key, pages < kAttentionSplitPages ? pages : kAttentionSplitPages, tile.first_row,
                 end_row});
    }
  }
}

template <int kHeadDim>
struct Shared {
  static constexpr int kSlots = attention_num_slots(kHeadDim), kSlotBytes = attention_slot_bytes(kHeadDim);
  static constexpr int kSpans = (kHeadDim + kOperandK - 1) / kOperandK;  // operand tiles of 64 along head_dim
  uint8_t q[kSlotBytes];
  uint8_t slots[kSlots][kSlotBytes];
  float4 merged[kHeadDim / 8][kComputing];  // o over the splits so far: register 4 i of thread t at [i][t]
  uint64_t full[kSlots], empty[kSlots];
  int32_t row[kAttentionSm90Rows], position[kAttentionSm90Rows];  // of the packed rows; -1: none
};

template <int kHeadDim>
OTR_DEVICE void load_pages(const KernelParams& k, const Share& share, const CUtensorMap& k_map, const CUtensorMap& v_map,
                           Shared<kHeadDim>* shared) {
  using S = Shared<kHeadDim>;
  const KvLayout& layout = k.p.layout;
  const uint64_t policy = ptx::l2_evict_normal();
  RingTurn turn;
  for_each_unit(k, share, [&](const Unit& unit) {
    for (int i = 0; i < 2 * kAttentionSplitPages; ++i, turn.advance(S::kSlots)) {
      const bool values = i >= kAttentionSplitPages;
      const int32_t wanted = i % kAttentionSplitPages, last = unit.num_pages - 1;
      const int64_t page = unit.pages[wanted < last ? wanted : last] * layout.page_elements();
      uint8_t* slot = shared->slots[turn.slot];
      uint64_t* full = &shared->full[turn.slot];
      ptx::mbarrier_wait(&shared->empty[turn.slot], turn.phase ^ 1);
      if (values) {
        ptx::mbarrier_arrive_expect_tx(full, kHeadDim * kOperandRowBytes);
        ptx::tma_load_2d(slot, &v_map, 0,
                         static_cast<int32_t>((page + layout.v_offset(k.p.layer, share.kv_head)) / kPageTokens), full, policy);
      } else {
        ptx::mbarrier_arrive_expect_tx(full, S::kSlotBytes);
        const int32_t row = static_cast<int32_t>((page + layout.k_offset(k.p.layer, share.kv_head)) / kHeadDim);
        for (int span = 0; span < S::kSpans; ++span) {
          ptx::tma_load_2d(slot + span * kPageTokens * kOperandRowBytes, &k_map, span * kOperandK, row, full, policy);
        }
      }
    }
  });
}

OTR_DEVICE void release(uint64_t* empty) {
  if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(empty);
}

// products(page, slot) issues the wgmmas of each page of a unit on its slot's operand; all are done at the end, and the slots
// given back.
template <int kHeadDim, typename Products>
OTR_DEVICE void multiply_pages(Shared<kHeadDim>* shared, RingTurn* turn, const Products& products) {
  uint32_t previous = 0;
#pragma unroll
  for (int page = 0; page < kAttentionSplitPages; ++page) {
    ptx::mbarrier_wait(&shared->full[turn->slot], turn->phase);
    ptx::wgmma_fence();
    products(page, operand_descriptor(ptx::shared_address(shared->slots[turn->slot])));
    ptx::wgmma_commit();
    if (page > 0) {  // the page before this one is done
      ptx::wgmma_wait<1>();
      release(&shared->empty[previous]);
    }
    previous = turn->slot;
    turn->advance(Shared<kHeadDim>::kSlots);
  }
  ptx::wgmma_wait<0>();
  release(&shared->empty[previous]);
}

// s[page] = q K^T of the unit's pages.
template <int kHeadDim>
OTR_DEVICE void compute_scores(Shared<kHeadDim>* shared, RingTurn* turn, float (&s)[kAttentionSplitPages][32]) {
  const uint64_t q = operand_descriptor(ptx::shared_address(shared->q));
#pragma unroll
  for (int page = 0; page < kAttentionSplitPages; ++page) ptx::pin_registers(s[page]);
  multiply_pages(shared, turn, [&](int page, uint64_t keys) {
#pragma unroll
    for (int step = 0; step < kHeadDim / kWgmmaK; ++step) {
      const uint64_t span = static_cast<uint64_t>(step / 4 * (kPageTokens * kOperandRowBytes >> 4));
      ptx::wgmma_bf16(s[page], descriptor_at_step(q + span, step % 4), descriptor_at_step(keys + span, step % 4), step > 0);
    }
  });
#pragma unroll
  for (int page = 0; page < kAttentionSplitPages; ++page) ptx::pin_registers(s[page]);
}

// From scores to weights, rounded to bf16 as operands of the next product; m and l of the split for both rows.
OTR_DEVICE void softmax(float scale, const int32_t (&visible)[2], float (&s)[kAttentionSplitPages][32],
                        uint32_t (&w)[kAttentionSplitPages][4][4], float (&m)[2], float (&l)[2]) {
  const int thread = static_cast<int>(threadIdx.x);
  m[0] = m[1] = kMinusInf;
#pragma unroll
  for (int page = 0; page < kAttentionSplitPages; ++page) {
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      const int key = page * kPageTokens + accumulator_column(thread, i), h = i % 4 / 2;
      s[page][i] = key < visible[h] ? s[page][i] * scale : kMinusInf;
      m[h] = fmaxf(m[h], s[page][i]);
    }
  }
  float base[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    m[h] = fmaxf(m[h], __shfl_xor_sync(0xffffffffu, m[h], 2));
    m[h] = fmaxf(m[h], __shfl_xor_sync(0xffffffffu, m[h], 1));
    base[h] = m[h] == kMinusInf ? 0.0f : m[h];  // no visible key: every weight exp(-inf) = 0
    l[h] = 0.0f;
  }
#pragma unroll
  for (int page = 0; page < kAttentionSplitPages; ++page) {
#pragma unroll
    for (int i = 0; i < 32; i += 2) {
      const int h = i % 4 / 2;
      const float a = exp32(s[page][i] - base[h]), b = exp32(s[page][i + 1] - base[h]);
      l[h] = l[h] + a;
      l[h] = l[h] + b;
      w[page][i / 8][i % 8 / 2] = ptx::pack_bf16(a, b);
    }
  }
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    l[h] += __shfl_xor_sync(0xffffffffu, l[h], 2);
    l[h] += __shfl_xor_sync(0xffffffffu, l[h], 1);
  }
}

// o = the weights times the unit's values.
template <int kHeadDim>
OTR_DEVICE void compute_values(const uint32_t (&w)[kAttentionSplitPages][4][4], Shared<kHeadDim>* shared, RingTurn* turn,
                               float (&o)[kHeadDim / 2]) {
  ptx::pin_registers(o);
  multiply_pages(shared, turn, [&](int page, uint64_t values) {
#pragma unroll
    for (int step = 0; step < kPageTokens / kWgmmaK; ++step) {
      ptx::wgmma_bf16(o, w[page][step], descriptor_at_step(values, step), page > 0 || step > 0);
    }
  });
  ptx::pin_registers(o);
}

// Who the packed rows are, and their queries, zeros where there is no row; then this warpgroup's barrier.
template <int kHeadDim>
OTR_DEVICE void load_queries(const KernelParams& k, const TileBundle& bundle, int kv_head, int group,
                             Shared<kHeadDim>* shared) {
  constexpr int kPieces = kHeadDim / 8;  // of 16 bytes
  const RowTile& last = k.rows.tiles[bundle.first_tile + bundle.num_tiles - 1];
  const int32_t first_row = k.rows.tiles[bundle.first_tile].first_row, end_row = last.first_row + last.num_rows;
  for (int i = static_cast<int>(threadIdx.x); i < kAttentionSm90Rows * kPieces; i += kComputing) {
    const int packed = i / kPieces, d = i % kPieces * 8, row = first_row + packed / group;
    if (d == 0) {
      shared->row[packed] = row < end_row ? row : -1;
      shared->position[packed] = row < end_row ? k.rows.positions[row] : -1;
    }
    const Element* q = k.p.q + (int64_t{row} * k.p.num_heads + kv_head * group + packed % group) * kHeadDim + d;
    uint8_t* span = shared->q + d / kOperandK * kAttentionSm90Rows * kOperandRowBytes;
    *reinterpret_cast<uint4*>(span + operand_offset(static_cast<uint32_t>(packed), static_cast<uint32_t>(d % kOperandK))) =
        row < end_row ? *reinterpret_cast<const uint4*>(q) : make_uint4(0, 0, 0, 0);
  }
  ptx::fence_async_shared();
  ptx::named_barrier<1>(kComputing);
}

// Leaves a split's sums in the workspace.
template <int kHeadDim>
OTR_DEVICE void store_partial(const KernelParams& k, int row, int head, int split, int h, float m, float l,
                              const float (&o)[kHeadDim / 2]) {
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t entry = (int64_t{row} * k.p.num_heads + head) * k.max_splits + split;
#pragma unroll
  for (int i = 0; i < kHeadDim / 2; i += 4) {
    *reinterpret_cast<float2*>(k.partials + entry * kHeadDim + accumulator_column(thread, i)) =
        h == 0 ? make_float2(o[i], o[i + 1]) : make_float2(o[i + 2], o[i + 3]);
  }
  if (thread % 4 == 0) k.pairs[entry] = make_float2(m, l);
}

template <int kHeadDim>
OTR_DEVICE void compute_task(const KernelParams& k, const Share& share, Shared<kHeadDim>* shared) {
  const int thread = static_cast<int>(threadIdx.x), group = k.p.num_heads / k.p.layout.num_kv_heads, kv_head = share.kv_head;
  const bool is_shared = share.parts > 1;  // then its splits are merged later
  load_queries<kHeadDim>(k, k.rows.bundles[share.bundle], kv_head, group, shared);
  // The merged sums of the thread's two rows.
  float total_m[2] = {kMinusInf, kMinusInf}, total_l[2] = {0.0f, 0.0f};
#pragma unroll
  for (int i = 0; i < kHeadDim / 8; ++i) shared->merged[i][thread] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);

  RingTurn turn;
  for_each_unit(k, share, [&](const Unit& unit) {
    float s[kAttentionSplitPages][32], m[2], l[2], o[kHeadDim / 2];
    uint32_t w[kAttentionSplitPages][4][4];
    compute_scores<kHeadDim>(shared, &turn, s);
    int32_t visible[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int packed = accumulator_row(thread, 2 * h), row = shared->row[packed];
      const bool takes_part = row >= unit.first_row && row < unit.end_row;
      visible[h] = takes_part ? shared->position[packed] + 1 - unit.first_key : 0;  // at most 0: none
    }
    softmax(k.p.scale, visible, s, w, m, l);
    compute_values<kHeadDim>(w, shared, &turn, o);

    if (is_shared) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int packed = accumulator_row(thread, 2 * h), head = kv_head * group + packed % group;
        if (visible[h] > 0)
          store_partial<kHeadDim>(k, shared->row[packed], head, unit.first_key / kAttentionSplit, h, m[h], l[h], o);
      }
    } else {
      MergeFactors f[2];
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        f[h] = visible[h] > 0 ? merge_factors(total_m[h], m[h]) : MergeFactors{total_m[h], 1.0f, 0.0f};
        total_m[h] = f[h].m;
        total_l[h] = merged(total_l[h], l[h], f[h]);
      }
#pragma unroll
      for (int i = 0; i < kHeadDim / 8; ++i) {
        float4& t = shared->merged[i][thread];
        t = make_float4(merged(t.x, o[4 * i], f[0]), merged(t.y, o[4 * i + 1], f[0]), merged(t.z, o[4 * i + 2], f[1]),
                        merged(t.w, o[4 * i + 3], f[1]));
      }
    }
  });

  if (is_shared) return;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int packed = accumulator_row(thread, 2 * h), row = shared->row[packed];
    if (row < 0) continue;
    Element* out = k.p.out + row * k.p.out_stride + (kv_head * group + packed % group) * kHeadDim;
#pragma unroll
    for (int i = 0; i < kHeadDim / 8; ++i) {
      const float4 t = shared->merged[i][thread];
      *reinterpret_cast<uint32_t*>(out + accumulator_column(thread, 4 * i)) =
          ptx::pack_bf16(quotient(h == 0 ? t.x : t.z, total_l[h]), quotient(h == 0 ? t.y : t.w, total_l[h]));
    }
  }
}

template <int kHeadDim>
__global__ void __launch_bounds__(kThreads, 2)
    attention_kernel(const __grid_constant__ KernelParams k, const __grid_constant__ CUtensorMap k_map,
                     const __grid_constant__ CUtensorMap v_map) {
  static_assert(sizeof(Shared<kHeadDim>) <= attention_shared_bytes(kHeadDim));
  extern __shared__ __align__(kSwizzleGroupBytes) uint8_t raw[];
  if (ptx::shared_address(raw) % kSwizzleGroupBytes != 0)
    __trap();  // there is no room to move: two blocks fill a multiprocessor
  auto* shared = reinterpret_cast<Shared<kHeadDim>*>(raw);
  const Share share = share_of(k);
  if (share.part >= share.parts) return;  // of a captured launch, whose grid is that of a full batch
  if (threadIdx.x == 0) {
    for (int i = 0; i < Shared<kHeadDim>::kSlots; ++i) {
      ptx::mbarrier_init(&shared->full[i], 1);
      ptx::mbarrier_init(&shared->empty[i], kComputing / 32);
    }
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  if (threadIdx.x >= kComputing) {
    ptx::setmaxnreg_dec<48>();
    if (threadIdx.x == kComputing) load_pages<kHeadDim>(k, share, k_map, v_map, shared);
  } else {
    ptx::setmaxnreg_inc<208>();
    compute_task<kHeadDim>(k, share, shared);
  }
}

template <int kHeadDim>
Status launch(const KernelParams& k, cudaStream_t stream) {
  // Any page may be named: the tensors end where coordinates do.
  constexpr int64_t kAllRows = 0x7fffffff;
  CUtensorMap k_map, v_map;
  OTR_RETURN_IF_ERROR(ptx::make_tensor_map(k.p.pages, matrix_box(kAllRows, kHeadDim, kHeadDim, kPageTokens), &k_map));
  OTR_RETURN_IF_ERROR(ptx::make_tensor_map(k.p.pages, matrix_box(kAllRows, kPageTokens, kPageTokens, kHeadDim), &v_map));
  constexpr int kBytes = attention_shared_bytes(kHeadDim);
  OTR_RETURN_IF_ERROR(allow_shared_memory("attention", attention_kernel<kHeadDim>, kBytes));
  attention_kernel<kHeadDim><<<static_cast<unsigned>(k.blocks), kThreads, kBytes, stream>>>(k, k_map, v_map);
  OTR_RETURN_IF_ERROR(launch_status("attention"));
  if (k.partials == nullptr) return {};
  const unsigned merging = static_cast<unsigned>((int64_t{k.rows.num_rows} * k.p.num_heads + 3) / 4);
  merge_kernel<kHeadDim><<<merging, 128, 0, stream>>>(k);
  return launch_status("attention");
}

}  // namespace

Status attention_sm90(const AttentionParams& p, const AttentionWorkspace& workspace, cudaStream_t stream) {
  const RowBatch& rows = *p.rows;
  if (rows.num_bundles == 0) return {};
  if (p.num_heads / p.layout.num_kv_heads > kAttentionSm90Rows)
    return unsupported("attention: more than 64 query heads of a KV head");
  int device = 0, num_sms = 0;
  OTR_RETURN_IF_ERROR(cuda_status("attention", cudaGetDevice(&device)));
  OTR_RETURN_IF_ERROR(cuda_status("attention", cudaDeviceGetAttribute(&num_sms, cudaDevAttrMultiProcessorCount, device)));
  const bool suffices =
      workspace.partials != nullptr &&
      workspace.size >= attention_sm90_workspace(rows.num_rows, p.num_heads, p.layout.head_dim, workspace.max_keys);
  const int num_tasks = rows.num_bundles * p.layout.num_kv_heads, splits = attention_num_splits(workspace.max_keys);
  const bool is_captured = rows.num_bundles_at != nullptr;
  const int parts =
      is_captured ? (suffices ? splits : 1) : attention_sm90_parts(num_tasks, num_sms, workspace.max_keys, suffices);
  const int blocks = !is_captured ? num_tasks * parts : parts > 1 && num_tasks < 2 * num_sms ? 2 * num_sms : num_tasks;
  float* const partials = parts > 1 ? workspace.partials : nullptr;
  const int64_t floats = int64_t{rows.num_rows} * p.num_heads * splits * p.layout.head_dim;
  const KernelParams k = {
      p, rows, blocks, parts, splits, partials, parts > 1 ? reinterpret_cast<float2*>(partials + floats) : nullptr};
  switch (p.layout.head_dim) {
    case 32: return launch<32>(k, stream);
    case 64: return launch<64>(k, stream);
    case 128: return launch<128>(k, stream);
    default: return unsupported("attention: head_dim " + std::to_string(p.layout.head_dim) + " is not 32, 64 or 128");
  }
}

Status load_attention_sm90() {
  return load_kernels("attention", attention_kernel<32>, attention_kernel<64>, attention_kernel<128>, merge_kernel<32>,
                      merge_kernel<64>, merge_kernel<128>);
}

}  // namespace otr
