// sample and candidates on sm_90a: the contracts of sample.h over device pointers, launched on `stream`. sample has to the bit
// what the CPU paths give for the same logits: noise, filters, sums and log-probs have one definition. So have candidates but
// for pi and mean_score, whose sums run in the path's own order. Of the params, `scaled` and `order` hold
// sample_workspace_stride(vocab_size) entries for each draw; `draws` and their penalties are on the device.
//
// Errors: the launch's own (kInternal with CUDA's text). Thread safety: as CUDA streams; the workspace belongs to the launch
// until it is done.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/base/status.h"
#include "kernels/sample/sample.h"

namespace otr {

inline constexpr int32_t kNoToken = 0x7fffffff;

struct ScoredToken {
  float score;
  int32_t id;
};

// What is known of 4,096 tokens of a draw.
struct SampleChunk {
  float raw_max, max;   // of the logits, and after penalties and temperature
  double raw_sum, sum;  // of exp(x - the row's maximum)
  float best_score;     // the greatest score, and the lowest id that has it
  int32_t best_id;
  int32_t raw_finite, finite;
};

OTR_INLINE constexpr int32_t sample_num_chunks(int32_t vocab_size) {
  return (vocab_size + kSampleSumBlock - 1) / kSampleSumBlock;
}

struct SampleWorkspaceSm90 {
  SampleChunk* chunks;  // [num_draws][sample_num_chunks(vocab_size)]
  int32_t* spare;       // [num_draws][sample_workspace_stride(vocab_size)]
};

Status sample_sm90(const SampleParams& params, const SampleWorkspaceSm90& workspace, cudaStream_t stream);

// The best tokens of 4,096, best first; id kNoToken behind the last.
struct CandidateList {
  ScoredToken best[kMaxCandidates];
  float total, mean;  // sums of w = exp((s - s of the list's first) / beta), and of w (s - s of the list's first)
};

struct CandidateWorkspace {
  SampleChunk* chunks;   // [num_draws][sample_num_chunks(vocab_size)]
  CandidateList* lists;  // [num_draws][sample_num_chunks(vocab_size)]
  int32_t* spare;        // [num_draws][sample_workspace_stride(vocab_size)]
};

Status candidates_sm90(const CandidateParams& params, const CandidateWorkspace& workspace, cudaStream_t stream);

Status take_tokens_sm90(const TakeTokensParams& params, cudaStream_t stream);

Status load_candidates_sm90();  // see load_kernels

Status load_sample_sm90();  // see load_kernels

Status load_take_tokens_sm90();  // see load_kernels

}  // namespace otr
