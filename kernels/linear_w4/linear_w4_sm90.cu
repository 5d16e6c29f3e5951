// linear_w4, sm_90a, up to 32 rows (more: linear_w4_wide_sm90.cu): out[r][n] = residual[r][n] + (sum_g scale[n][g] sum_{k in g}
// x[r][k] (q[n][k] - zero[n][g]) + bias[n]), and silu(gate) * up as its other epilogue.
//
// Shapes, order of sums: linear_w4_sm90.h; tiles, splits, grid: linear_w4_sm90_config.h; weight layout:
// kernels/layouts/w4_fragments.h.
//
// Tile: 64 outputs by kTileN tokens. Weights are mma's left operand, in registers: a tensor core that reads them from shared
// memory (wgmma) would need them written there as bf16, four times their bytes. Tokens are its right one.
//
// Warp roles: 8 warps, each a split of the contraction with a ring of its own, which its first lane fills. A slot is a group of
// the tile: 4,352 bytes of weights, one bulk copy, and kTileN rows of 128 inputs, four boxes of 32 inputs: rows of 64 bytes, of
// which 8 lanes read 128 bytes side by side. No warp waits for another one but once a tile, for the sums.
//
//   lane 0  | group 0 | group 8 | group 16 | … as far ahead as there are slots, also into the next tile
//   warp 0            | 32 kTileN / 8 mma on group 0 | on group 8 | … | sums of all warps | store
//
// Of experts (kExperts) the tiles are what a list on the device says: the tokens of one expert, and its weights. A tile's box
// of tokens may hold some of the next expert's, in columns that nobody stores.
//
// Registers: (kTileN / 8) x 16 sums of a group and as many of the tile.
//
// Barriers: full[warp][slot], 1 arrival (lane 0's, with the slot's bytes) and those bytes. A slot is free once the warp has
// met. Sums: the block's barrier, or the cluster's where splits lie in several blocks; once more before they are overwritten.
//
// Roofline: memory, out_features * in_features * 17 / 32 bytes. Tokens come from L2: kTileN 8 / 16 / 32 add 0.47 / 0.94 / 1.9
// bytes to each of the weights'. A word of 8 weights costs 11 instructions to expand; at 3.35 TB/s on 132 multiprocessors
// of 1.7 GHz that is 37 lanes of 128 busy.
#include "kernels/base/launch_status.h"
#include "kernels/layouts/slot_ring.h"
#include "kernels/linear/linear_sm90.h"
#include "kernels/linear/linear_sm90_epilogue.h"
#include "kernels/linear_w4/linear_w4_sm90.h"
#include "kernels/ptx/cluster.h"
#include "kernels/ptx/mma.h"
#include "kernels/ptx/tensor_map.h"
#include "kernels/ptx/tma.h"

