// attention on sm_90a: what its two kernels share, and the second of them, which merges the splits of tasks that several blocks
// have had. Device code, included by attention_sm90.cu alone, behind kernels/ptx.
#pragma once

#include "kernels/attention/attention_sm90.h"
#include "kernels/base/elementary.h"

namespace otr {
namespace {

constexpr float kMinusInf = -__builtin_inff();

struct KernelParams {
  AttentionParams p;
  RowBatch rows;
  int32_t blocks, parts, max_splits;
  float* partials;  // o of every row, head and split, then pairs: (m, l); null: every task in one block
  float2* pairs;
};

OTR_DEVICE int num_tasks_of(const KernelParams& k) {
  return (k.rows.num_bundles_at != nullptr ? *k.rows.num_bundles_at : k.rows.num_bundles) * k.p.layout.num_kv_heads;
}

// Shares of a task: as many as there are blocks for, up to k.parts. The grid of a captured launch is that of a full batch: how
// many tasks there are is read on the device, so few tasks have many blocks each there too, and many, one each, leave nothing
// to merge.
OTR_DEVICE int parts_of(const KernelParams& k, int num_tasks) { return min(k.blocks / num_tasks, k.parts); }

// ---- One split after the other ----------------------------------------------------------------------------------------------

// What a split changes of the sums so far: they times `keep`, its own times `add`.
struct MergeFactors {
  float m, keep, add;
};
OTR_DEVICE MergeFactors merge_factors(float m_before, float m_split) {
  const float m = fmaxf(m_before, m_split);
  return {m, exp32(m_before - m), exp32(m_split - m)};
}
OTR_DEVICE float merged(float before, float split, const MergeFactors& f) { return before * f.keep + split * f.add; }
// + 0: a sum of nothing but negative zeros depends on how many masked keys, worth +0, stand behind them.
OTR_DEVICE float quotient(float o, float l) { return o / l + 0.0f; }

// ---- The kernel -------------------------------------------------------------------------------------------------------------

// The splits of a row and head that come together, as a lane of merge_kernel has them.
template <int kHeadDim>
struct Splits {
  static constexpr int kCount = 4, kElements = kHeadDim / 32;
  struct alignas(kElements * 4) Elements {
    float at[kElements];
  };
  float2 pair[kCount];  // m, l
  Elements o[kCount];
};

// Where there are no more, the last one.
template <int kHeadDim>
OTR_DEVICE void load_splits(const float2* pairs, const float* partials, int first, int end, Splits<kHeadDim>* splits) {
  using S = Splits<kHeadDim>;
#pragma unroll
  for (int i = 0; i < S::kCount; ++i) {
    const int split = min(first + i, end - 1);
    splits->pair[i] = pairs[split];
    splits->o[i] = reinterpret_cast<const typename S::Elements*>(partials + split * kHeadDim)[threadIdx.x % 32];
  }
}

// A warp merges the splits of one row and head, ascending; a lane has some neighbouring elements of o. The next splits are
// asked for before those that are there are merged, so that memory is waited for once in four splits, not twice in each.
template <int kHeadDim>
__global__ void __launch_bounds__(128) merge_kernel(const __grid_constant__ KernelParams k) {
  using S = Splits<kHeadDim>;
  ptx::grid_let_next();  // o, which may fetch its weights
  const int num_tasks = num_tasks_of(k);
  if (num_tasks == 0 || parts_of(k, num_tasks) == 1) return;  // they are all done
  const int64_t item = int64_t{blockIdx.x} * 4 + threadIdx.x / 32;
  if (item >= int64_t{k.rows.num_rows} * k.p.num_heads) return;
  const int64_t row = item / k.p.num_heads, head = item % k.p.num_heads;
  const int lane = static_cast<int>(threadIdx.x) % 32, end = k.rows.positions[row] / kAttentionSplit + 1;
  const float* partials = k.partials + item * k.max_splits * kHeadDim;
  const float2* pairs = k.pairs + item * k.max_splits;
  float m = kMinusInf, l = 0.0f, total[S::kElements] = {};
  S now, next;
  load_splits(pairs, partials, 0, end, &now);
  for (int first = 0; first < end; first += S::kCount) {
    load_splits(pairs, partials, first + S::kCount, end, &next);
#pragma unroll
    for (int i = 0; i < S::kCount; ++i) {
      if (first + i >= end) break;
      const MergeFactors f = merge_factors(m, now.pair[i].x);
      m = f.m;
      l = merged(l, now.pair[i].y, f);
#pragma unroll
      for (int e = 0; e < S::kElements; ++e) total[e] = merged(total[e], now.o[i].at[e], f);
    }
    now = next;
  }
  Element* out = k.p.out + row * k.p.out_stride + head * kHeadDim + lane * S::kElements;
#pragma unroll
  for (int e = 0; e < S::kElements; ++e) out[e] = Element{static_cast<uint16_t>(ptx::pack_bf16(quotient(total[e], l), 0.0f))};
}

}  // namespace
}  // namespace otr
