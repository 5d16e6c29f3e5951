// The phases of one drafter's draw, the same on every CPU path (sample.h, candidates). Ops as in sample_row.h.
//
// A noise's logarithms and a share's exponential are most of a draw's work, and nearly all tokens need none of them: what is
// neither among the m best nor within `reach` of the best one is left out. All of these together have one part in kLeftOut of
// the sum at most.
#pragma once

#include "kernels/sample/sample_row.h"

namespace otr {

inline constexpr float kLeftOut = 10000;

// What scores count: the best m, and those within `reach` of the best one. As far as is known: both bounds only rise.
struct CandidateBound {
  float of_best;  // no more than any of the best m
  float top;      // no more than the best one
  float reach;
  int m;
  float best[kMaxCandidates];  // [m] shown so far, falling
};

OTR_INLINE float candidate_bound_least(const CandidateBound& b) {
  return b.of_best < b.top - b.reach ? b.of_best : b.top - b.reach;
}

// Every token once.
OTR_INLINE void candidate_bound_show(CandidateBound* b, float score) {
  b->top = score > b->top ? score : b->top;
  if (!(score > b->best[b->m - 1])) return;
  int at = b->m - 1;
  for (; at > 0 && score > b->best[at - 1]; --at) b->best[at] = b->best[at - 1];
  b->best[at] = score;
  b->of_best = b->best[b->m - 1] > b->of_best ? b->best[b->m - 1] : b->of_best;
}

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

// A bound from below of the best m scores and of the best one: those of the first tokens of maximal logit in the m best blocks.
OTR_INLINE CandidateBound candidates_bound(const SampleDraw& d, bool noisy, const float* x, const float* maxima, int32_t n,
                                           float reach, int m) {
  constexpr float kNone = -__builtin_inff();
  const int32_t blocks = (n + kSampleMaxBlock - 1) / kSampleMaxBlock;
  CandidateBound bound{.of_best = kNone, .top = kNone, .reach = reach, .m = m, .best = {}};
  for (int i = 0; i < m; ++i) bound.best[i] = kNone;
  if (blocks < m) return bound;
  Candidates highest = {};  // blocks
  for (int32_t b = 0; b < blocks; ++b) candidates_show(b, maxima[b], m, &highest);
  bound.of_best = __builtin_inff();
  for (int i = 0; i < m; ++i) {
    int32_t v = highest.tokens[i] * kSampleMaxBlock;
    while (x[v] != maxima[highest.tokens[i]]) ++v;
    const float score = noisy ? x[v] + gumbel(d.noise, static_cast<uint32_t>(v), static_cast<uint32_t>(d.position)) : x[v];
    bound.of_best = score < bound.of_best ? score : bound.of_best;
    bound.top = score > bound.top ? score : bound.top;
  }
  return bound;
}

template <typename Ops>
OTR_INLINE void candidates_row(const CandidateParams& p, const CandidateDraw& c, const SampleWorkspace& w, Candidates* out) {
  const int32_t n = p.vocab_size;
  const SampleDraw& d = c.draw;
  const float* x = p.logits + d.logits_row * p.logits_stride;
  out->count = 0;
  float max;
  if (!Ops::finite_max(x, n, w.maxima, &max) || !sample_scale<Ops>(d, n, w, &x, &max)) return;

  // Scores of the tokens that count, in `scaled`, by ascending id.
  float* const scaled = w.scaled;
  int32_t* const order = w.order;
  int32_t count = 0;
  const bool noisy = d.temperature != 0.0f && !c.without_noise;
  if (d.temperature != 0.0f && sample_has_filter(d, n)) {
    const double sum = sample_needs_sum(d, n) ? Ops::sum_exp(x, max, n, x) : 0.0;
    count = sample_filter<Ops>(d, x, max, sum, n, w);
    sample_survivor_scores(d, c.without_noise, x, count, order, scaled);
  } else {
    const float reach = log32(kLeftOut * static_cast<float>(n)) / c.inv_beta;
    const CandidateBound bound = candidates_bound(d, noisy, x, w.maxima, n, reach, p.m);
    if (noisy) {
      count = Ops::collect_with_noise(d, x, bound, w.maxima, n, scaled, order);
    } else {
      count = Ops::collect(x, candidate_bound_least(bound), w.maxima, n, order);
      for (int32_t i = 0; i < count; ++i) scaled[i] = x[order[i]];
    }
  }

  constexpr int32_t kBlock = 64;
  for (int32_t begin = 0; begin < count; begin += kBlock) {
    const int32_t size = count - begin < kBlock ? count - begin : kBlock;
    if (!Ops::any_above(scaled + begin, size, candidates_floor(*out, p.m))) continue;
    for (int32_t i = begin; i < begin + size; ++i) candidates_show(order[i], scaled[i], p.m, out);
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
