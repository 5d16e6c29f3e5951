// linear_w4, sm_90a, above 32 rows: the formula of linear_w4_sm90.cu on wgmma, for a drafter's prefill and large batches.
//
// Shapes, order of sums: linear_w4_sm90.h; tiles, splits, grid: linear_w4_wide_sm90_config.h; weight layout:
// kernels/layouts/w4_fragments.h; operands: kernels/layouts/wgmma_layout.h.
//
// Tile: 128 outputs by kTileN tokens. Every group of 128 inputs is expanded once a tile, by the warps that multiply it, to q -
// zero in bf16 (exact) in shared memory, where wgmma reads it; the group's sum is scaled in float32, as the definition says, so
// that there are two sets of accumulators.
//
// Warp roles: warpgroups 0 and 1, 64 outputs each; of the third a single thread loads, the rest idles.
//
//   loader      | slot 0 | slot 1 | … as far ahead as there are slots, with one split also into the next tile
//   warpgroup          | expand 0 | wgmma 0 … runs      | wgmma 1 …
//                                 | expand 1 | scale 0  |          | expand 2 | scale 1 | …
//
// While one warpgroup scales and expands, the other one's products run.
//
// Registers: 40 for the loading warpgroup, 232 for the others, of which kTileN / 2 are sums of a group, and as many of the
// tile.
//
// Barriers:
//   full[slot]   1 arrival (the loader's, with the slot's bytes) and those bytes
//   empty[slot]  one arrival of each of the 8 warps that multiply
//   named 1, 2   a warpgroup's: expanded weights are complete, and nobody still reads those before them
//   the cluster's, where splits lie in several blocks: sums are there; once more before they are overwritten
//
// Reduction order: wgmma over the 8 steps of 16 inputs of a group ascending, one fma a group ascending, splits ascending.
//
// Roofline: at 128 tokens a group costs 2 x 128 x 128 x 128 operations, 1,024 clocks of the tensor cores, and 41 KB from L2, 40
// bytes a clock: L2 gives a multiprocessor 24 to 40. Memory below some 64 rows: out_features * in_features * 17 / 32 bytes,
// read once up to 128 rows. Expanding takes a lane 8 words of some 13 instructions, 100 issue slots of the 1,024.
#include "kernels/base/launch_status.h"
#include "kernels/layouts/slot_ring.h"
#include "kernels/linear/linear_sm90.h"
#include "kernels/linear/linear_sm90_epilogue.h"
#include "kernels/linear_w4/linear_w4_sm90.h"
#include "kernels/ptx/cluster.h"
#include "kernels/ptx/mma.h"
#include "kernels/ptx/tensor_map.h"
#include "kernels/ptx/tma.h"
#include "kernels/ptx/wgmma.h"

