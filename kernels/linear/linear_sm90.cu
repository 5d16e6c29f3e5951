// linear, sm_90a: out[r][n] = residual[r][n] + (sum_k x[r][k] w[n][k] + bias[n]), and silu(gate) * up as its other epilogue.
//
// Shapes and layouts: linear_sm90.h; tiles, ring and grid: linear_sm90_config.h; swizzle, fragments, splits: kernels/layouts.
//
// Tile: kConsumers x 64 outputs (wgmma's M) by kTileN tokens (its N), in slots of 64 inputs: few tokens cost few columns.
//
// Warp roles: warpgroups 0 … kConsumers - 1 compute, 64 outputs each; of the last one a single thread loads, the rest idles.
//
// Registers: two consumers: 40 for the loading warpgroup, 232 for the others (2 x 232 + 40 = 504 of the 512 that 128 threads
// share); one consumer: two blocks share a multiprocessor at up to 128.
//
//   loader    | w0 x0 | w1 x1 | … as far ahead as there are slots, also into the next tile
//   consumers         | 4 wgmma on slot 0 | 4 on slot 1, then slot 0 is free | … | epilogue
//
// Barriers:
//   full[slot]      1 arrival (the loader's, with the slot's bytes) and those bytes, its own or multicast by the other block
//   empty[slot]     one arrival of each consumer warp of every block that the slot's bytes are sent to
//   exchange_full   1 arrival (with the bytes that the other splits send) and those bytes
//   exchange_empty  one arrival of each consumer warp of every block that was sent to: it may be sent to for the next tile
//   the cluster's, at both ends: no block's memory is written before its barriers exist (for which a relaxed arrival suffices, behind
//   fence_mbarrier_init) or after it has left (which a relaxed one would not see to: arrivals may be on their way)
//
// What the consumers give back they have read (wgmma_wait, or values in registers) and not written: an arrival there carries no
// fence.
//
// Of experts (kExperts) the tiles are what a list on the device says: the tokens of one expert, and its weights, which are one
// of several in their map. A tile's box of tokens may hold some of the next expert's, in columns that nobody stores.
//
// Reduction order: per split one accumulator over k ascending in steps of 16; splits ascending from split 0. Nothing is masked:
// the copy engine fills what lies outside the operands with zeros.
//
// Roofline: up to ~200 rows memory, out_features * in_features * 2 bytes; above, 2 * rows * out * in operations.
#include "kernels/base/launch_status.h"
#include "kernels/layouts/slot_ring.h"
#include "kernels/linear/linear_sm90.h"
#include "kernels/linear/linear_sm90_epilogue.h"
#include "kernels/ptx/cluster.h"
#include "kernels/ptx/tensor_map.h"
#include "kernels/ptx/tma.h"
#include "kernels/ptx/wgmma.h"

