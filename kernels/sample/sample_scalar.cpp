#include <cstring>

#include "kernels/base/elementary.h"
#include "kernels/base/thread_pool.h"
#include "kernels/sample/sample.h"

namespace otr {
namespace {

constexpr int kLanes = 16;

// Sum of exp(x_v - max) in the order sample.h fixes.
float sum_exp(const float* x, float max, int32_t n) {
  double total = 0.0;
  for (int32_t begin = 0; begin < n; begin += kSampleSumBlock) {
    const int32_t end = begin + kSampleSumBlock < n ? begin + kSampleSumBlock : n;
    float lanes[kLanes] = {};
    for (int32_t v = begin; v < end; ++v) lanes[v % kLanes] += exp32(x[v] - max);
    for (int width = kLanes / 2; width > 0; width /= 2) {
      for (int i = 0; i < width; ++i) lanes[i] += lanes[i + width];
    }
    total += static_cast<double>(lanes[0]);
  }
  return static_cast<float>(total);
}

// The maximum, or false if an entry is not finite.
bool finite_max(const float* x, int32_t n, float* max) {
  float m = x[0];
  bool finite = true;
  for (int32_t v = 0; v < n; ++v) {
    finite &= is_finite_bits(x[v]);
    m = x[v] > m ? x[v] : m;
  }
  *max = m;
  return finite;
}

int32_t argmax_with_noise(const SampleDraw& d, const float* scaled, int32_t n) {
  int32_t best = 0;
  float best_score = -__builtin_inff();
  for (int32_t v = 0; v < n; v += 4) {
    const PhiloxBlock words = noise_words(d.noise, static_cast<uint32_t>(v) / 4, static_cast<uint32_t>(d.position));
    for (int32_t i = v; i < n && i < v + 4; ++i) {
      const float score = scaled[i] + gumbel_from_word(words.w[i - v]);
      if (score > best_score) {
        best_score = score;
        best = i;
      }
    }
  }
  return best;
}

void sample_one(const SampleParams& p, const SampleDraw& d, float* scaled, int32_t* order, SampleResult* result) {
  const int32_t n = p.vocab_size;
  const float* logits = p.logits + d.logits_row * p.logits_stride;
  *result = SampleResult{d.forced_token, 0.0f, 0.0f, 0};
  float raw_max;
  if (!finite_max(logits, n, &raw_max)) {
    result->fault = 1;
    return;
  }
  const float raw_log_sum = log32(sum_exp(logits, raw_max, n));

  const bool penalised = sample_has_penalty(d);
  const bool greedy = d.temperature == 0.0f;
  const bool plain = !penalised && !sample_has_filter(d, n) && d.temperature == 1.0f;
  float max = raw_max;
  if (!plain) {
    std::memcpy(scaled, logits, sizeof(float) * static_cast<size_t>(n));
    if (penalised) sample_penalise(d, scaled);
    if (!greedy) {
      for (int32_t v = 0; v < n; ++v) scaled[v] /= d.temperature;
    }
    finite_max(scaled, n, &max);
  }
  const float* x = plain ? logits : scaled;

  if (greedy) {
    int32_t best = 0;
    while (x[best] != max) ++best;
    if (d.forced_token < 0) result->token = best;
    result->logprob = result->token == best ? 0.0f : -__builtin_inff();
  } else if (sample_has_filter(d, n)) {
    const int32_t kept = sample_survivors(d, x, max, n, order);
    sample_among_survivors(d, x, max, order, kept, result);
  } else {
    if (d.forced_token < 0) result->token = argmax_with_noise(d, x, n);
    const float log_sum = plain ? raw_log_sum : log32(sum_exp(x, max, n));
    result->logprob = (x[result->token] - max) - log_sum;
  }
  result->raw_logprob = (logits[result->token] - raw_max) - raw_log_sum;
}

}  // namespace

void sample_scalar(const SampleParams& p, ThreadPool& pool) {
  const int64_t stride = sample_workspace_stride(p.vocab_size);
  pool.parallel_for(p.num_draws, [&](int i, int thread) {
    sample_one(p, p.draws[i], p.scaled + thread * stride, p.order + thread * stride, &p.results[i]);
  });
}

}  // namespace otr
