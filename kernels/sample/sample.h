// sample: the token at absolute position t is argmax_v (logit_v / T + G_v), G_v the Gumbel noise of (key, t, v) (base/noise.h).
//
// Order of operations, per draw:
//   raw logits -> penalties (repetition, frequency, presence) -> IEEE division by T -> top-k -> top-p on the renormalised
//   survivors (the token that crosses is kept) -> min-p (the end of the order, while its weight is below min_p times the
//   first one's) -> + G -> argmax.  Ties always go to the lowest id.
// Filters are defined by the total order (logit descending, id ascending) and sums in fixed order; a normaliser never enters
// the choice, except top-p's threshold. T = 0 is the argmax of the penalised logits, with logprob 0.
//
// Log-probs: `logprob` of the distribution sampled from (after T and filters), `raw_logprob` = log-softmax of the raw logits.
// Sums of exponentials: 16 float32 lanes (token v in lane v % 16) over blocks of 4096 tokens, lanes added pairwise by halves,
// blocks added in float64, ascending. Sums over survivors and top-p's cumulative sums run in float64, down the total order.
//
// A forced draw (score) reports the log-probs of a given token instead of choosing one; a filtered token has logprob -inf.
// NaN or Inf anywhere in a row's logits, raw or after penalties and temperature, sets `fault` and leaves the rest undefined.
#pragma once

#include <cstdint>

#include "kernels/base/noise.h"

namespace otr {

class ThreadPool;

// A token that occurs in the prompt or the output before the drawn position.
struct PenaltyEntry {
  int32_t token;
  int32_t output_count;  // occurrences in the output; 0: only in the prompt
};

struct SampleDraw {
  int32_t logits_row;
  int32_t position;  // t: absolute, 0-based over prompt + response, of the token to be drawn
  NoiseStream noise;
  int32_t forced_token;      // >= 0: score this token; -1: draw
  float temperature;         // 0 or >= 0.01
  int32_t top_k;             // 0: off
  float top_p;               // 1: off
  float min_p;               // 0: off
  float repetition_penalty;  // 1: off
  float presence_penalty;    // 0: off
  float frequency_penalty;   // 0: off
  int32_t num_penalties;
  const PenaltyEntry* penalties;  // [num_penalties], each token once; null where no penalty is on
};

struct SampleResult {
  int32_t token;
  float logprob;
  float raw_logprob;
  int32_t fault;  // 1: the row's logits are not finite
};

struct SampleParams {
  int32_t num_draws;
  int32_t vocab_size;
  const float* logits;  // [*][logits_stride]
  int64_t logits_stride;
  const SampleDraw* draws;  // [num_draws]
  SampleResult* results;    // [num_draws]
  float* scaled;            // workspace [num_threads][sample_workspace_stride(vocab_size)]
  int32_t* order;           // workspace [num_threads][sample_workspace_stride(vocab_size)]
  void* scratch =
      nullptr;  // on a device: workspace, DeviceLayouts::sample_scratch_bytes; `scaled` and `order` have num_draws rows there
};

// Half of it holds a row's logits or ids; behind them lie the maxima of blocks of kSampleMaxBlock tokens, or ids to be sorted.
OTR_INLINE constexpr int64_t sample_row_stride(int64_t vocab_size) { return (vocab_size + 63) / 64 * 64; }
OTR_INLINE constexpr int64_t sample_workspace_stride(int64_t vocab_size) { return 2 * sample_row_stride(vocab_size); }

inline constexpr int32_t kSampleMaxBlock = 256;

inline constexpr int kSampleSumBlock = 4096;

void sample_scalar(const SampleParams& params, ThreadPool& pool);
void sample_avx2(const SampleParams& params, ThreadPool& pool);
void sample_avx512(const SampleParams& params, ThreadPool& pool);

// candidates: what a drafter proposes at one place. With s_v = logit_v / T + G_v (after penalties and filters; at T = 0 the
// penalised logits alone), the m tokens of highest s_v, in that order, ties to the lower id, each with
//
//   pi_v = softmax_v(s / beta)
//
// the probability that v is the target's choice; beta is fitted by whoever drafts. The first candidate is what `sample` draws.
// `without_noise`: s_v = logit_v / T alone, so that pi_v is the drafter's own q_v at beta 1.
// Sums run in the path's own order, and over the path's own choice of tokens: what it leaves out has one part in 10,000 of all
// pi at most. Candidates decide no result.
inline constexpr int kMaxCandidates = 16;

struct CandidateDraw {
  SampleDraw draw;  // forced_token is ignored
  float inv_beta;   // 1 / beta, > 0
  bool without_noise = false;
};

struct Candidates {
  int32_t count;  // at most m; fewer if the filters keep fewer, 0 if the logits are not finite
  int32_t tokens[kMaxCandidates];
  float pi[kMaxCandidates];
  float score[kMaxCandidates];  // s_v - s of the first candidate: 0, then falling
  float gap[kMaxCandidates];    // log q_v - log of the greatest q: 0 for the likeliest token
  float mean_score;             // sum_v pi_v (s_v - s of the first candidate)
};

struct CandidateParams {
  int32_t num_draws;
  int32_t vocab_size;
  int32_t m;            // 1 … kMaxCandidates
  const float* logits;  // [*][logits_stride]
  int64_t logits_stride;
  const CandidateDraw* draws;  // [num_draws]
  Candidates* results;         // [num_draws]
  float* scaled;               // workspace, as in SampleParams
  int32_t* order;              // workspace, as in SampleParams
  void* scratch = nullptr;     // likewise
};

// take_tokens, on a device alone: a drafted chain goes on there. token_ids[row] = the first candidate of drawn[from[row]], or
// token 0 where it has none, which whoever reads `drawn` later sees too.
struct TakeTokensParams {
  int32_t num_rows;
  const int32_t* from;      // [num_rows], indices of `drawn`
  const Candidates* drawn;  // [*]
  int32_t* token_ids;       // [num_rows]
};

void candidates_scalar(const CandidateParams& params, ThreadPool& pool);
void candidates_avx2(const CandidateParams& params, ThreadPool& pool);
void candidates_avx512(const CandidateParams& params, ThreadPool& pool);

}  // namespace otr