namespace otr {
namespace {

constexpr int kFragments = kW4Sm90BlockM / kW4Sm90FragmentM;  // of a block's outputs
constexpr int kXBoxK = kW4Sm90StepK, kXRowBytes = kXBoxK * 2;
constexpr int kXSteps = kW4Sm90GroupK / kXBoxK;

struct KernelParams {
  LinearOutput output;
  const uint8_t* packed;
  int32_t num_groups, splits, num_slots, tiles_n, num_tiles;
  // Of kExperts, in place of tiles_n and num_tiles:
  int32_t tiles_m;
  int64_t expert_bytes;  // from an expert's weight to the next one's
  ExpertTiles experts;
};

// ---- Tiles ------------------------------------------------------------------------------------------------------------------

template <int kTileN, bool kExperts>
OTR_DEVICE OutputTile tile_at(const KernelParams& p, int32_t index) {
  if constexpr (kExperts) return expert_tile_at(p.experts, p.tiles_m, index);
  return {index / p.tiles_n, index % p.tiles_n * kTileN, p.output.num_rows, 0};
}

// ---- Loads ------------------------------------------------------------------------------------------------------------------

// The groups that a warp takes, in its order.
struct Cursor {
  int32_t tile, group;
};
OTR_DEVICE void advance(const KernelParams& p, int32_t split, int32_t tile_step, Cursor* at) {
  at->group += p.splits;
  if (at->group >= p.num_groups) at->group = split, at->tile += tile_step;
}

// By one lane.
template <int kTileN, bool kExperts>
OTR_DEVICE void load_group(const KernelParams& p, const CUtensorMap& x_map, const Cursor& at, uint8_t* slot, uint64_t* full,
                           uint64_t weight_policy, uint64_t x_policy) {
  const OutputTile tile = tile_at<kTileN, kExperts>(p, at.tile);
  const uint8_t* packed = kExperts ? p.packed + tile.expert * p.expert_bytes : p.packed;
  ptx::mbarrier_arrive_expect_tx(full, w4_sm90_slot_bytes(kTileN));
  ptx::bulk_load(slot, packed + (int64_t{tile.m} * p.num_groups + at.group) * kW4Sm90GroupBytes, kW4Sm90GroupBytes, full,
                 weight_policy);
  for (int step = 0; step < kXSteps; ++step) {
    ptx::tma_load_2d(slot + kW4Sm90GroupBytes + step * kTileN * kXRowBytes, &x_map, at.group * kW4Sm90GroupK + step * kXBoxK,
                     tile.first_row, full, x_policy);
  }
}

// ---- Products ---------------------------------------------------------------------------------------------------------------

// total += scale * (the sum over one group), of all fragments.
template <int kTileN>
OTR_DEVICE void multiply_group(const uint8_t* slot, float (&total)[kFragments][kTileN / 8][4]) {
  const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, q = lane % 4;
  const uint8_t* x = slot + kW4Sm90GroupBytes + g * kXRowBytes + q * 16;
  const auto* words = reinterpret_cast<const uint32_t*>(slot + kW4Sm90WordsOffset) + g;
  float partial[kFragments][kTileN / 8][4] = {};
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    uint4 tokens[2][kTileN / 8];
#pragma unroll
    for (int i = 0; i < 2 * (kTileN / 8); ++i) {
      const int step = 2 * h + i / (kTileN / 8), column = i % (kTileN / 8);
      tokens[i / (kTileN / 8)][column] = *reinterpret_cast<const uint4*>(x + (step * kTileN + column * 8) * kXRowBytes);
    }
#pragma unroll
    for (int fragment = 0; fragment < kFragments; ++fragment) {
      const uint4 w = *reinterpret_cast<const uint4*>(slot + fragment * kW4Sm90FragmentBytes + w4_sm90_lane_offset(h, lane));
      const uint32_t zero[2] = {w4_magic_zero(words[fragment * 16]), w4_magic_zero(words[fragment * 16 + 8])};
      const uint32_t rows[2][2] = {{w.x, w.y}, {w.z, w.w}};  // [step][outputs g, g + 8]
#pragma unroll
      for (int i = 0; i < 4; ++i) {  // half a step: pairs 0, 1 or 2, 3 of the words
        const uint32_t(&row)[2] = rows[i / 2];
        const int pair = i % 2 * 2;
        const uint32_t a[4] = {ptx::sub_bf16x2(w4_magic_pair(row[0], pair), zero[0]),
                               ptx::sub_bf16x2(w4_magic_pair(row[1], pair), zero[1]),
                               ptx::sub_bf16x2(w4_magic_pair(row[0], pair + 1), zero[0]),
                               ptx::sub_bf16x2(w4_magic_pair(row[1], pair + 1), zero[1])};
#pragma unroll
        for (int column = 0; column < kTileN / 8; ++column) {
          const uint4& b = tokens[i / 2][column];
          ptx::mma_bf16(partial[fragment][column], a, pair == 0 ? b.x : b.z, pair == 0 ? b.y : b.w);
        }
      }
    }
  }
#pragma unroll
  for (int fragment = 0; fragment < kFragments; ++fragment) {
    const float scale[2] = {float_from_bits(words[fragment * 16]), float_from_bits(words[fragment * 16 + 8])};
#pragma unroll
    for (int column = 0; column < kTileN / 8; ++column) {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        total[fragment][column][i] = fma_(scale[i / 2], partial[fragment][column][i], total[fragment][column][i]);
    }
  }
}

// ---- Sums of the splits -----------------------------------------------------------------------------------------------------

OTR_DEVICE void meet(int cluster) {
  if (cluster == 1) {
    __syncthreads();
  } else {
    ptx::cluster_arrive();
    ptx::cluster_wait();
  }
}

// Four pieces of 16 outputs by 8 tokens at a time: every warp leaves its sums, and warps 0 … 3 add up and store a piece each;
// in a cluster, every block those of its rank.
template <int kTileN, LinearEpilogue kEpilogue, bool kExperts>
OTR_DEVICE void sum_and_store(const KernelParams& p, int32_t tile, int cluster, int rank, float4* exchange,
                              const float (&total)[kFragments][kTileN / 8][4]) {
  constexpr int kColumns = kTileN / 8, kPieces = 4;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int used = p.splits < p.num_groups ? p.splits : p.num_groups;
  const OutputTile at = tile_at<kTileN, kExperts>(p, tile);
  LinearOutput output = p.output;
  output.num_rows = at.end_row;
#pragma unroll
  for (int round = 0; round < kFragments * kColumns / kPieces; ++round) {
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      const float(&d)[4] = total[(round * kPieces + i) / kColumns][(round * kPieces + i) % kColumns];
      exchange[(warp * kPieces + i) * 32 + lane] = make_float4(d[0], d[1], d[2], d[3]);
    }
    meet(cluster);
    if (warp < kPieces && warp % cluster == rank) {
      float sum[4] = {};
      for (int split = 0; split < used; ++split) {
        const float4* left = exchange + (split % kW4Sm90Warps * kPieces + warp) * 32 + lane;
        const int owner = split / kW4Sm90Warps;
        const float4 part =
            owner == rank ? *left : ptx::load_remote(ptx::mapa(ptx::shared_address(left), static_cast<uint32_t>(owner)));
        sum[0] = split == 0 ? part.x : sum[0] + part.x;
        sum[1] = split == 0 ? part.y : sum[1] + part.y;
        sum[2] = split == 0 ? part.z : sum[2] + part.z;
        sum[3] = split == 0 ? part.w : sum[3] + part.w;
      }
      const int piece = round * kPieces + warp;
      store_outputs<kEpilogue>(output, at.m * kW4Sm90BlockM, piece / kColumns * kW4Sm90FragmentM + lane / 4,
                               at.first_row + piece % kColumns * 8 + lane % 4 * 2, sum);
    }
    meet(cluster);  // it publishes nothing, but a relaxed arrival would not put the reads before what overwrites them
  }
}

