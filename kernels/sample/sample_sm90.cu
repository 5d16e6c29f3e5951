// sample, sm_90a: argmax_v (logit_v / T + G_v) behind penalties and filters, and both log-probs.
//
// Shapes and orders of sums: sample.h; scan, sums and filters: sample_block_sm90.h. Three launches:
//   scan    a block for each 4,096 tokens of a draw: penalties, temperature, maxima, finiteness
//   weigh   the same blocks: sums of exponentials, scores with noise, the best of them
//   finish  a block for each draw: the blocks' sums and bests put together, ascending; filters, if there are any
//
// Roofline: memory; the logits twice, the second time mostly from L2 (64 x 151,936 floats are 39 MB of 50).
#include "kernels/base/launch_status.h"
#include "kernels/sample/sample_block_sm90.h"

namespace otr {
namespace {

// ---- weigh ------------------------------------------------------------------------------------------------------------------

__global__ void __launch_bounds__(kThreads) weigh_kernel(const SampleParams p, const SampleWorkspaceSm90 workspace) {
  __shared__ float weights[kSampleSumBlock];
  __shared__ ScoredToken bests[kThreads / 32];
  const int draw = static_cast<int>(blockIdx.y);
  const int32_t n = p.vocab_size;
  const SampleDraw& d = p.draws[draw];
  const Row row = row_of(p, d, draw);
  SampleChunk* chunks = workspace.chunks + int64_t{draw} * gridDim.x;
  const RowMaxima maxima = row_maxima(chunks, static_cast<int32_t>(gridDim.x));
  if (!maxima.finite) return;
  const int32_t begin = static_cast<int32_t>(blockIdx.x) * kSampleSumBlock, end = min(begin + kSampleSumBlock, n);

  const double raw_sum = chunk_sum(row.logits, maxima.raw, begin, end, weights);
  const double sum = is_scaled(d) && d.temperature != 0.0f ? chunk_sum(row.x, maxima.x, begin, end, weights) : raw_sum;

  ScoredToken best = {kMinusInf, kNoToken};
  const bool noisy = d.temperature != 0.0f, wanted = !noisy || (d.forced_token < 0 && !is_filtered(d, n));
  for (int32_t v = begin + static_cast<int32_t>(threadIdx.x) * 4; wanted && v < end; v += kThreads * 4) {
    PhiloxBlock words = {};
    if (noisy) words = noise_words(d.noise, static_cast<uint32_t>(v) / 4, static_cast<uint32_t>(d.position));
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) {
      if (v + i < end)
        best = better(best, ScoredToken{noisy ? row.x[v + i] + gumbel_from_word(words.w[i]) : row.x[v + i], v + i});
    }
  }
  best = block_reduce<kThreads>(best, bests, better);
  if (threadIdx.x != 0) return;
  SampleChunk& chunk = chunks[blockIdx.x];
  chunk.raw_sum = raw_sum;
  chunk.sum = sum;
  chunk.best_score = best.score;
  chunk.best_id = best.id;
}

// ---- finish -----------------------------------------------------------------------------------------------------------------

// Token and log-prob among the survivors.
OTR_DEVICE void draw_among(const SampleDraw& d, const float* x, float max, int32_t count, const int32_t* order,
                           FilterShared* shared, SampleResult* result) {
  double total;
  add_down(x, max, __builtin_inf(), count, order, shared, &total);
  ScoredToken best = {kMinusInf, kNoToken};
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < count; i += kFinishThreads) {
    const int32_t v = order[i];
    if (d.forced_token < 0)
      best = better(best, ScoredToken{x[v] + gumbel(d.noise, static_cast<uint32_t>(v), static_cast<uint32_t>(d.position)), v});
    else if (v == d.forced_token) best = ScoredToken{0.0f, v};
  }
  best = block_reduce<kFinishThreads>(best, shared->bests, better);
  const bool found = best.id != kNoToken;
  result->token = d.forced_token >= 0 ? d.forced_token : best.id;
  result->logprob = found ? (x[best.id] - max) - log32(static_cast<float>(total)) : kMinusInf;
}

__global__ void __launch_bounds__(kFinishThreads) finish_kernel(const SampleParams p, const SampleWorkspaceSm90 workspace) {
  extern __shared__ __align__(16) uint8_t raw[];
  auto* shared = reinterpret_cast<FilterShared*>(raw);
  const int draw = static_cast<int>(blockIdx.x);
  const int32_t n = p.vocab_size, num_chunks = sample_num_chunks(n);
  const SampleDraw& d = p.draws[draw];
  const Row row = row_of(p, d, draw);
  const SampleChunk* chunks = workspace.chunks + int64_t{draw} * num_chunks;
  const RowMaxima maxima = row_maxima(chunks, num_chunks);
  SampleResult result = {d.forced_token, 0.0f, 0.0f, maxima.finite ? 0 : 1};
  if (maxima.finite) {
    double raw_sum = 0.0, sum = 0.0;
    ScoredToken best = {kMinusInf, kNoToken};
    for (int32_t i = 0; i < num_chunks; ++i) {
      raw_sum += chunks[i].raw_sum;
      sum += chunks[i].sum;
      best = better(best, ScoredToken{chunks[i].best_score, chunks[i].best_id});
    }
    if (d.temperature == 0.0f) {
      if (d.forced_token < 0) result.token = best.id;
      result.logprob = result.token == best.id ? 0.0f : kMinusInf;
    } else if (sample_has_filter(d, n)) {
      const int64_t offset = draw * sample_workspace_stride(n);
      int32_t *order = p.order + offset, *spare = workspace.spare + offset;
      const int32_t count = survivors(d, row.x, maxima.x, sum, n, order, spare, shared);
      draw_among(d, row.x, maxima.x, count, order, shared, &result);
    } else {
      if (d.forced_token < 0) result.token = best.id;
      result.logprob = (row.x[result.token] - maxima.x) - log32(static_cast<float>(sum));
    }
    result.raw_logprob = (row.logits[result.token] - maxima.raw) - log32(static_cast<float>(raw_sum));
  }
  if (threadIdx.x == 0) p.results[draw] = result;
}

}  // namespace

Status sample_sm90(const SampleParams& p, const SampleWorkspaceSm90& workspace, cudaStream_t stream) {
  if (p.num_draws == 0) return {};
  const dim3 chunks(static_cast<unsigned>(sample_num_chunks(p.vocab_size)), static_cast<unsigned>(p.num_draws));
  constexpr int kBytes = static_cast<int>(sizeof(FilterShared));
  OTR_RETURN_IF_ERROR(allow_shared_memory("sample", finish_kernel, kBytes));
  scan_kernel<SampleParams><<<chunks, kThreads, 0, stream>>>(p, workspace.chunks);
  OTR_RETURN_IF_ERROR(launch_status("sample"));
  weigh_kernel<<<chunks, kThreads, 0, stream>>>(p, workspace);
  OTR_RETURN_IF_ERROR(launch_status("sample"));
  finish_kernel<<<static_cast<unsigned>(p.num_draws), kFinishThreads, kBytes, stream>>>(p, workspace);
  return launch_status("sample");
}

Status load_sample_sm90() { return load_kernels("sample", scan_kernel<SampleParams>, weigh_kernel, finish_kernel); }

}  // namespace otr
