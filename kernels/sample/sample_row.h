// The phases of one draw, the same on every CPU path. Ops supplies the passes over the vocabulary:
//
//   bool    finite_max(x, n, maxima, &max)  false if an entry is not finite; a zero maximum is +0. maxima[b]: the maximum of the
//                                           block of kSampleMaxBlock tokens from b kSampleMaxBlock on
//   double  sum_exp(x, max, n, next)        sum of exp(x_v - max) in the order of sample.h; may fetch next[0 … n - 1], a hint;
//                                           next = x: nothing is fetched ahead
//   void    divide(x, divisor, n, out)      IEEE division; out may be x
//   int32_t argmax_with_noise(draw, x, max, maxima, n, next)   may fetch next, like sum_exp
//   int32_t collect(x, bound, maxima, n, ids)   the ids of x_v >= bound, ascending; returns how many. [sample_row_stride(n)]
//
// and for candidates also
//
//   int32_t collect_with_noise(draw, x, bound, maxima, n, scores, ids)   tokens, ascending, with x_v + G_v, which may lie in x; among them
//                                           all that reach the bound as it is in the end, and which others is the path's own affair;
//                                           returns how many. [sample_row_stride(n)]
//   void    weigh(x, max, inv_beta, n, &total, &mean)   sum of w_v = exp((x_v - max) inv_beta), and of w_v (x_v - max)
#pragma once

#include "kernels/base/elementary.h"
#include "kernels/base/thread_pool.h"
#include "kernels/sample/sample_filter.h"
#include "kernels/sample/sample_workspace.h"

