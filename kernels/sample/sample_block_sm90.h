// What sample and candidates share on sm_90a: reductions over a block, the scan of a draw's logits, sums of exponentials and
// the filters. Device code, included by their .cu files alone.
//
// Sums: the weights of 4,096 tokens are computed side by side into shared memory and added by 16 threads, each the chain that
// the definition calls a lane. Sums down the total order are float64 chains of one thread, over weights computed 1,024 at a
// time.
//
// Filters: candidates for top-k are those whose key is not below the k-th's upper 12 bits (a histogram), for top-p and min-p
// those of weight above what can matter; they are collected by ascending id and sorted by a stable radix sort of 4 bits a pass,
// so that ties go to the lower id.
#pragma once

#include "kernels/base/elementary.h"
#include "kernels/sample/sample_filter.h"
#include "kernels/sample/sample_sm90.h"

namespace otr {
namespace {

constexpr int kThreads = 256, kFinishThreads = 1024;
constexpr int kDigits = 16, kKeyBits = 12, kBins = 1 << kKeyBits;
constexpr float kMinusInf = -__builtin_inff();

// ---- Reductions over a block ------------------------------------------------------------------------------------------------

// The greater score; of equal ones the lower id.
OTR_DEVICE ScoredToken better(const ScoredToken& a, const ScoredToken& b) {
  return b.score > a.score || (b.score == a.score && b.id < a.id) ? b : a;
}

// combine over all threads' values, known to all of them. `shared` [kThreadCount / 32].
template <int kThreadCount, typename T, typename Combine>
OTR_DEVICE T block_reduce(T value, T* shared, const Combine& combine) {
  for (int distance = 16; distance > 0; distance /= 2) {
    T other;
    for (size_t i = 0; i < sizeof(T) / 4; ++i) {
      reinterpret_cast<uint32_t*>(&other)[i] =
          __shfl_xor_sync(0xffffffffu, reinterpret_cast<const uint32_t*>(&value)[i], distance);
    }
    value = combine(value, other);
  }
  __syncthreads();  // an earlier use of `shared` is over
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = value;
  __syncthreads();
  value = shared[0];
  for (int warp = 1; warp < kThreadCount / 32; ++warp) value = combine(value, shared[warp]);
  return value;
}

// The sum of the values of the threads before this one; *total: of all. `shared` [33].
OTR_DEVICE int32_t block_scan(int32_t value, int32_t* shared, int32_t* total) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  int32_t inclusive = value;
  for (int distance = 1; distance < 32; distance *= 2) {
    const int32_t other = __shfl_up_sync(0xffffffffu, inclusive, distance);
    if (lane >= distance) inclusive += other;
  }
  __syncthreads();
  if (lane == 31) shared[warp] = inclusive;
  __syncthreads();
  int32_t before = 0, all = 0;
  for (int i = 0; i < kFinishThreads / 32; ++i) {
    before += i < warp ? shared[i] : 0;
    all += shared[i];
  }
  *total = all;
  return before + inclusive - value;
}

// ---- What every launch asks of a draw ---------------------------------------------------------------------------------------

OTR_DEVICE const SampleDraw& draw_of(const SampleParams& p, int draw) { return p.draws[draw]; }
OTR_DEVICE const SampleDraw& draw_of(const CandidateParams& p, int draw) { return p.draws[draw].draw; }

OTR_DEVICE bool has_temperature(const SampleDraw& d) { return d.temperature != 0.0f && d.temperature != 1.0f; }
OTR_DEVICE bool is_scaled(const SampleDraw& d) { return sample_has_penalty(d) || has_temperature(d); }
OTR_DEVICE bool is_filtered(const SampleDraw& d, int32_t n) { return d.temperature != 0.0f && sample_has_filter(d, n); }

struct Row {
  const float* logits;
  float* scaled;
  const float* x;  // what is drawn from: one of the two
};
template <typename Params>
OTR_DEVICE Row row_of(const Params& p, const SampleDraw& d, int draw) {
  const float* logits = p.logits + d.logits_row * p.logits_stride;
  float* scaled = p.scaled + draw * sample_workspace_stride(p.vocab_size);
  return {logits, scaled, is_scaled(d) ? scaled : logits};
}

struct RowMaxima {
  float raw, x;
  bool finite;
};
OTR_DEVICE RowMaxima row_maxima(const SampleChunk* chunks, int32_t num_chunks) {
  RowMaxima m = {chunks[0].raw_max, chunks[0].max, true};
  for (int32_t i = 0; i < num_chunks; ++i) {
    m.raw = fmaxf(m.raw, chunks[i].raw_max);
    m.x = fmaxf(m.x, chunks[i].max);
    m.finite = m.finite && chunks[i].raw_finite != 0 && chunks[i].finite != 0;
  }
  m.raw += 0.0f;  // -0 + 0 = +0, as in the definition
  m.x += 0.0f;
  return m;
}

// ---- scan: a block for each 4,096 tokens of a draw --------------------------------------------------------------------

// Maximum and finiteness of x over [begin, end): NaN and Inf make `finite` 0.
OTR_DEVICE void chunk_max(const float* x, int32_t begin, int32_t end, float* shared, float* max, int32_t* finite) {
  float m = kMinusInf;
  int all_finite = 1;
  for (int32_t v = begin + static_cast<int32_t>(threadIdx.x); v < end; v += kThreads) {
    m = fmaxf(m, x[v]);
    all_finite &= is_finite_bits(x[v]) ? 1 : 0;
  }
  *max = block_reduce<kThreads>(m, shared, [](float a, float b) { return fmaxf(a, b); });
  *finite = __syncthreads_and(all_finite) != 0 ? 1 : 0;
}

template <typename Params>
__global__ void __launch_bounds__(kThreads) scan_kernel(const Params p, SampleChunk* chunks) {
  __shared__ float shared[kThreads / 32];
  const int draw = static_cast<int>(blockIdx.y);
  const SampleDraw& d = draw_of(p, draw);
  const Row row = row_of(p, d, draw);
  const int32_t begin = static_cast<int32_t>(blockIdx.x) * kSampleSumBlock, end = min(begin + kSampleSumBlock, p.vocab_size);
  if (is_scaled(d)) {
    const float divisor = has_temperature(d) ? d.temperature : 1.0f;  // x / 1 = x
    for (int32_t v = begin + static_cast<int32_t>(threadIdx.x); v < end; v += kThreads) row.scaled[v] = row.logits[v] / divisor;
    __syncthreads();
    for (int32_t i = static_cast<int32_t>(threadIdx.x); sample_has_penalty(d) && i < d.num_penalties; i += kThreads) {
      const PenaltyEntry e = d.penalties[i];
      if (e.token >= begin && e.token < end) row.scaled[e.token] = sample_penalised(d, e, row.logits[e.token]) / divisor;
    }
    __syncthreads();
  }
  SampleChunk chunk = {};
  chunk_max(row.logits, begin, end, shared, &chunk.raw_max, &chunk.raw_finite);
  chunk.max = chunk.raw_max;
  chunk.finite = chunk.raw_finite;
  if (is_scaled(d)) chunk_max(row.scaled, begin, end, shared, &chunk.max, &chunk.finite);
  if (threadIdx.x == 0) chunks[draw * gridDim.x + blockIdx.x] = chunk;
}

// ---- Sums -------------------------------------------------------------------------------------------------------------

// sum of exp(x_v - max) over one block of the definition; thread 0 gets it.
OTR_DEVICE double chunk_sum(const float* x, float max, int32_t begin, int32_t end, float* weights) {
  constexpr int kLanes = 16;
  __syncthreads();
  for (int32_t v = begin + static_cast<int32_t>(threadIdx.x); v < end; v += kThreads) weights[v - begin] = exp32(x[v] - max);
  __syncthreads();
  float lane = 0.0f;
  if (threadIdx.x < kLanes) {
    for (int32_t i = static_cast<int32_t>(threadIdx.x); i < end - begin; i += kLanes) lane += weights[i];
  }
  if (threadIdx.x < 32) {
    for (int width = kLanes / 2; width > 0; width /= 2)
      lane += __shfl_down_sync(0xffffffffu, lane, static_cast<unsigned>(width));
  }
  return static_cast<double>(lane);
}

// ---- Filters ----------------------------------------------------------------------------------------------------------

struct FilterShared {
  uint32_t counts[kDigits * kFinishThreads];  // also the histogram of keys
  double total;
  double weights[kFinishThreads];
  int32_t scan[33];
  int32_t count;
  ScoredToken bests[kFinishThreads / 32];
  int32_t lasts[kFinishThreads / 32];
};
static_assert(kBins <= kDigits * kFinishThreads);

// Ascending keys are descending logits; -0 is +0.
OTR_DEVICE uint32_t key_of(float x) {
  const uint32_t bits = bits_from_float(x + 0.0f);
  return (bits & 0x80000000u) != 0 ? bits : ~(bits | 0x80000000u);
}

// The first and one behind the last of `count` items that a thread takes.
OTR_DEVICE void share_of(int32_t count, int32_t* begin, int32_t* end) {
  const int32_t each = (count + kFinishThreads - 1) / kFinishThreads;
  *begin = min(count, static_cast<int32_t>(threadIdx.x) * each);
  *end = min(count, *begin + each);
}

// Ids with key <= edge, ascending, to `order`; how many.
OTR_DEVICE int32_t collect(const float* x, uint32_t edge, int32_t n, int32_t* order, FilterShared* shared) {
  int32_t begin, end, count = 0, total;
  share_of(n, &begin, &end);
  for (int32_t v = begin; v < end; ++v) count += key_of(x[v]) <= edge ? 1 : 0;
  int32_t at = block_scan(count, shared->scan, &total);
  for (int32_t v = begin; v < end; ++v) {
    if (key_of(x[v]) <= edge) order[at++] = v;
  }
  __syncthreads();
  return total;
}

// Sorts order [count] by key, keeping the order of equal keys. Four bits a pass, eight passes: the result is in `order` again.
OTR_DEVICE void sort_by_key(const float* x, int32_t count, int32_t* order, int32_t* spare, FilterShared* shared) {
  int32_t begin, end, total;
  share_of(count, &begin, &end);
  const int thread = static_cast<int>(threadIdx.x);
  for (int shift = 0; shift < 32; shift += 4) {
    const int32_t* from = shift % 8 == 0 ? order : spare;
    int32_t* to = shift % 8 == 0 ? spare : order;
    for (int digit = 0; digit < kDigits; ++digit) shared->counts[digit * kFinishThreads + thread] = 0;
    for (int32_t i = begin; i < end; ++i)
      ++shared->counts[(key_of(x[from[i]]) >> shift & 15) * kFinishThreads + static_cast<uint32_t>(thread)];
    __syncthreads();
    // Places: digits ascending, and threads ascending inside one. A thread scans kDigits neighbours of that sequence.
    uint32_t* mine = shared->counts + thread * kDigits;
    int32_t sum = 0;
    for (int i = 0; i < kDigits; ++i) sum += static_cast<int32_t>(mine[i]);
    int32_t place = block_scan(sum, shared->scan, &total);
    for (int i = 0; i < kDigits; ++i) {
      const int32_t size = static_cast<int32_t>(mine[i]);
      mine[i] = static_cast<uint32_t>(place);
      place += size;
    }
    __syncthreads();
    for (int32_t i = begin; i < end; ++i) {
      to[shared->counts[(key_of(x[from[i]]) >> shift & 15) * kFinishThreads + static_cast<uint32_t>(thread)]++] = from[i];
    }
    __syncthreads();
  }
}

// Adds weights down the order until they reach `threshold`: how many that took, or 0; *sum: what was added. All threads get
// both.
OTR_DEVICE int32_t add_down(const float* x, float max, double threshold, int32_t count, const int32_t* order,
                            FilterShared* shared, double* sum) {
  __syncthreads();  // the results of an earlier call have been read
  if (threadIdx.x == 0) shared->total = 0.0, shared->count = 0;
  for (int32_t begin = 0; begin < count; begin += kFinishThreads) {
    const int32_t i = begin + static_cast<int32_t>(threadIdx.x), size = min(kFinishThreads, count - begin);
    __syncthreads();
    if (i < count) shared->weights[threadIdx.x] = static_cast<double>(exp32(x[order[i]] - max));
    __syncthreads();
    if (threadIdx.x == 0) {
      double total = shared->total;
      for (int32_t j = 0; j < size && shared->count == 0; ++j) {
        total += shared->weights[j];
        if (total >= threshold) shared->count = begin + j + 1;
      }
      shared->total = total;
    }
    __syncthreads();
    if (shared->count != 0) break;
  }
  __syncthreads();
  *sum = shared->total;
  return shared->count;
}

// The last 12 bits of keys that the k-th best may have: all keys up to there are at least k.
OTR_DEVICE uint32_t edge_of_best(const float* x, int32_t k, int32_t n, FilterShared* shared) {
  for (int i = static_cast<int>(threadIdx.x); i < kBins; i += kFinishThreads) shared->counts[i] = 0;
  __syncthreads();
  for (int32_t v = static_cast<int32_t>(threadIdx.x); v < n; v += kFinishThreads)
    atomicAdd(&shared->counts[key_of(x[v]) >> (32 - kKeyBits)], 1u);
  __syncthreads();
  if (threadIdx.x == 0) {
    int32_t bin = 0, below = static_cast<int32_t>(shared->counts[0]);
    while (below < k) below += static_cast<int32_t>(shared->counts[++bin]);
    shared->count = bin;
  }
  __syncthreads();
  const uint32_t bin = static_cast<uint32_t>(shared->count);
  __syncthreads();
  return (bin << (32 - kKeyBits)) | ((1u << (32 - kKeyBits)) - 1);
}

// The definition's survivors, in the total order, in `order`; how many.
OTR_DEVICE int32_t survivors(const SampleDraw& d, const float* x, float max, double sum, int32_t n, int32_t* order,
                             int32_t* spare, FilterShared* shared) {
  constexpr uint32_t kAll = 0xffffffffu;
  const bool top_k = d.top_k > 0 && d.top_k < n, top_p = d.top_p < 1.0f;
  double total;
  uint32_t edge = kAll;
  if (top_k) {
    edge = edge_of_best(x, d.top_k, n, shared);
  } else if (top_p) {  // lighter tokens together weigh less than what top-p leaves out; 0.01 for the roundings
    edge = key_of(max + (log32(static_cast<float>((1.0 - static_cast<double>(d.top_p)) * sum / n)) - 0.01f));
  } else if (d.min_p >= 1e-37f) {  // else every weight that is not zero may be kept
    edge = key_of(max + (log32(fminf(d.min_p, 1.0f)) - 0.01f));
  }
  int32_t count = collect(x, edge, n, order, shared);
  sort_by_key(x, count, order, spare, shared);
  if (top_k) count = d.top_k;
  if (top_p) {
    if (top_k) {
      add_down(x, max, __builtin_inf(), count, order, shared, &total);
      count = add_down(x, max, static_cast<double>(d.top_p) * total, count, order, shared, &total);
    } else {
      const double threshold = static_cast<double>(d.top_p) * sum;
      int32_t kept = add_down(x, max, threshold, count, order, shared, &total);
      if (kept == 0) {  // p next to 1: what was left out counts after all
        count = collect(x, kAll, n, order, shared);
        sort_by_key(x, count, order, spare, shared);
        kept = add_down(x, max, threshold, count, order, shared, &total);
      }
      count = kept > 0 ? kept : n;
    }
  }
  if (d.min_p > 0.0f) {  // up to the last that is heavy enough; the first always stays
    int32_t last = 0;
    for (int32_t i = static_cast<int32_t>(threadIdx.x); i < count; i += kFinishThreads) {
      if (!(exp32(x[order[i]] - max) < d.min_p)) last = i;
    }
    count = 1 + block_reduce<kFinishThreads>(last, shared->lasts, [](int32_t a, int32_t b) { return a > b ? a : b; });
  }
  return count;
}

}  // namespace
}  // namespace otr
