// candidates, sm_90a: the m best tokens by logit / T + G behind penalties and filters, with their shares softmax(s / beta).
//
// Shapes: sample.h; scan, sums and filters: sample_block_sm90.h. Three launches:
//   scan    as sample's: a block for each 4,096 tokens of a draw
//   list    the same blocks: scores with noise, 16 a thread; the m best, by m rounds that each look for the best after the last
//   finish  a block for each draw: the m best of the lists, or of the filters' survivors, and their shares
//
// Sums: exponentials relative to the list's own best, by threads and then by halves of their distance; the lists' ascending,
// scaled to the row's best. Candidates decide no result, so no order is owed to the other paths.
//
// Roofline: memory; the logits twice, the second time mostly from L2. A Philox block for 4 tokens.
#include "kernels/base/launch_status.h"
#include "kernels/sample/sample_block_sm90.h"

namespace otr {
namespace {

constexpr int kScores = kSampleSumBlock / kThreads;  // of a thread
constexpr ScoredToken kBeforeAll = {__builtin_inff(), -1}, kNone = {kMinusInf, kNoToken};

OTR_DEVICE bool comes_after(const ScoredToken& a, const ScoredToken& b) {
  return a.score < b.score || (a.score == b.score && a.id > b.id);
}
OTR_DEVICE float add(float a, float b) { return a + b; }

struct ListShared {
  float weights[kSampleSumBlock];
  ScoredToken bests[kThreads / 32];
  float sums[kThreads / 32];
};

__global__ void __launch_bounds__(kThreads) list_kernel(const CandidateParams p, const CandidateWorkspace workspace) {
  __shared__ ListShared shared;
  const int draw = static_cast<int>(blockIdx.y), thread = static_cast<int>(threadIdx.x);
  const int32_t n = p.vocab_size;
  const CandidateDraw& c = p.draws[draw];
  const SampleDraw& d = c.draw;
  const Row row = row_of(p, d, draw);
  SampleChunk* chunks = workspace.chunks + int64_t{draw} * gridDim.x;
  const RowMaxima maxima = row_maxima(chunks, static_cast<int32_t>(gridDim.x));
  if (!maxima.finite) return;
  const int32_t begin = static_cast<int32_t>(blockIdx.x) * kSampleSumBlock, end = min(begin + kSampleSumBlock, n);
  if (is_filtered(d, n)) {  // candidates are among the survivors, which top-p counts by this sum
    const double sum = sample_needs_sum(d, n) ? chunk_sum(row.x, maxima.x, begin, end, shared.weights) : 0.0;
    if (thread == 0) chunks[blockIdx.x].sum = sum;
    return;
  }

  // Scores 4 j … 4 j + 3: tokens begin + 1024 j + 4 thread and the next three.
  float s[kScores];
  const bool noisy = d.temperature != 0.0f && !c.without_noise;
#pragma unroll
  for (int j = 0; j < kScores / 4; ++j) {
    const int32_t v = begin + (j * kThreads + thread) * 4;
    PhiloxBlock words = {};
    if (noisy && v < end) words = noise_words(d.noise, static_cast<uint32_t>(v) / 4, static_cast<uint32_t>(d.position));
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      s[4 * j + i] = v + i >= end ? kMinusInf : noisy ? row.x[v + i] + gumbel_from_word(words.w[i]) : row.x[v + i];
    }
  }
  CandidateList& list = workspace.lists[int64_t{draw} * gridDim.x + blockIdx.x];
  ScoredToken last = kBeforeAll;
  float top = 0.0f;
  for (int round = 0; round < p.m; ++round) {
    ScoredToken best = kNone;
#pragma unroll
    for (int j = 0; j < kScores; ++j) {
      const ScoredToken t = {s[j], begin + (j / 4 * kThreads + thread) * 4 + j % 4};
      if (t.id < end && comes_after(t, last)) best = better(best, t);
    }
    last = block_reduce<kThreads>(best, shared.bests, better);
    top = round == 0 ? last.score : top;
    if (thread == 0) list.best[round] = last;
  }
  float total = 0.0f, mean = 0.0f;
#pragma unroll
  for (int j = 0; j < kScores; ++j) {
    if (s[j] == kMinusInf) continue;  // no token
    const float w = exp32((s[j] - top) * c.inv_beta);
    total += w;
    mean += w * (s[j] - top);
  }
  total = block_reduce<kThreads>(total, shared.sums, add);
  mean = block_reduce<kThreads>(mean, shared.sums, add);
  if (thread == 0) list.total = total, list.mean = mean;
}

struct FinishShared {
  FilterShared filter;
  ScoredToken best[kMaxCandidates];
  float sums[kFinishThreads / 32];
};

// The m best of `count` scores, best first, in shared->best; how many there are.
template <typename Score>
OTR_DEVICE int32_t take_best(int32_t count, int32_t m, FinishShared* shared, const Score& score) {
  ScoredToken last = kBeforeAll;
  int32_t taken = 0;
  for (; taken < m; ++taken) {
    ScoredToken best = kNone;
    for (int32_t i = static_cast<int32_t>(threadIdx.x); i < count; i += kFinishThreads) {
      const ScoredToken t = score(i);
      if (comes_after(t, last)) best = better(best, t);
    }
    last = block_reduce<kFinishThreads>(best, shared->filter.bests, better);
    if (last.id == kNoToken) break;
    if (threadIdx.x == 0) shared->best[taken] = last;
  }
  __syncthreads();
  return taken;
}

__global__ void __launch_bounds__(kFinishThreads)
    finish_candidates_kernel(const CandidateParams p, const CandidateWorkspace workspace) {
  extern __shared__ __align__(16) uint8_t raw[];
  auto* shared = reinterpret_cast<FinishShared*>(raw);
  const int draw = static_cast<int>(blockIdx.x), thread = static_cast<int>(threadIdx.x);
  const int32_t n = p.vocab_size, num_chunks = sample_num_chunks(n);
  const CandidateDraw& c = p.draws[draw];
  const SampleDraw& d = c.draw;
  const Row row = row_of(p, d, draw);
  const SampleChunk* chunks = workspace.chunks + int64_t{draw} * num_chunks;
  const RowMaxima maxima = row_maxima(chunks, num_chunks);
  Candidates& result = p.results[draw];
  if (!maxima.finite) {
    if (thread == 0) result.count = 0;
    return;
  }
  const bool noisy = d.temperature != 0.0f && !c.without_noise;
  int32_t count;
  float total = 0.0f, mean = 0.0f;
  if (is_filtered(d, n)) {
    double sum = 0.0;
    for (int32_t i = 0; i < num_chunks; ++i) sum += chunks[i].sum;
    const int64_t offset = draw * sample_workspace_stride(n);
    int32_t* order = p.order + offset;
    float* scores = row.scaled + sample_row_stride(n);
    const int32_t kept = survivors(d, row.x, maxima.x, sum, n, order, workspace.spare + offset, &shared->filter);
    for (int32_t i = thread; i < kept; i += kFinishThreads) {
      const int32_t v = order[i];
      scores[i] = noisy ? row.x[v] + gumbel(d.noise, static_cast<uint32_t>(v), static_cast<uint32_t>(d.position)) : row.x[v];
    }
    count = take_best(kept, p.m, shared, [&](int32_t i) { return ScoredToken{scores[i], order[i]}; });
    const float top = shared->best[0].score;
    for (int32_t i = thread; i < kept; i += kFinishThreads) {
      const float w = exp32((scores[i] - top) * c.inv_beta);
      total += w;
      mean += w * (scores[i] - top);
    }
    total = block_reduce<kFinishThreads>(total, shared->sums, add);
    mean = block_reduce<kFinishThreads>(mean, shared->sums, add);
  } else {
    const CandidateList* lists = workspace.lists + int64_t{draw} * num_chunks;
    count = take_best(num_chunks * p.m, p.m, shared, [&](int32_t i) { return lists[i / p.m].best[i % p.m]; });
    const float top = shared->best[0].score;
    for (int32_t i = 0; i < num_chunks; ++i) {
      const float below = lists[i].best[0].score - top, w = exp32(below * c.inv_beta);
      total += w * lists[i].total;
      mean += w * (lists[i].mean + below * lists[i].total);
    }
  }
  if (thread < count) {
    const ScoredToken t = shared->best[thread];
    const float below = t.score - shared->best[0].score;
    float gap = t.score - maxima.x;
    if (noisy) gap -= gumbel(d.noise, static_cast<uint32_t>(t.id), static_cast<uint32_t>(d.position));
    result.tokens[thread] = t.id;
    result.score[thread] = below;
    result.gap[thread] = gap;
    result.pi[thread] = exp32(below * c.inv_beta) / total;
  }
  if (thread == 0) result.count = count, result.mean_score = mean / total;
}

}  // namespace

Status candidates_sm90(const CandidateParams& p, const CandidateWorkspace& workspace, cudaStream_t stream) {
  if (p.num_draws == 0) return {};
  const dim3 chunks(static_cast<unsigned>(sample_num_chunks(p.vocab_size)), static_cast<unsigned>(p.num_draws));
  constexpr int kBytes = static_cast<int>(sizeof(FinishShared));
  OTR_RETURN_IF_ERROR(allow_shared_memory("candidates", finish_candidates_kernel, kBytes));
  scan_kernel<CandidateParams><<<chunks, kThreads, 0, stream>>>(p, workspace.chunks);
  OTR_RETURN_IF_ERROR(launch_status("candidates"));
  list_kernel<<<chunks, kThreads, 0, stream>>>(p, workspace);
  OTR_RETURN_IF_ERROR(launch_status("candidates"));
  finish_candidates_kernel<<<static_cast<unsigned>(p.num_draws), kFinishThreads, kBytes, stream>>>(p, workspace);
  return launch_status("candidates");
}

Status load_candidates_sm90() {
  return load_kernels("candidates", scan_kernel<CandidateParams>, list_kernel, finish_candidates_kernel);
}

}  // namespace otr