namespace otr {
namespace {

constexpr int kSteps = kW4Sm90GroupK / kWgmmaK;

struct KernelParams {
  LinearOutput output;
  const uint8_t* packed;
  int32_t num_groups, num_blocks, splits, num_slots, tiles_n, num_tiles;
};

struct Barriers {
  uint64_t full[kW4WideMaxSlots], empty[kW4WideMaxSlots];
};
static_assert(sizeof(Barriers) <= kW4WideBarrierBytes);

// ---- Loader -----------------------------------------------------------------------------------------------------------------

// One tile, by one thread. Of an odd number of blocks the last tile has one: the other warpgroup multiplies what lies there,
// for nobody.
template <int kTileN>
OTR_DEVICE void load_tile(const KernelParams& p, const CUtensorMap& x_map, int32_t tile, int32_t begin, int32_t end,
                          uint8_t* slots, Barriers* barriers, RingTurn* turn) {
  constexpr int kTokensBytes = w4_wide_tokens_bytes(kTileN);
  const uint64_t weight_policy = p.tiles_n == 1 ? ptx::l2_evict_first() : ptx::l2_evict_normal(),
                 x_policy = ptx::l2_evict_last();
  const int64_t block = int64_t{tile / p.tiles_n} * kW4WideConsumers;
  const int32_t blocks = p.num_blocks - block < kW4WideConsumers ? 1 : kW4WideConsumers;
  for (int32_t group = begin; group < end; ++group, turn->advance(static_cast<uint32_t>(p.num_slots))) {
    uint8_t* slot = slots + turn->slot * w4_wide_slot_bytes(kTileN);
    uint64_t* full = &barriers->full[turn->slot];
    ptx::mbarrier_wait(&barriers->empty[turn->slot], turn->phase ^ 1);
    ptx::mbarrier_arrive_expect_tx(full, static_cast<uint32_t>(kTokensBytes + blocks * kW4Sm90GroupBytes));
    for (int32_t i = 0; i < blocks; ++i) {
      ptx::bulk_load(slot + kTokensBytes + i * kW4Sm90GroupBytes,
                     p.packed + ((block + i) * p.num_groups + group) * kW4Sm90GroupBytes, kW4Sm90GroupBytes, full,
                     weight_policy);
    }
    for (int32_t half = 0; half < 2; ++half) {
      ptx::tma_load_2d(slot + half * kTileN * kOperandRowBytes, &x_map, group * kW4Sm90GroupK + half * kOperandK,
                       tile % p.tiles_n * kTileN, full, x_policy);
    }
  }
}

// ---- Products ---------------------------------------------------------------------------------------------------------------

// Eight weights of a word as q - zero.
OTR_DEVICE uint4 expand_word(uint32_t word, uint32_t zero) {
  return {ptx::sub_bf16x2(w4_magic_pair(word, 0), zero), ptx::sub_bf16x2(w4_magic_pair(word, 1), zero),
          ptx::sub_bf16x2(w4_magic_pair(word, 2), zero), ptx::sub_bf16x2(w4_magic_pair(word, 3), zero)};
}

// This warp's 16 outputs of a group, to two operand tiles; scale[0, 1]: of outputs g and g + 8.
OTR_DEVICE void expand_group(const uint8_t* weights, uint8_t* expanded, float (&scale)[2]) {
  const int lane = static_cast<int>(threadIdx.x) % 32, fragment = static_cast<int>(threadIdx.x) % 128 / 32;
  const auto* words = reinterpret_cast<const uint32_t*>(weights + kW4Sm90WordsOffset) + fragment * kW4Sm90FragmentM + lane / 4;
  const uint32_t zero[2] = {w4_magic_zero(words[0]), w4_magic_zero(words[8])};
  scale[0] = float_from_bits(words[0]), scale[1] = float_from_bits(words[8]);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const uint4 w = *reinterpret_cast<const uint4*>(weights + fragment * kW4Sm90FragmentBytes + w4_sm90_lane_offset(h, lane));
#pragma unroll
    for (int turn = 0; turn < 2; ++turn) {
      const int step = w4_wide_step(lane, turn);
      uint8_t* tile = expanded + h * kW4WideOperandBytes;
      *reinterpret_cast<uint4*>(tile + w4_wide_offset(fragment, lane, step, false)) =
          expand_word(step == 0 ? w.x : w.z, zero[0]);
      *reinterpret_cast<uint4*>(tile + w4_wide_offset(fragment, lane, step, true)) =
          expand_word(step == 0 ? w.y : w.w, zero[1]);
    }
  }
}

// Asks for sums = the product of one group; they are there at the next wgmma_wait<0>.
template <int kTileN>
OTR_DEVICE void multiply_group(uint32_t expanded, uint32_t tokens, float (&sums)[kTileN / 2]) {
  ptx::pin_registers(sums);
  ptx::wgmma_fence();
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const int half = step / (kSteps / 2), inside = step % (kSteps / 2);
    const uint64_t a = operand_descriptor(expanded + static_cast<uint32_t>(half * kW4WideOperandBytes)),
                   b = operand_descriptor(tokens + static_cast<uint32_t>(half * kTileN * kOperandRowBytes));
    ptx::wgmma_bf16(sums, descriptor_at_step(a, inside), descriptor_at_step(b, inside), step > 0);
  }
  ptx::wgmma_commit();
  ptx::pin_registers(sums);
}