namespace otr {

// The first token of maximal logit.
OTR_INLINE int32_t sample_top(const float* x, const float* maxima, float max) {
  int32_t b = 0;
  while (maxima[b] != max) ++b;
  int32_t v = b * kSampleMaxBlock;
  while (x[v] != max) ++v;
  return v;
}

// Penalties and temperature: *x becomes `scaled`, or stays the raw logits where neither changes them; *max their maximum,
// w.maxima those of its blocks. False if it is not finite. REQUIRES: *x and *max are the raw logits and their maximum, w.maxima
// those of their blocks.
template <typename Ops>
OTR_INLINE bool sample_scale(const SampleDraw& d, int32_t n, const SampleWorkspace& w, const float** x, float* max) {
  const float* logits = *x;
  if (sample_has_penalty(d)) {
    __builtin_memcpy(w.scaled, logits, sizeof(float) * static_cast<size_t>(n));
    sample_penalise(d, w.scaled);
    *x = w.scaled;
  }
  if (d.temperature != 0.0f && d.temperature != 1.0f) {
    Ops::divide(*x, d.temperature, n, w.scaled);
    *x = w.scaled;
  }
  return *x == logits || Ops::finite_max(*x, n, w.maxima, max);
}

// A SampleWeigh, each path's own: of one that they shared the linker would keep any.
template <typename Ops>
static void sample_weigh(const float* scaled, float max_logit, const int32_t* ids, int32_t num_ids, float* weights) {
  for (int32_t i = 0; i < num_ids; ++i) weights[i] = exp32(scaled[ids[i]] - max_logit);
}

// The survivors of the filters, in w.order; returns how many.
template <typename Ops>
OTR_INLINE int32_t sample_filter(const SampleDraw& d, const float* x, float max, double sum, int32_t n,
                                 const SampleWorkspace& w) {
  const float bound = sample_survivor_bound(d, max, sum, n, w.maxima, w.scratch);
  int32_t num_ids = Ops::collect(x, bound, w.maxima, n, w.ids);
  int32_t kept = sample_survivors(d, sample_weigh<Ops>, x, max, sum, n, w.ids, num_ids, w.order);
  if (kept > 0) return kept;
  num_ids = Ops::collect(x, -__builtin_inff(), w.maxima, n, w.ids);
  return sample_survivors(d, sample_weigh<Ops>, x, max, sum, n, w.ids, num_ids, w.order);
}

// Chooses among the survivors, or scores the forced token. Few draw their noise one by one; many as the whole vocabulary does,
// with those that do not survive out of the way. REQUIRES: w.order holds the survivors in the total order.
template <typename Ops>
OTR_INLINE void sample_filtered(const SampleDraw& d, const float* x, float max, int32_t n, const SampleWorkspace& w,
                                int32_t kept, SampleResult* result) {
  constexpr int32_t kMany = 32;  // of the vocabulary's noise, what one by one costs more
  const float log_sum = log32(static_cast<float>(sample_total(sample_weigh<Ops>, x, max, w.order, kept)));
  const int32_t last = w.order[kept - 1];
  const float least = x[last];
  const auto survives = [=](int32_t v, float logit) { return logit > least || (logit == least && v <= last); };
  int32_t token = d.forced_token;
  if (token >= 0) {
    if (!survives(token, x[token])) token = -1;
  } else if (kept < n / kMany) {
    token = sample_among(d, x, w.order, kept);
  } else {
    for (int32_t v = 0; v < n; ++v) w.scaled[v] = survives(v, x[v]) ? x[v] : -__builtin_inff();
    x = w.scaled;
    token = Ops::argmax_with_noise(d, x, max, w.maxima, n, x);
  }
  if (d.forced_token < 0) result->token = token;
  result->logprob = token < 0 ? -__builtin_inff() : (x[token] - max) - log_sum;
}

template <typename Ops>
OTR_INLINE void sample_row(const SampleParams& p, const SampleDraw& d, const float* next, const SampleWorkspace& w,
                           SampleResult* result) {
  const int32_t n = p.vocab_size;
  const float* logits = p.logits + d.logits_row * p.logits_stride;
  *result = SampleResult{d.forced_token, 0.0f, 0.0f, 0};

  // Raw log-softmax.
  float raw_max;
  if (!Ops::finite_max(logits, n, w.maxima, &raw_max)) {
    result->fault = 1;
    return;
  }
  // The noise, where there is any, leaves memory idle for longer than the sum does.
  const bool whole_noise = d.temperature != 0.0f && d.forced_token < 0 && !sample_has_filter(d, n);
  const double raw_sum = Ops::sum_exp(logits, raw_max, n, whole_noise ? logits : next);
  const float raw_log_sum = log32(static_cast<float>(raw_sum));

  const float* x = logits;
  float max = raw_max;
  if (!sample_scale<Ops>(d, n, w, &x, &max)) {
    result->fault = 1;
    return;
  }

  // Filters, noise and argmax.
  if (d.temperature == 0.0f) {
    const int32_t best = sample_top(x, w.maxima, max);
    if (d.forced_token < 0) result->token = best;
    result->logprob = result->token == best ? 0.0f : -__builtin_inff();
  } else if (sample_has_filter(d, n)) {
    const bool needs_sum = sample_needs_sum(d, n) && x != logits;
    const double sum = needs_sum ? Ops::sum_exp(x, max, n, x) : raw_sum;
    const int32_t kept = sample_filter<Ops>(d, x, max, sum, n, w);
    sample_filtered<Ops>(d, x, max, n, w, kept, result);
  } else {
    if (d.forced_token < 0) result->token = Ops::argmax_with_noise(d, x, max, w.maxima, n, next);
    const float log_sum = x == logits ? raw_log_sum : log32(static_cast<float>(Ops::sum_exp(x, max, n, x)));
    result->logprob = (x[result->token] - max) - log_sum;
  }
  result->raw_logprob = (logits[result->token] - raw_max) - raw_log_sum;
}

template <typename Ops>
OTR_INLINE void sample_rows(const SampleParams& p, ThreadPool& pool) {
  pool.parallel_for(p.num_draws, [&](int i, int thread) {
    // What this thread most likely takes next.
    const int soon = i + pool.num_threads() < p.num_draws ? i + pool.num_threads() : i;
    const float* next = p.logits + p.draws[soon].logits_row * p.logits_stride;
    sample_row<Ops>(p, p.draws[i], next, sample_workspace(p.scaled, p.order, p.vocab_size, thread), &p.results[i]);
  });
}

}  // namespace otr
