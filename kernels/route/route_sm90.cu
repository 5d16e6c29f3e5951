// route, gather_experts and combine_experts, sm_90a. Formulas, shapes and layouts: route.h, expert_rows.h.
//
// route: a block a row. An expert is taken if fewer than experts_per_token come before it in the order of (logit descending,
// number ascending): every thread counts for its experts, over logits in shared memory. The sums are one thread's each, over
// experts ascending.
//
// gather: a block takes neighbouring rows, one of few, and counts for itself, over what all rows take, how often each expert is
// taken and how often by rows before its own: from that follow its rows' places, whichever block is first. The first block
// lists the tiles. What all rows take is 32 bytes a row of 8 experts, which every block reads from L2.
//
//   count all, and those before | scan over experts | places of own rows, ascending | copy
//
// combine: a block a row, a thread four elements in turn.
//
// Shared memory: route 13 KB, gather 16 KB, for the most experts there may be. Barriers: the block's, between these steps.
// Reduction order: route and combine, experts ascending; never of the number of rows.
// Roofline: gather and combine memory, num_rows * experts_per_token rows written and read once more.
#include "kernels/base/elementary.h"
#include "kernels/base/launch_status.h"
#include "kernels/route/route_sm90.h"

namespace otr {
namespace {

// ---- route ------------------------------------------------------------------------------------------------------------------

constexpr int kRouteThreads = 128;

// The taken experts, ascending, by one thread. Returns the sum of what they have.
OTR_DEVICE float list_taken(const RouteParams& p, const float* shares, const uint8_t* taken, int32_t* chosen) {
  float sum = 0.0f;
  for (int32_t e = 0, i = 0; e < p.num_experts; ++e) {
    if (taken[e] == 0) continue;
    sum += shares[e];
    chosen[i++] = e;
  }
  return sum;
}

__global__ void __launch_bounds__(kRouteThreads) route_kernel(const RouteParams p) {
  __shared__ float logits[kMostRoutedExperts], shares[kMostRoutedExperts];
  __shared__ uint8_t taken[kMostRoutedExperts];
  __shared__ int32_t chosen[kMostRoutedExperts];
  __shared__ float max, sum_of_all, sum_of_taken;
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t row = blockIdx.x;
  int ordered = 1;
  for (int32_t e = thread; e < p.num_experts; e += kRouteThreads) {
    const float logit = p.logits[row * p.num_experts + e];
    logits[e] = logit;
    ordered &= logit == logit ? 1 : 0;
  }
  if (thread == 0) max = p.logits[row * p.num_experts];  // what stays of it where a logit is NaN: all weights are then
  ordered = __syncthreads_and(ordered);
  for (int32_t e = thread; e < p.num_experts; e += kRouteThreads) {
    int32_t before = 0;
    for (int32_t other = 0; other < p.num_experts; ++other)
      before += logits[other] > logits[e] || (logits[other] == logits[e] && other < e) ? 1 : 0;
    if (ordered != 0 && before == 0) max = logits[e];
    taken[e] = (ordered != 0 ? before : e) < p.experts_per_token ? 1 : 0;
  }
  __syncthreads();
  for (int32_t e = thread; e < p.num_experts; e += kRouteThreads) shares[e] = exp32(logits[e] - max);
  __syncthreads();
  if (thread == 0) {
    float all = 0.0f;
    for (int32_t e = 0; e < p.num_experts; ++e) all += shares[e];
    sum_of_all = all;
  } else if (thread == 32) {
    sum_of_taken = list_taken(p, shares, taken, chosen);
  }
  __syncthreads();
  const float sum = p.normalised && ordered != 0 ? sum_of_taken : sum_of_all;
  for (int32_t i = thread; i < p.experts_per_token; i += kRouteThreads) {
    p.experts[row * p.experts_per_token + i] = chosen[i];
    p.weights[row * p.experts_per_token + i] = shares[chosen[i]] / sum;
  }
}

// ---- gather -----------------------------------------------------------------------------------------------------------------

constexpr int kGatherThreads = 256, kGatherBlocks = 264;  // two a multiprocessor of an H100
constexpr int kScanned = kMostRoutedExperts / kGatherThreads;

OTR_DEVICE int32_t rows_there(int32_t num_rows, const int32_t* num_rows_at) {
  return num_rows_at != nullptr ? smaller_of(num_rows, *num_rows_at) : num_rows;
}

// sums[e] = count(0) + … + count(e - 1). Returns the sum of all. By the whole block, kScanned experts a thread.
template <typename Count>
OTR_DEVICE int32_t scan_experts(int32_t num_experts, const Count& count, int32_t* sums, int32_t* warp_sums) {
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  int32_t mine = 0;
  for (int32_t e = thread * kScanned; e < (thread + 1) * kScanned && e < num_experts; ++e) mine += count(e);
  int32_t upto = mine;  // of this lane and those below
  for (int distance = 1; distance < 32; distance *= 2) {
    const int32_t below = __shfl_up_sync(0xffffffffu, upto, static_cast<unsigned>(distance));
    if (lane >= distance) upto += below;
  }
  if (lane == 31) warp_sums[thread / 32] = upto;
  __syncthreads();
  int32_t all = 0, at = upto - mine;
  for (int warp = 0; warp < kGatherThreads / 32; ++warp) {
    if (warp == thread / 32) at += all;
    all += warp_sums[warp];
  }
  for (int32_t e = thread * kScanned; e < (thread + 1) * kScanned && e < num_experts; ++e) {
    sums[e] = at;
    at += count(e);
  }
  __syncthreads();
  return all;
}

// Where expert e's rows begin: begins[e].
OTR_DEVICE void list_tiles(const GatherExpertsParams& p, const uint32_t* counts, const int32_t* begins, int32_t* first_tiles,
                           int32_t* warp_sums) {
  const auto tiles_of = [&](int32_t e) {
    return (static_cast<int32_t>(counts[e]) + p.tiles.tile_rows - 1) / p.tiles.tile_rows;
  };
  const int32_t all = scan_experts(p.num_experts, tiles_of, first_tiles, warp_sums);
  if (threadIdx.x == 0) *p.tiles.count = all;
  for (int32_t e = static_cast<int32_t>(threadIdx.x); e < p.num_experts; e += kGatherThreads) {
    const int32_t end = begins[e] + static_cast<int32_t>(counts[e]);
    for (int32_t i = 0; i < tiles_of(e); ++i) {
      const int32_t first = begins[e] + i * p.tiles.tile_rows;
      p.tiles.list[first_tiles[e] + i] = {e, first, smaller_of(first + p.tiles.tile_rows, end)};
    }
  }
}

__global__ void __launch_bounds__(kGatherThreads) gather_kernel(const GatherExpertsParams p, int32_t rows_of_block) {
  __shared__ uint32_t counts[kMostRoutedExperts], counts_before[kMostRoutedExperts];
  __shared__ int32_t begins[kMostRoutedExperts], first_tiles[kMostRoutedExperts], warp_sums[kGatherThreads / 32];
  const int thread = static_cast<int>(threadIdx.x);
  const int32_t num_rows = rows_there(p.num_rows, p.num_rows_at);
  const int32_t first = smaller_of(static_cast<int32_t>(blockIdx.x) * rows_of_block, num_rows);
  const int32_t end = smaller_of(first + rows_of_block, num_rows);
  for (int32_t e = thread; e < p.num_experts; e += kGatherThreads) counts[e] = 0, counts_before[e] = 0;
  __syncthreads();
  for (int32_t i = thread; i < num_rows * p.experts_per_token; i += kGatherThreads) {
    const int32_t e = p.experts[i];
    atomicAdd(&counts[e], 1u);
    if (i < first * p.experts_per_token) atomicAdd(&counts_before[e], 1u);
  }
  __syncthreads();
  scan_experts(
      p.num_experts, [&](int32_t e) { return static_cast<int32_t>(counts[e]); }, begins, warp_sums);
  if (blockIdx.x == 0) list_tiles(p, counts, begins, first_tiles, warp_sums);

  // A row takes an expert once, so that a warp's lanes count different ones.
  for (int32_t row = first; thread < 32 && row < end; ++row) {
    for (int32_t i = thread; i < p.experts_per_token; i += 32) {
      const int64_t at = int64_t{row} * p.experts_per_token + i;
      const int32_t e = p.experts[at];
      p.places[at] = begins[e] + static_cast<int32_t>(counts_before[e]++);
    }
    __syncwarp();
  }
  __syncthreads();
  const int32_t pieces = p.row_size / 8;  // of 16 bytes
  for (int64_t row = first; row < end; ++row) {
    const int32_t* places = p.places + row * p.experts_per_token;
    for (int32_t i = thread; i < pieces; i += kGatherThreads) {
      const uint4 piece = reinterpret_cast<const uint4*>(p.x + row * p.x_stride)[i];
      for (int32_t n = 0; n < p.experts_per_token; ++n)
        reinterpret_cast<uint4*>(p.gathered + places[n] * p.gathered_stride)[i] = piece;
    }
  }
}

// ---- combine ----------------------------------------------------------------------------------------------------------------

constexpr int kCombineThreads = 256;

__global__ void __launch_bounds__(kCombineThreads) combine_kernel(const CombineExpertsParams p) {
  const int64_t row = blockIdx.x;
  if (row >= rows_there(p.num_rows, p.num_rows_at)) return;
  const int32_t* places = p.places + row * p.experts_per_token;
  const float* weights = p.weights + row * p.experts_per_token;
  float* residual = p.residual + row * p.hidden_size;
  for (int32_t d = static_cast<int32_t>(threadIdx.x) * 4; d < p.hidden_size; d += kCombineThreads * 4) {
    float4 sum = *reinterpret_cast<const float4*>(residual + d);
    for (int32_t i = 0; i < p.experts_per_token; ++i) {
      const float4 made = *reinterpret_cast<const float4*>(p.made + int64_t{places[i]} * p.hidden_size + d);
      sum.x += weights[i] * made.x;
      sum.y += weights[i] * made.y;
      sum.z += weights[i] * made.z;
      sum.w += weights[i] * made.w;
    }
    *reinterpret_cast<float4*>(residual + d) = sum;
  }
}

Status check_experts(int32_t num_experts) {
  if (num_experts <= kMostRoutedExperts) return {};
  return unsupported("route: more than " + std::to_string(kMostRoutedExperts) + " experts");
}

}  // namespace

Status route_sm90(const RouteParams& p, cudaStream_t stream) {
  OTR_RETURN_IF_ERROR(check_experts(p.num_experts));
  if (p.num_rows == 0) return {};
  route_kernel<<<static_cast<unsigned>(p.num_rows), kRouteThreads, 0, stream>>>(p);
  return launch_status("route");
}

Status gather_experts_sm90(const GatherExpertsParams& p, cudaStream_t stream) {
  OTR_RETURN_IF_ERROR(check_experts(p.num_experts));
  if (p.num_rows == 0) return {};
  const int32_t rows_of_block = divide_up(p.num_rows, kGatherBlocks);
  gather_kernel<<<static_cast<unsigned>(divide_up(p.num_rows, rows_of_block)), kGatherThreads, 0, stream>>>(p, rows_of_block);
  return launch_status("gather_experts");
}

Status combine_experts_sm90(const CombineExpertsParams& p, cudaStream_t stream) {
  if (p.num_rows == 0) return {};
  combine_kernel<<<static_cast<unsigned>(p.num_rows), kCombineThreads, 0, stream>>>(p);
  return launch_status("combine_experts");
}

Status load_route_sm90() { return load_kernels("route", route_kernel, gather_kernel, combine_kernel); }

}  // namespace otr