// total += scale * sums, once they are there; the slot is free then.
template <int kTileN>
OTR_DEVICE void add_group(const float (&scale)[2], float (&sums)[kTileN / 2], float (&total)[kTileN / 2], uint64_t* empty) {
  ptx::wgmma_wait<0>();
  ptx::pin_registers(sums);
  if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(empty);
#pragma unroll
  for (int i = 0; i < kTileN / 2; ++i) total[i] = fma_(scale[i % 4 / 2], sums[i], total[i]);
}

// total = the sums of one tile over a split's groups. `turn` and `half`, the half of `expanded` that is next, go on from tile
// to tile: the last group's half is read until all warps have passed add_group.
template <int kTileN, int kWarpgroup>
OTR_DEVICE void multiply_tile(const KernelParams& p, int32_t count, uint8_t* slots, uint8_t* expanded, Barriers* barriers,
                              RingTurn* turn, int* half, float (&total)[kTileN / 2]) {
  float sums[kTileN / 2], scale[2];
  uint32_t previous = 0;
#pragma unroll
  for (int i = 0; i < kTileN / 2; ++i) total[i] = 0.0f;
  for (int32_t group = 0; group < count; ++group, *half ^= 1) {
    uint8_t* slot = slots + turn->slot * w4_wide_slot_bytes(kTileN);
    uint8_t* operand = expanded + *half * 2 * kW4WideOperandBytes;
    float next_scale[2];
    ptx::mbarrier_wait(&barriers->full[turn->slot], turn->phase);
    expand_group(slot + w4_wide_tokens_bytes(kTileN) + kWarpgroup * kW4Sm90GroupBytes, operand, next_scale);
    if (group > 0) add_group<kTileN>(scale, sums, total, &barriers->empty[previous]);
    ptx::fence_async_shared();
    ptx::named_barrier<kWarpgroup + 1>(128);
    multiply_group<kTileN>(ptx::shared_address(operand), ptx::shared_address(slot), sums);
    scale[0] = next_scale[0], scale[1] = next_scale[1];
    previous = turn->slot;
    turn->advance(static_cast<uint32_t>(p.num_slots));
  }
  add_group<kTileN>(scale, sums, total, &barriers->empty[previous]);
}

// ---- Sums of the splits -----------------------------------------------------------------------------------------------------

OTR_DEVICE void meet_cluster() {
  ptx::cluster_arrive();
  ptx::cluster_wait();
}

template <int kTileN>
constexpr int kRounds = kTileN / 8 / kW4WidePieces;

// What the loading warpgroup does meanwhile.
template <int kTileN>
OTR_DEVICE void sit_out_sums() {
  for (int i = 0; i < 2 * kRounds<kTileN>; ++i) meet_cluster();
}

template <LinearEpilogue kEpilogue>
OTR_DEVICE void store_column(const KernelParams& p, int32_t tile_m_begin, int32_t row_begin, int column, const float* d) {
  const int thread = static_cast<int>(threadIdx.x);
  store_outputs<kEpilogue>(p.output, tile_m_begin, linear_tile_row(thread, 0),
                           row_begin + accumulator_column(thread % 128, 4 * column), d);
}

