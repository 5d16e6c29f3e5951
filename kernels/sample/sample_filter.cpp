// Penalties and filters: sorting and short sums, scalar on every CPU path so that they are one definition.
#include <algorithm>

#include "kernels/base/elementary.h"
#include "kernels/sample/sample.h"

namespace otr {
namespace {

// The total order every filter and tie is defined by.
struct Before {
  const float* logits;
  bool operator()(int32_t a, int32_t b) const { return logits[a] > logits[b] || (logits[a] == logits[b] && a < b); }
};

// Keeps the shortest prefix of the total order whose weight reaches top_p of the whole. `order` [n] is partitioned lazily: sorted
// prefixes of doubling length, since the nucleus is usually a few tokens of a large vocabulary.
int32_t nucleus(float top_p, const float* scaled, float max_logit, int32_t n, int32_t* order, bool sorted) {
  double total = 0.0;
  if (sorted) {
    for (int32_t i = 0; i < n; ++i) total += static_cast<double>(exp32(scaled[order[i]] - max_logit));
  } else {  // everything survived so far and `order` is 0 … n - 1
    for (int32_t v = 0; v < n; ++v) total += static_cast<double>(exp32(scaled[v] - max_logit));
  }
  const double threshold = static_cast<double>(top_p) * total;
  double cumulative = 0.0;
  int32_t sorted_end = sorted ? n : 0;
  for (int32_t i = 0; i < n; ++i) {
    if (i == sorted_end) {
      const int32_t next = std::min(n, std::max(64, 2 * sorted_end));
      std::partial_sort(order + sorted_end, order + next, order + n, Before{scaled});
      sorted_end = next;
    }
    cumulative += static_cast<double>(exp32(scaled[order[i]] - max_logit));
    if (cumulative >= threshold) return i + 1;
  }
  return n;
}

}  // namespace

void sample_penalise(const SampleDraw& d, float* logits) {
  for (int32_t i = 0; i < d.num_penalties; ++i) {
    const PenaltyEntry& e = d.penalties[i];
    float x = logits[e.token];
    if (d.repetition_penalty != 1.0f) x = x > 0.0f ? x / d.repetition_penalty : x * d.repetition_penalty;
    if (e.output_count > 0) {
      x -= d.frequency_penalty * static_cast<float>(e.output_count);
      x -= d.presence_penalty;
    }
    logits[e.token] = x;
  }
}

int32_t sample_survivors(const SampleDraw& d, const float* scaled, float max_logit, int32_t vocab_size, int32_t* order) {
  for (int32_t v = 0; v < vocab_size; ++v) order[v] = v;
  int32_t n = vocab_size;
  bool sorted = false;
  if (d.top_k > 0 && d.top_k < vocab_size) {
    n = d.top_k;
    std::partial_sort(order, order + n, order + vocab_size, Before{scaled});
    sorted = true;
  }
  if (d.top_p < 1.0f) {
    n = nucleus(d.top_p, scaled, max_logit, n, order, sorted);
    sorted = true;
  }
  if (d.min_p > 0.0f) {  // p_v >= min_p * p_max, and p_max has weight exp(0) = 1
    if (sorted) {
      while (n > 1 && exp32(scaled[order[n - 1]] - max_logit) < d.min_p) --n;
    } else {
      int32_t kept = 0;
      for (int32_t v = 0; v < vocab_size; ++v) {
        if (exp32(scaled[v] - max_logit) >= d.min_p) order[kept++] = v;
      }
      n = kept;
      std::sort(order, order + n, Before{scaled});
    }
  }
  return n;
}

void sample_among_survivors(const SampleDraw& d, const float* scaled, float max_logit, const int32_t* order,
                            int32_t num_survivors, SampleResult* result) {
  double total = 0.0;
  for (int32_t i = 0; i < num_survivors; ++i) total += static_cast<double>(exp32(scaled[order[i]] - max_logit));
  int32_t best = -1;
  if (d.forced_token >= 0) {
    for (int32_t i = 0; i < num_survivors; ++i) best = order[i] == d.forced_token ? d.forced_token : best;
  } else {
    float best_score = 0.0f;
    for (int32_t i = 0; i < num_survivors; ++i) {
      const int32_t v = order[i];
      const float score = scaled[v] + gumbel(d.noise, static_cast<uint32_t>(v), static_cast<uint32_t>(d.position));
      if (best < 0 || score > best_score || (score == best_score && v < best)) {
        best = v;
        best_score = score;
      }
    }
  }
  result->token = d.forced_token >= 0 ? d.forced_token : best;
  result->logprob = best < 0 ? -__builtin_inff() : (scaled[best] - max_logit) - log32(static_cast<float>(total));
}

}  // namespace otr