namespace otr {
namespace {

struct KernelParams {
  LinearOutput output;
  int32_t num_blocks;  // of 64 inputs
  int32_t splits, num_slots, columns_m, tiles_n, num_tiles;
  bool prefetch;
  ExpertTiles experts;  // of kExperts, in place of tiles_n and num_tiles
};

struct Barriers {
  uint64_t full[kLinearMaxSlots], empty[kLinearMaxSlots];
  uint64_t exchange_full, exchange_empty;
};
static_assert(sizeof(Barriers) <= kLinearBarrierBytes);

// ---- Tiles ------------------------------------------------------------------------------------------------------------------

template <int kTileN, bool kExperts>
OTR_DEVICE OutputTile tile_at(const KernelParams& p, int32_t index) {
  if constexpr (kExperts) return expert_tile_at(p.experts, p.columns_m, index);
  const TileCoordinates at = linear_tile(index, p.columns_m, p.tiles_n);
  return {at.m, at.n * kTileN, p.output.num_rows, 0};
}
template <bool kExperts>
OTR_DEVICE int32_t count_tiles(const KernelParams& p) {
  if constexpr (kExperts) return *p.experts.count * p.columns_m;
  return p.num_tiles;
}

// ---- Prefetch ---------------------------------------------------------------------------------------------------------------

// The weights of the first slots into L2, while the launch ahead may still be running: nobody writes weights between launches
// that read them.
template <int kConsumers, LinearEpilogue kEpilogue, bool kSideBySide>
OTR_DEVICE void prefetch_weights(const KernelParams& p, const CUtensorMap& weight_map, uint32_t cluster_size, uint32_t rank) {
  constexpr int kTileM = kConsumers * kWgmmaM;
  const int32_t tile = static_cast<int32_t>(blockIdx.x / cluster_size);
  if (tile >= p.num_tiles) return;
  const TileCoordinates at = linear_tile(tile, p.columns_m, p.tiles_n);
  const int32_t tile_m = kSideBySide ? at.m : at.m * 2 + static_cast<int32_t>(rank);
  const int32_t begin = kSideBySide ? split_begin(static_cast<int>(rank), p.splits, p.num_blocks) : 0;
  const int32_t end = kSideBySide ? split_begin(static_cast<int>(rank) + 1, p.splits, p.num_blocks) : p.num_blocks;
  for (int32_t block = begin; block < end && block < begin + p.num_slots; ++block) {
    if constexpr (kEpilogue == LinearEpilogue::kSiluMul) {
      for (int32_t box = 0; box < kTileM / kPairedBoxRows; ++box) {
        ptx::tma_prefetch_4d(&weight_map, block * kOperandK, 0, tile_m * (kTileM / kPairedBoxRows) + box, 0);
      }
    } else {
      ptx::tma_prefetch_2d(&weight_map, block * kOperandK, tile_m * kTileM);
    }
  }
}

// ---- Loader -----------------------------------------------------------------------------------------------------------------

template <int kConsumers, int kTileN, LinearEpilogue kEpilogue, bool kSideBySide, bool kExperts>
OTR_DEVICE void load_tiles(const KernelParams& p, const CUtensorMap& weight_map, const CUtensorMap& x_map,
                           uint32_t cluster_size, uint32_t rank, uint8_t* slots, Barriers* barriers) {
  constexpr int kTileM = kConsumers * kWgmmaM;
  constexpr uint32_t kSlotBytes = (kTileM + kTileN) * kOperandRowBytes;
  const uint64_t weight_policy = p.tiles_n == 1 ? ptx::l2_evict_first() : ptx::l2_evict_normal(),
                 x_policy = ptx::l2_evict_last();
  const int32_t num_tiles = count_tiles<kExperts>(p);
  RingTurn turn;
  for (int32_t tile = static_cast<int32_t>(blockIdx.x / cluster_size); tile < num_tiles; tile += gridDim.x / cluster_size) {
    const OutputTile at = tile_at<kTileN, kExperts>(p, tile);
    const int32_t tile_m = kSideBySide ? at.m : at.m * 2 + static_cast<int32_t>(rank);
    const int32_t begin = kSideBySide ? split_begin(static_cast<int>(rank), p.splits, p.num_blocks) : 0;
    const int32_t end = kSideBySide ? split_begin(static_cast<int>(rank) + 1, p.splits, p.num_blocks) : p.num_blocks;
    for (int32_t block = begin; block < end; ++block, turn.advance(static_cast<uint32_t>(p.num_slots))) {
      uint8_t* weights = slots + turn.slot * kSlotBytes;
      uint8_t* tokens = weights + kTileM * kOperandRowBytes;
      uint64_t* full = &barriers->full[turn.slot];
      ptx::mbarrier_wait(&barriers->empty[turn.slot], turn.phase ^ 1);
      ptx::mbarrier_arrive_expect_tx(full, kSlotBytes);
      if constexpr (kEpilogue == LinearEpilogue::kSiluMul) {
#pragma unroll
        for (int32_t box = 0; box < kTileM / kPairedBoxRows; ++box) {
          uint8_t* to = weights + box * kPairedBoxRows * kOperandRowBytes;
          const int32_t eight = tile_m * (kTileM / kPairedBoxRows) + box;
          if constexpr (kExperts) {
            ptx::tma_load_5d(to, &weight_map, block * kOperandK, 0, eight, 0, at.expert, full, weight_policy);
          } else {
            ptx::tma_load_4d(to, &weight_map, block * kOperandK, 0, eight, 0, full, weight_policy);
          }
        }
      } else if constexpr (kExperts) {
        ptx::tma_load_3d(weights, &weight_map, block * kOperandK, tile_m * kTileM, at.expert, full, weight_policy);
      } else {
        ptx::tma_load_2d(weights, &weight_map, block * kOperandK, tile_m * kTileM, full, weight_policy);
      }
      if constexpr (kSideBySide) {
        ptx::tma_load_2d(tokens, &x_map, block * kOperandK, at.first_row, full, x_policy);
      } else {
        constexpr int kHalf = kTileN / 2;
        const int32_t half = static_cast<int32_t>(rank) * kHalf;
        ptx::tma_load_2d_multicast(tokens + half * kOperandRowBytes, &x_map, block * kOperandK, at.first_row + half, full, 0b11,
                                   x_policy);
      }
    }
  }
}

// ---- Consumers --------------------------------------------------------------------------------------------------------------

// Gives a slot back to every block that fills it: a warp knows only its own 16 rows of a wgmma to be done, so each one says so.
template <bool kSideBySide>
OTR_DEVICE void release(uint64_t* empty) {
  const uint32_t lane = threadIdx.x % 32;
  if constexpr (kSideBySide) {
    if (lane == 0) ptx::mbarrier_arrive(empty);
  } else {
    if (lane < 2) ptx::mbarrier_arrive_remote(ptx::mapa(ptx::shared_address(empty), lane));
  }
}

// acc = the sum over `count` blocks of inputs, ascending.
template <int kTileN, int kSlotBytes, int kTileM, bool kSideBySide>
OTR_DEVICE void multiply_blocks(int32_t count, uint32_t num_slots, uint32_t slots, int warpgroup, Barriers* barriers,
                                RingTurn* turn, float (&acc)[kTileN / 2]) {
  uint32_t previous = 0;
  for (int32_t block = 0; block < count; ++block) {
    const uint32_t weights = slots + turn->slot * kSlotBytes + warpgroup * kWgmmaM * kOperandRowBytes;
    const uint32_t tokens = slots + turn->slot * kSlotBytes + kTileM * kOperandRowBytes;
    ptx::mbarrier_wait(&barriers->full[turn->slot], turn->phase);
    ptx::pin_registers(acc);
    ptx::wgmma_fence();
    const uint64_t a = operand_descriptor(weights), b = operand_descriptor(tokens);
#pragma unroll
    for (int step = 0; step < kOperandK / kWgmmaK; ++step) {
      ptx::wgmma_bf16(acc, descriptor_at_step(a, step), descriptor_at_step(b, step), block > 0 || step > 0);
    }
    ptx::wgmma_commit();
    ptx::pin_registers(acc);
    ptx::wgmma_wait<1>();  // the block before this one is done
    if (block > 0) release<kSideBySide>(&barriers->empty[previous]);
    previous = turn->slot;
    turn->advance(num_slots);
  }
  ptx::wgmma_wait<0>();
  ptx::pin_registers(acc);
  release<kSideBySide>(&barriers->empty[previous]);
}

template <LinearEpilogue kEpilogue>
OTR_DEVICE void store_group(const LinearOutput& output, int32_t tile_m_begin, int32_t row_begin, int thread, int group,
                            const float* d) {
  store_outputs<kEpilogue>(output, tile_m_begin, linear_tile_row(thread, 0), row_begin + accumulator_column(thread, 4 * group),
                           d);
}

// Splits side by side: every block sends each group of 8 columns to its owner, and adds up and stores the groups that it owns.
template <int kConsumers, int kTileN, LinearEpilogue kEpilogue>
OTR_DEVICE void exchange_and_store(const KernelParams& p, int32_t tile_m_begin, int32_t row_begin, uint32_t rank,
                                   float* exchange, Barriers* barriers, uint32_t phase, float (&acc)[kTileN / 2]) {
  constexpr int kGroups = kTileN / 8, kThreads = kConsumers * 128;
  const int thread = static_cast<int>(threadIdx.x), my_rank = static_cast<int>(rank);
  const int owned =
      owned_groups(my_rank, p.splits, kGroups);  // 0: nobody sends here, and phases that nobody waits for do not turn
  if (thread == 0 && owned > 0) {
    ptx::mbarrier_arrive_expect_tx(&barriers->exchange_full, static_cast<uint32_t>((p.splits - 1) * owned * kThreads * 16));
  }
  if (exchange_partners(my_rank, p.splits, kGroups) > 0) ptx::mbarrier_wait(&barriers->exchange_empty, phase ^ 1);
  const uint32_t buffer = ptx::shared_address(exchange), full = ptx::shared_address(&barriers->exchange_full);
#pragma unroll
  for (int group = 0; group < kGroups; ++group) {
    const int owner = group_owner(group, p.splits);
    if (owner == my_rank) continue;
    const int piece = exchange_piece(my_rank, group, thread, p.splits, kGroups, kThreads);
    ptx::st_async(ptx::mapa(buffer + static_cast<uint32_t>(piece) * 16, static_cast<uint32_t>(owner)), acc[4 * group],
                  acc[4 * group + 1], acc[4 * group + 2], acc[4 * group + 3], ptx::mapa(full, static_cast<uint32_t>(owner)));
  }
  if (owned == 0) return;
  ptx::mbarrier_wait_cluster(&barriers->exchange_full, phase);
#pragma unroll
  for (int group = 0; group < kGroups; ++group) {
    if (group_owner(group, p.splits) != my_rank) continue;
    float sum[4] = {};
    for (int source = 0; source < p.splits; ++source) {
      float4 part = make_float4(acc[4 * group], acc[4 * group + 1], acc[4 * group + 2], acc[4 * group + 3]);
      if (source != my_rank) {
        part = reinterpret_cast<const float4*>(exchange)[exchange_piece(source, group, thread, p.splits, kGroups, kThreads)];
      }
      sum[0] = source == 0 ? part.x : sum[0] + part.x;
      sum[1] = source == 0 ? part.y : sum[1] + part.y;
      sum[2] = source == 0 ? part.z : sum[2] + part.z;
      sum[3] = source == 0 ? part.w : sum[3] + part.w;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) acc[4 * group + i] = sum[i];
  }
  ptx::pin_registers(acc);  // the parts have been read
  __syncwarp();
  if (thread % 32 < p.splits && thread % 32 != my_rank) {  // lane i tells rank i
    ptx::mbarrier_arrive_remote(ptx::mapa(ptx::shared_address(&barriers->exchange_empty), static_cast<uint32_t>(thread % 32)));
  }
#pragma unroll
  for (int group = 0; group < kGroups; ++group) {
    if (group_owner(group, p.splits) == my_rank)
      store_group<kEpilogue>(p.output, tile_m_begin, row_begin, thread, group, acc + 4 * group);
  }
}

template <int kConsumers, int kTileN, LinearEpilogue kEpilogue, bool kSideBySide, bool kInTurn, bool kExperts>
OTR_DEVICE void compute_tiles(const KernelParams& p, uint32_t cluster_size, uint32_t rank, uint8_t* slots, float* exchange,
                              Barriers* barriers) {
  constexpr int kTileM = kConsumers * kWgmmaM, kSlotBytes = (kTileM + kTileN) * kOperandRowBytes, kRegisters = kTileN / 2;
  const int warpgroup = static_cast<int>(threadIdx.x) / 128;
  const uint32_t ring = ptx::shared_address(slots), num_slots = static_cast<uint32_t>(p.num_slots);
  RingTurn turn;
  const int32_t num_tiles = count_tiles<kExperts>(p);
  uint32_t exchange_phase = 0;
  LinearOutput output = p.output;
  for (int32_t tile = static_cast<int32_t>(blockIdx.x / cluster_size); tile < num_tiles; tile += gridDim.x / cluster_size) {
    const OutputTile at = tile_at<kTileN, kExperts>(p, tile);
    const int32_t tile_m_begin = (kSideBySide ? at.m : at.m * 2 + static_cast<int32_t>(rank)) * kTileM,
                  row_begin = at.first_row;
    output.num_rows = at.end_row;
    float acc[kRegisters];
    if constexpr (kInTurn) {
      float total[kRegisters];
      for (int32_t split = 0; split < p.splits; ++split) {
        const int32_t count = split_begin(split + 1, p.splits, p.num_blocks) - split_begin(split, p.splits, p.num_blocks);
        multiply_blocks<kTileN, kSlotBytes, kTileM, kSideBySide>(count, num_slots, ring, warpgroup, barriers, &turn, acc);
#pragma unroll
        for (int i = 0; i < kRegisters; ++i) total[i] = split == 0 ? acc[i] : total[i] + acc[i];
      }
#pragma unroll
      for (int group = 0; group < kTileN / 8; ++group) {
        store_group<kEpilogue>(output, tile_m_begin, row_begin, static_cast<int>(threadIdx.x), group, total + 4 * group);
      }
    } else {
      const int32_t begin = kSideBySide ? split_begin(static_cast<int>(rank), p.splits, p.num_blocks) : 0;
      const int32_t end = kSideBySide ? split_begin(static_cast<int>(rank) + 1, p.splits, p.num_blocks) : p.num_blocks;
      multiply_blocks<kTileN, kSlotBytes, kTileM, kSideBySide>(end - begin, num_slots, ring, warpgroup, barriers, &turn, acc);
      if (kSideBySide && !kExperts && p.splits > 1) {
        exchange_and_store<kConsumers, kTileN, kEpilogue>(p, tile_m_begin, row_begin, rank, exchange, barriers, exchange_phase,
                                                          acc);
        exchange_phase ^= 1;
      } else {
#pragma unroll
        for (int group = 0; group < kTileN / 8; ++group) {
          store_group<kEpilogue>(output, tile_m_begin, row_begin, static_cast<int>(threadIdx.x), group, acc + 4 * group);
        }
      }
    }
  }
}

// ---- Kernel -----------------------------------------------------------------------------------------------------------------

template <int kConsumers, int kTileN, LinearEpilogue kEpilogue, bool kSideBySide, bool kInTurn, bool kExperts>
__global__ void __launch_bounds__((kConsumers + 1) * 128, kConsumers == 1 ? 2 : 1)
    linear_kernel(const __grid_constant__ KernelParams p, const __grid_constant__ CUtensorMap weight_map,
                  const __grid_constant__ CUtensorMap x_map) {
  static_assert(!(kSideBySide && kInTurn) && (kSideBySide || !kExperts));
  constexpr uint32_t kSlotBytes = (kConsumers * kWgmmaM + kTileN) * kOperandRowBytes;
  static_assert(kSlotBytes % kSwizzleGroupBytes == 0);
  // Shared memory: slots at a multiple of 1,024, the exchange of splits, barriers.
  extern __shared__ uint8_t shared[];
  uint8_t* slots = shared + (-ptx::shared_address(shared) & (kSwizzleGroupBytes - 1));
  float* exchange = reinterpret_cast<float*>(slots + p.num_slots * kSlotBytes);
  const int exchange_size = kSideBySide ? linear_exchange_bytes(p.splits, kTileN, kConsumers) : 0;
  Barriers* barriers = reinterpret_cast<Barriers*>(reinterpret_cast<uint8_t*>(exchange) + exchange_size);
  const uint32_t cluster_size = kSideBySide ? static_cast<uint32_t>(p.splits) : 2, rank = ptx::cluster_rank();

  if (threadIdx.x == 0) {
    for (int i = 0; i < p.num_slots; ++i) {
      ptx::mbarrier_init(&barriers->full[i], 1);
      ptx::mbarrier_init(&barriers->empty[i], kConsumers * 4 * (kSideBySide ? 1 : 2));
    }
    ptx::mbarrier_init(&barriers->exchange_full, 1);
    const int partners = kSideBySide ? exchange_partners(static_cast<int>(rank), p.splits, kTileN / 8) : 0;
    ptx::mbarrier_init(&barriers->exchange_empty, static_cast<uint32_t>((partners > 0 ? partners : 1) * kConsumers * 4));
    ptx::fence_mbarrier_init();
    ptx::prefetch_tensor_map(&weight_map);
    ptx::prefetch_tensor_map(&x_map);
  }
  ptx::cluster_arrive_relaxed();
  ptx::cluster_wait();

  if (threadIdx.x / 128 == kConsumers) {
    if constexpr (kConsumers == 2) ptx::setmaxnreg_dec<40>();
    if (threadIdx.x == kConsumers * 128) {
      if (!kExperts && p.prefetch) prefetch_weights<kConsumers, kEpilogue, kSideBySide>(p, weight_map, cluster_size, rank);
      ptx::grid_wait();
      ptx::grid_let_next();
      load_tiles<kConsumers, kTileN, kEpilogue, kSideBySide, kExperts>(p, weight_map, x_map, cluster_size, rank, slots,
                                                                       barriers);
    }
  } else {
    if constexpr (kConsumers == 2) ptx::setmaxnreg_inc<232>();
    ptx::grid_wait();
    compute_tiles<kConsumers, kTileN, kEpilogue, kSideBySide, kInTurn, kExperts>(p, cluster_size, rank, slots, exchange,
                                                                                 barriers);
  }
  __syncwarp();
  ptx::cluster_arrive();
  ptx::cluster_wait();
}

// ---- Launch -----------------------------------------------------------------------------------------------------------------

using Kernel = void (*)(KernelParams, CUtensorMap, CUtensorMap);

template <LinearEpilogue kEpilogue>
Kernel find_kernel(int tile_n) {
  switch (tile_n) {
    case 8: return linear_kernel<1, 8, kEpilogue, true, false, false>;
    case 16: return linear_kernel<1, 16, kEpilogue, true, false, false>;
    case 32: return linear_kernel<1, 32, kEpilogue, true, false, false>;
    case 64: return linear_kernel<1, 64, kEpilogue, true, false, false>;
    case 128: return linear_kernel<2, 128, kEpilogue, true, false, false>;
    case 192: return linear_kernel<2, 192, kEpilogue, false, true, false>;
    default: return linear_kernel<2, 256, kEpilogue, false, false, false>;
  }
}
template <LinearEpilogue kEpilogue>
Kernel find_experts_kernel(int tile_n) {
  switch (tile_n) {
    case 8: return linear_kernel<1, 8, kEpilogue, true, false, true>;
    case 16: return linear_kernel<1, 16, kEpilogue, true, false, true>;
    case 32: return linear_kernel<1, 32, kEpilogue, true, false, true>;
    case 64: return linear_kernel<1, 64, kEpilogue, true, false, true>;
    default: return linear_kernel<2, 128, kEpilogue, true, false, true>;
  }
}

template <LinearEpilogue kEpilogue>
Status run(const LinearSm90Config& c, int32_t num_rows, const LinearWeight& w, const Element* x, int64_t x_stride,
           const float* residual, void* out, int64_t out_stride, cudaStream_t stream) {
  const int64_t weight_stride = linear_sm90_stride(w.in_features);
  const TensorBox weight_box = kEpilogue == LinearEpilogue::kSiluMul
                                   ? paired_box(w.out_features / 2, w.in_features, weight_stride)
                                   : matrix_box(w.out_features, w.in_features, weight_stride, c.tile_m());
  const TensorBox x_box = matrix_box(num_rows, w.in_features, x_stride, c.side_by_side ? c.tile_n : c.tile_n / 2);
  CUtensorMap weight_map, x_map;
  OTR_RETURN_IF_ERROR(ptx::make_tensor_map(w.packed, weight_box, &weight_map));
  OTR_RETURN_IF_ERROR(ptx::make_tensor_map(x, x_box, &x_map));
  const KernelParams p = {{num_rows, w.out_features, w.bias, residual, out, out_stride},
                          num_k_blocks(w.in_features),
                          c.splits,
                          c.num_slots,
                          c.side_by_side ? c.tiles_m : (c.tiles_m + 1) / 2,
                          c.tiles_n,
                          c.tiles(),
                          c.prefetch,
                          {}};
  return launch_clusters("linear", find_kernel<kEpilogue>(c.tile_n), c.num_clusters, c.cluster, (c.consumers + 1) * 128,
                         c.shared_bytes, stream, c.prefetch, p, weight_map, x_map);
}

template <LinearEpilogue kEpilogue>
Status run_experts(const LinearExpertsParams& p, void* out, int64_t out_stride, cudaStream_t stream) {
  const LinearWeight& w = p.weight;
  OTR_ASSIGN_OR_RETURN(const DeviceLimits device, device_limits_sm90());
  const LinearSm90Problem of_tile = {p.tiles.tile_rows, w.out_features, w.in_features, kEpilogue == LinearEpilogue::kSiluMul};
  const LinearSm90Config c = choose_linear_experts_sm90(of_tile, p.tiles.max_tiles, device);
  const int64_t row_stride = linear_sm90_stride(w.in_features),
                stride = p.num_experts > 1 ? p.weight_stride : w.out_features * row_stride;
  const TensorBox weight_box = kEpilogue == LinearEpilogue::kSiluMul
                                   ? paired_box(w.out_features / 2, w.in_features, row_stride)
                                   : matrix_box(w.out_features, w.in_features, row_stride, c.tile_m());
  CUtensorMap weight_map, x_map;
  OTR_RETURN_IF_ERROR(ptx::make_tensor_map(w.packed, stacked(weight_box, p.num_experts, stride), &weight_map));
  OTR_RETURN_IF_ERROR(ptx::make_tensor_map(p.x, matrix_box(p.num_rows, w.in_features, p.x_stride, c.tile_n), &x_map));
  const KernelParams params = {{p.num_rows, w.out_features, nullptr, nullptr, out, out_stride},
                               num_k_blocks(w.in_features),
                               c.splits,
                               c.num_slots,
                               c.tiles_m,
                               c.tiles_n,
                               c.tiles(),
                               c.prefetch,
                               p.tiles};
  return launch_clusters("linear_experts", find_experts_kernel<kEpilogue>(c.tile_n), c.num_clusters, c.cluster,
                         (c.consumers + 1) * 128, c.shared_bytes, stream, false, params, weight_map, x_map);
}

template <LinearEpilogue kEpilogue>
Status load() {
  for (const int tile_n : {8, 16, 32, 64, 128, 192, 256})
    OTR_RETURN_IF_ERROR(load_kernels("linear", find_kernel<kEpilogue>(tile_n), find_experts_kernel<kEpilogue>(tile_n)));
  return {};
}

}  // namespace

Result<DeviceLimits> device_limits_sm90() {
  int device = 0;
  DeviceLimits limits;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) error = cudaDeviceGetAttribute(&limits.num_sms, cudaDevAttrMultiProcessorCount, device);
  if (error == cudaSuccess)
    error = cudaDeviceGetAttribute(&limits.shared_per_block, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  if (error == cudaSuccess)
    error = cudaDeviceGetAttribute(&limits.shared_per_sm, cudaDevAttrMaxSharedMemoryPerMultiprocessor, device);
  if (error != cudaSuccess) return cuda_status("linear", error);
  return limits;
}

Status linear_sm90(const LinearParams& p, cudaStream_t stream) {
  if (p.num_rows == 0) return {};
  OTR_ASSIGN_OR_RETURN(const DeviceLimits device, device_limits_sm90());
  return linear_sm90(p, choose_linear_sm90({p.num_rows, p.weight.out_features, p.weight.in_features, false}, device), stream);
}

Status linear_sm90(const LinearParams& p, const LinearSm90Config& config, cudaStream_t stream) {
  return run<LinearEpilogue::kLinear>(config, p.num_rows, p.weight, p.x, p.x_stride, p.residual, p.out, p.out_stride, stream);
}

Status linear_silu_mul_sm90(const LinearSiluMulParams& p, cudaStream_t stream) {
  if (p.num_rows == 0) return {};
  OTR_ASSIGN_OR_RETURN(const DeviceLimits device, device_limits_sm90());
  return linear_silu_mul_sm90(p, choose_linear_sm90({p.num_rows, p.weight.out_features, p.weight.in_features, true}, device),
                              stream);
}

Status linear_silu_mul_sm90(const LinearSiluMulParams& p, const LinearSm90Config& config, cudaStream_t stream) {
  if (p.weight.out_features % 16 != 0) return invalid_argument("linear: the intermediate size is not a multiple of 8");
  return run<LinearEpilogue::kSiluMul>(config, p.num_rows, p.weight, p.x, p.x_stride, nullptr, p.out, p.out_stride, stream);
}

Status linear_experts_sm90(const LinearExpertsParams& p, cudaStream_t stream) {
  OTR_RETURN_IF_ERROR(check_expert_product(p, kLinearExpertsRows));
  if (p.num_rows == 0) return {};
  if (p.gated == nullptr) return run_experts<LinearEpilogue::kLinear>(p, p.out, p.weight.out_features, stream);
  return run_experts<LinearEpilogue::kSiluMul>(p, p.gated, p.gated_stride, stream);
}

Status load_linear_sm90() {
  OTR_RETURN_IF_ERROR(load<LinearEpilogue::kLinear>());
  return load<LinearEpilogue::kSiluMul>();
}

}  // namespace otr