// Four columns of 8 tokens at a time: every block leaves its sums, and adds up and stores the columns of its rank.
template <int kTileN, LinearEpilogue kEpilogue>
OTR_DEVICE void sum_and_store(const KernelParams& p, int32_t tile_m_begin, int32_t row_begin, int rank, float4* exchange,
                              const float (&total)[kTileN / 2]) {
  constexpr int kThreads = kW4WideConsumers * 128;
#pragma unroll
  for (int round = 0; round < kRounds<kTileN>; ++round) {
#pragma unroll
    for (int i = 0; i < kW4WidePieces; ++i) {
      const float* d = total + (round * kW4WidePieces + i) * 4;
      exchange[i * kThreads + static_cast<int>(threadIdx.x)] = make_float4(d[0], d[1], d[2], d[3]);
    }
    meet_cluster();
    for (int i = rank; i < kW4WidePieces; i += p.splits) {
      const float4* at = exchange + i * kThreads + static_cast<int>(threadIdx.x);
      float sum[4] = {};
      for (int split = 0; split < p.splits; ++split) {
        const float4 part =
            split == rank ? *at : ptx::load_remote(ptx::mapa(ptx::shared_address(at), static_cast<uint32_t>(split)));
        sum[0] = split == 0 ? part.x : sum[0] + part.x;
        sum[1] = split == 0 ? part.y : sum[1] + part.y;
        sum[2] = split == 0 ? part.z : sum[2] + part.z;
        sum[3] = split == 0 ? part.w : sum[3] + part.w;
      }
      store_column<kEpilogue>(p, tile_m_begin, row_begin, round * kW4WidePieces + i, sum);
    }
    meet_cluster();  // releasing, as in linear_w4_sm90.cu
  }
}

// ---- Kernel -----------------------------------------------------------------------------------------------------------------

template <int kTileN, LinearEpilogue kEpilogue, int kWarpgroup>
OTR_DEVICE void compute_tiles(const KernelParams& p, int32_t begin, int32_t end, uint32_t rank, uint8_t* slots,
                              uint8_t* expanded, float4* exchange, Barriers* barriers) {
  RingTurn turn;
  int half = 0;
  const int32_t step = static_cast<int32_t>(gridDim.x) / p.splits;
  for (int32_t tile = static_cast<int32_t>(blockIdx.x) / p.splits; tile < p.num_tiles; tile += step) {
    const int32_t tile_m_begin = tile / p.tiles_n * kW4WideBlockM, row_begin = tile % p.tiles_n * kTileN;
    float total[kTileN / 2];
    multiply_tile<kTileN, kWarpgroup>(p, end - begin, slots, expanded + kWarpgroup * 4 * kW4WideOperandBytes, barriers, &turn,
                                      &half, total);
    if (p.splits > 1) {
      sum_and_store<kTileN, kEpilogue>(p, tile_m_begin, row_begin, static_cast<int>(rank), exchange, total);
      continue;
    }
#pragma unroll
    for (int column = 0; column < kTileN / 8; ++column)
      store_column<kEpilogue>(p, tile_m_begin, row_begin, column, total + 4 * column);
  }
}

