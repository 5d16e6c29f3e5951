// The phases of one drafter's draw, the same on every CPU path (sample.h, candidates). Ops as in sample_row.h.
#pragma once

#include "kernels/sample/sample_row.h"

namespace otr {

// The score that a token must exceed to be among the best `m`.
OTR_INLINE float candidates_floor(const Candidates& best, int m) {
  return best.count < m ? -__builtin_inff() : best.score[m - 1];
}

// Takes a token in if it is among the best `m` so far; of equal scores the first shown comes first.
OTR_INLINE void candidates_show(int32_t token, float score, int m, Candidates* best) {
  if (!(score > candidates_floor(*best, m))) return;
  int at = best->count < m ? best->count++ : m - 1;
  for (; at > 0 && score > best->score[at - 1]; --at) {
    best->tokens[at] = best->tokens[at - 1];
    best->score[at] = best->score[at - 1];
  }
  best->tokens[at] = token;
  best->score[at] = score;
}

template <typename Ops>
OTR_INLINE void candidates_row(const CandidateParams& p, const CandidateDraw& c, const SampleWorkspace& w, Candidates* out) {
  const int32_t n = p.vocab_size;
  const SampleDraw& d = c.draw;
  const float* x = p.logits + d.logits_row * p.logits_stride;
  out->count = 0;
  float max;
  if (!Ops::finite_max(x, n, w.maxima, &max) || !sample_scale<Ops>(d, n, w, &x, &max)) return;

  // Scores of the tokens that the filters keep, in `scaled`: all of them in their places, or the survivors by ascending id.
  float* const scaled = w.scaled;
  int32_t* const order = w.order;
  int32_t count = n;
  const bool noisy = d.temperature != 0.0f && !c.without_noise;
  const bool filtered = d.temperature != 0.0f && sample_has_filter(d, n);
  if (filtered) {
    const double sum = sample_needs_sum(d, n) ? Ops::sum_exp(x, max, n, x) : 0.0;
    count = sample_filter<Ops>(d, x, max, sum, n, w);
    sample_survivor_scores(d, c.without_noise, x, count, order, scaled);
  } else if (noisy) {
    Ops::add_noise(d, x, n, scaled);
  } else if (x != scaled) {
    __builtin_memcpy(scaled, x, sizeof(float) * static_cast<size_t>(n));
  }

  constexpr int32_t kBlock = 64;
  for (int32_t begin = 0; begin < count; begin += kBlock) {
    const int32_t size = count - begin < kBlock ? count - begin : kBlock;
    if (!Ops::any_above(scaled + begin, size, candidates_floor(*out, p.m))) continue;
    for (int32_t i = begin; i < begin + size; ++i) candidates_show(filtered ? order[i] : i, scaled[i], p.m, out);
  }
  const float top = out->score[0];
  float total, mean;
  Ops::weigh(scaled, top, c.inv_beta, count, &total, &mean);
  for (int32_t i = 0; i < out->count; ++i) {
    out->gap[i] = out->score[i] - max;
    if (noisy) out->gap[i] -= gumbel(d.noise, static_cast<uint32_t>(out->tokens[i]), static_cast<uint32_t>(d.position));
    out->score[i] -= top;
    out->pi[i] = exp32(out->score[i] * c.inv_beta) / total;
  }
  out->mean_score = mean / total;
}

template <typename Ops>
OTR_INLINE void candidates_rows(const CandidateParams& p, ThreadPool& pool) {
  pool.parallel_for(p.num_draws, [&](int i, int thread) {
    candidates_row<Ops>(p, p.draws[i], sample_workspace(p.scaled, p.order, p.vocab_size, thread), &p.results[i]);
  });
}

}  // namespace otr