// ---- Kernel -----------------------------------------------------------------------------------------------------------------

template <int kTileN, LinearEpilogue kEpilogue, bool kExperts>
__global__ void __launch_bounds__(kW4Sm90Warps * 32, 1)
    linear_w4_kernel(const __grid_constant__ KernelParams p, const __grid_constant__ CUtensorMap x_map) {
  constexpr int kSlotBytes = w4_sm90_slot_bytes(kTileN);
  static_assert(kSlotBytes % 128 == 0);
  extern __shared__ __align__(128) uint8_t shared[];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int cluster = p.splits / kW4Sm90Warps, rank = static_cast<int>(ptx::cluster_rank()), split = rank * kW4Sm90Warps + warp;
  uint8_t* slots = shared + warp * p.num_slots * kSlotBytes;
  auto* exchange = reinterpret_cast<float4*>(shared + kW4Sm90Warps * p.num_slots * kSlotBytes);
  auto* full =
      reinterpret_cast<uint64_t*>(reinterpret_cast<uint8_t*>(exchange) + kW4Sm90ExchangeBytes) + warp * kW4Sm90MaxSlots;

  const int32_t first_tile = static_cast<int32_t>(blockIdx.x) / cluster, tile_step = static_cast<int32_t>(gridDim.x) / cluster;
  const uint64_t weight_policy = p.tiles_n == 1 ? ptx::l2_evict_first() : ptx::l2_evict_normal(),
                 x_policy = ptx::l2_evict_last();
  const int32_t num_tiles = kExperts ? *p.experts.count * p.tiles_m : p.num_tiles;
  Cursor next = {split < p.num_groups ? first_tile : num_tiles, split};
  if (lane == 0) {
    for (int i = 0; i < p.num_slots; ++i) ptx::mbarrier_init(&full[i], 1);
    ptx::fence_mbarrier_init();
    ptx::fence_async_shared();  // no barrier of the block stands between them and the copies that count there
    for (int i = 0; i < p.num_slots && next.tile < num_tiles; ++i, advance(p, split, tile_step, &next))
      load_group<kTileN, kExperts>(p, x_map, next, slots + i * kSlotBytes, &full[i], weight_policy, x_policy);
  }
  __syncwarp();

  RingTurn turn;
  for (int32_t tile = first_tile; tile < num_tiles; tile += tile_step) {
    float total[kFragments][kTileN / 8][4] = {};
    for (int32_t group = split; group < p.num_groups; group += p.splits, turn.advance(static_cast<uint32_t>(p.num_slots))) {
      ptx::mbarrier_wait(&full[turn.slot], turn.phase);
      multiply_group<kTileN>(slots + turn.slot * kSlotBytes, total);
      ptx::fence_async_shared();  // what has been read here comes before the copy that takes its place
      __syncwarp();
      if (lane == 0 && next.tile < num_tiles) {
        load_group<kTileN, kExperts>(p, x_map, next, slots + turn.slot * kSlotBytes, &full[turn.slot], weight_policy, x_policy);
        advance(p, split, tile_step, &next);
      }
    }
    sum_and_store<kTileN, kEpilogue, kExperts>(p, tile, cluster, rank, exchange, total);
  }
}