template <int kTileN, LinearEpilogue kEpilogue>
__global__ void __launch_bounds__(kW4WideThreads, 1)
    linear_w4_wide_kernel(const __grid_constant__ KernelParams p, const __grid_constant__ CUtensorMap x_map) {
  static_assert(w4_wide_slot_bytes(kTileN) % kSwizzleGroupBytes == 0 && kTileN / 8 % kW4WidePieces == 0);
  extern __shared__ uint8_t shared[];
  uint8_t* slots = shared + (-ptx::shared_address(shared) & (kSwizzleGroupBytes - 1));
  uint8_t* expanded = slots + p.num_slots * w4_wide_slot_bytes(kTileN);
  auto* exchange = reinterpret_cast<float4*>(expanded + kW4WideExpandedBytes);
  auto* barriers = reinterpret_cast<Barriers*>(expanded + kW4WideExpandedBytes + (p.splits > 1 ? kW4WideExchangeBytes : 0));
  const uint32_t rank = ptx::cluster_rank();
  const int32_t begin = w4_wide_split_begin(static_cast<int>(rank), p.splits, p.num_groups),
                end = w4_wide_split_begin(static_cast<int>(rank) + 1, p.splits, p.num_groups);
  if (threadIdx.x == 0) {
    for (int i = 0; i < p.num_slots; ++i) {
      ptx::mbarrier_init(&barriers->full[i], 1);
      ptx::mbarrier_init(&barriers->empty[i], kW4WideConsumers * 4);
    }
    ptx::fence_mbarrier_init();
    ptx::prefetch_tensor_map(&x_map);
  }
  __syncthreads();

  if (threadIdx.x < 128) {
    ptx::setmaxnreg_inc<232>();
    compute_tiles<kTileN, kEpilogue, 0>(p, begin, end, rank, slots, expanded, exchange, barriers);
  } else if (threadIdx.x < 256) {
    ptx::setmaxnreg_inc<232>();
    compute_tiles<kTileN, kEpilogue, 1>(p, begin, end, rank, slots, expanded, exchange, barriers);
  } else {
    ptx::setmaxnreg_dec<40>();
    RingTurn turn;
    const int32_t step = static_cast<int32_t>(gridDim.x) / p.splits;
    for (int32_t tile = static_cast<int32_t>(blockIdx.x) / p.splits; tile < p.num_tiles; tile += step) {
      if (threadIdx.x == 256) load_tile<kTileN>(p, x_map, tile, begin, end, slots, barriers, &turn);
      __syncwarp();
      if (p.splits > 1) sit_out_sums<kTileN>();
    }
  }
}

// ---- Launch -----------------------------------------------------------------------------------------------------------------

using Kernel = void (*)(KernelParams, CUtensorMap);

template <LinearEpilogue kEpilogue>
Kernel find_kernel(int tile_n) {
  return tile_n == 64 ? linear_w4_wide_kernel<64, kEpilogue> : linear_w4_wide_kernel<128, kEpilogue>;
}

}  // namespace

Status linear_w4_wide_sm90(const LinearW4Params& p, cudaStream_t stream) {
  const LinearW4Weight& w = p.weight;
  const bool gated = p.gated != nullptr;
  OTR_RETURN_IF_ERROR(check_linear_w4_sm90(p));
  if (p.num_rows == 0) return {};
  OTR_ASSIGN_OR_RETURN(const DeviceLimits device, device_limits_sm90());
  const LinearW4WideSm90Config c = choose_linear_w4_wide_sm90({p.num_rows, w.out_features, w.in_features, gated}, device);
  CUtensorMap x_map;
  OTR_RETURN_IF_ERROR(ptx::make_tensor_map(p.x, matrix_box(p.num_rows, w.in_features, p.x_stride, c.tile_n), &x_map));
  const KernelParams params = {{p.num_rows, w.out_features, gated ? nullptr : w.bias, gated ? nullptr : p.residual,
                                gated ? static_cast<void*>(p.gated) : p.out, gated ? p.gated_stride : p.out_stride},
                               w.packed,
                               w4_sm90_groups(w.in_features),
                               w4_sm90_blocks(w.out_features),
                               c.splits,
                               c.num_slots,
                               c.tiles_n,
                               c.tiles()};
  const Kernel kernel =
      gated ? find_kernel<LinearEpilogue::kSiluMul>(c.tile_n) : find_kernel<LinearEpilogue::kLinear>(c.tile_n);
  return launch_clusters("linear_w4", kernel, c.num_clusters, c.splits, kW4WideThreads, c.shared_bytes, stream, false, params,
                         x_map);
}

Status load_linear_w4_wide_sm90() {
  for (const int tile_n : {64, 128}) {
    OTR_RETURN_IF_ERROR(
        load_kernels("linear_w4", find_kernel<LinearEpilogue::kLinear>(tile_n), find_kernel<LinearEpilogue::kSiluMul>(tile_n)));
  }
  return {};
}

}  // namespace otr
