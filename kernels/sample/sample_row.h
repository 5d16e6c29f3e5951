// The phases of one draw, the same on every CPU path. Ops supplies the four passes over the vocabulary:
//
//   bool    finite_max(x, n, &max)          false if an entry is not finite; a zero maximum is +0
//   double  sum_exp(x, max, n)              sum of exp(x_v - max) in the order of sample.h
//   void    divide(x, divisor, n, out)      IEEE division; out may be x
//   int32_t argmax_with_noise(draw, x, max, n)
//
// and for candidates also
//
//   void    add_noise(draw, x, n, out)      x_v + G_v; out may be x
//   void    weigh(x, max, inv_beta, n, &total, &mean)   sum of w_v = exp((x_v - max) inv_beta), and of w_v (x_v - max)
#pragma once

#include "kernels/base/elementary.h"
#include "kernels/base/thread_pool.h"
#include "kernels/sample/sample.h"

namespace otr {

// Penalties and temperature: *x becomes `scaled`, or stays the raw logits where neither changes them; *max their maximum. False if
// that is not finite. REQUIRES: *x and *max are the raw logits and their maximum.
template <typename Ops>
OTR_INLINE bool sample_scale(const SampleDraw& d, int32_t n, float* scaled, const float** x, float* max) {
  const float* logits = *x;
  if (sample_has_penalty(d)) {
    __builtin_memcpy(scaled, logits, sizeof(float) * static_cast<size_t>(n));
    sample_penalise(d, scaled);
    *x = scaled;
  }
  if (d.temperature != 0.0f && d.temperature != 1.0f) {
    Ops::divide(*x, d.temperature, n, scaled);
    *x = scaled;
  }
  return *x == logits || Ops::finite_max(*x, n, max);
}

template <typename Ops>
OTR_INLINE void sample_row(const SampleParams& p, const SampleDraw& d, float* scaled, int32_t* order, SampleResult* result) {
  const int32_t n = p.vocab_size;
  const float* logits = p.logits + d.logits_row * p.logits_stride;
  *result = SampleResult{d.forced_token, 0.0f, 0.0f, 0};

  // Raw log-softmax.
  float raw_max;
  if (!Ops::finite_max(logits, n, &raw_max)) {
    result->fault = 1;
    return;
  }
  const double raw_sum = Ops::sum_exp(logits, raw_max, n);
  const float raw_log_sum = log32(static_cast<float>(raw_sum));

  const float* x = logits;
  float max = raw_max;
  if (!sample_scale<Ops>(d, n, scaled, &x, &max)) {
    result->fault = 1;
    return;
  }

  // Filters, noise and argmax.
  if (d.temperature == 0.0f) {
    int32_t best = 0;
    while (x[best] != max) ++best;
    if (d.forced_token < 0) result->token = best;
    result->logprob = result->token == best ? 0.0f : -__builtin_inff();
  } else if (sample_has_filter(d, n)) {
    const bool needs_sum = sample_needs_sum(d, n) && x != logits;
    const double sum = needs_sum ? Ops::sum_exp(x, max, n) : raw_sum;
    const int32_t kept = sample_survivors(d, x, max, sum, n, order);
    sample_among_survivors(d, x, max, order, kept, result);
  } else {
    if (d.forced_token < 0) result->token = Ops::argmax_with_noise(d, x, max, n);
    const float log_sum = x == logits ? raw_log_sum : log32(static_cast<float>(Ops::sum_exp(x, max, n)));
    result->logprob = (x[result->token] - max) - log_sum;
  }
  result->raw_logprob = (logits[result->token] - raw_max) - raw_log_sum;
}

template <typename Ops>
OTR_INLINE void sample_rows(const SampleParams& p, ThreadPool& pool) {
  const int64_t stride = sample_workspace_stride(p.vocab_size);
  pool.parallel_for(p.num_draws, [&](int i, int thread) {
    sample_row<Ops>(p, p.draws[i], p.scaled + thread * stride, p.order + thread * stride, &p.results[i]);
  });
}

}  // namespace otr