using Kernel = void (*)(KernelParams, CUtensorMap);

template <LinearEpilogue kEpilogue, bool kExperts>
Kernel find_kernel(int tile_n) {
  switch (tile_n) {
    case 8: return linear_w4_kernel<8, kEpilogue, kExperts>;
    case 16: return linear_w4_kernel<16, kEpilogue, kExperts>;
    default: return linear_w4_kernel<32, kEpilogue, kExperts>;
  }
}
template <bool kExperts>
Kernel find_kernel(int tile_n, bool gated) {
  return gated ? find_kernel<LinearEpilogue::kSiluMul, kExperts>(tile_n)
               : find_kernel<LinearEpilogue::kLinear, kExperts>(tile_n);
}

}  // namespace

Status linear_w4_sm90(const LinearW4Params& p, cudaStream_t stream) {
  return p.num_rows <= kW4NarrowRows ? linear_w4_narrow_sm90(p, stream) : linear_w4_wide_sm90(p, stream);
}

Status linear_w4_narrow_sm90(const LinearW4Params& p, cudaStream_t stream) {
  const LinearW4Weight& w = p.weight;
  const bool gated = p.gated != nullptr;
  OTR_RETURN_IF_ERROR(check_linear_w4_sm90(p));
  if (p.num_rows == 0) return {};
  OTR_ASSIGN_OR_RETURN(const DeviceLimits device, device_limits_sm90());
  const LinearW4Sm90Config c = choose_linear_w4_sm90({p.num_rows, w.out_features, w.in_features, gated}, device);
  CUtensorMap x_map;
  OTR_RETURN_IF_ERROR(ptx::make_tensor_map(p.x, plain_box(p.num_rows, w.in_features, p.x_stride, c.tile_n, kXBoxK), &x_map));
  const KernelParams params = {{p.num_rows, w.out_features, gated ? nullptr : w.bias, gated ? nullptr : p.residual,
                                gated ? static_cast<void*>(p.gated) : p.out, gated ? p.gated_stride : p.out_stride},
                               w.packed,
                               w4_sm90_groups(w.in_features),
                               c.cluster * kW4Sm90Warps,
                               c.num_slots,
                               c.tiles_n,
                               c.tiles(),
                               0,
                               0,
                               {}};
  return launch_clusters("linear_w4", find_kernel<false>(c.tile_n, gated), c.num_clusters, c.cluster, kW4Sm90Warps * 32,
                         c.shared_bytes, stream, false, params, x_map);
}

Status linear_w4_experts_sm90(const LinearW4ExpertsParams& p, cudaStream_t stream) {
  const LinearW4Weight& w = p.weight;
  const bool gated = p.gated != nullptr;
  OTR_RETURN_IF_ERROR(check_expert_product(p, kW4NarrowRows));
  if (reinterpret_cast<uintptr_t>(w.packed) % 16 != 0 || p.weight_stride % 16 != 0)
    return invalid_argument("linear_w4_experts: the weights are not aligned to 16 bytes");
  if (p.num_rows == 0) return {};
  OTR_ASSIGN_OR_RETURN(const DeviceLimits device, device_limits_sm90());
  const LinearW4Sm90Config c =
      choose_linear_w4_experts_sm90({p.tiles.tile_rows, w.out_features, w.in_features, gated}, p.tiles.max_tiles, device);
  CUtensorMap x_map;
  OTR_RETURN_IF_ERROR(ptx::make_tensor_map(p.x, plain_box(p.num_rows, w.in_features, p.x_stride, c.tile_n, kXBoxK), &x_map));
  const KernelParams params = {{p.num_rows, w.out_features, nullptr, nullptr, gated ? static_cast<void*>(p.gated) : p.out,
                                gated ? p.gated_stride : w.out_features},
                               w.packed,
                               w4_sm90_groups(w.in_features),
                               c.cluster * kW4Sm90Warps,
                               c.num_slots,
                               c.tiles_n,
                               c.tiles(),
                               c.tiles_m,
                               p.weight_stride,
                               p.tiles};
  return launch_clusters("linear_w4_experts", find_kernel<true>(c.tile_n, gated), c.num_clusters, c.cluster, kW4Sm90Warps * 32,
                         c.shared_bytes, stream, false, params, x_map);
}

Status load_linear_w4_sm90() {
  for (const int tile_n : {8, 16, 32}) {
    for (const bool gated : {false, true})
      OTR_RETURN_IF_ERROR(load_kernels("linear_w4", find_kernel<false>(tile_n, gated), find_kernel<true>(tile_n, gated)));
  }
  return load_linear_w4_wide_sm90();
}

}  // namespace otr
