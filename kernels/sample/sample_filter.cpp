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

// Puts the first `end` of order [n] in place, [0, begin) being there already. A heap of up to 64 passes over a large vocabulary
// with few swaps; longer pieces are split off and sorted.
void sort_prefix(int32_t begin, int32_t end, int32_t n, Before before, int32_t* order) {
  if (end - begin <= 64) {
    std::partial_sort(order + begin, order + end, order + n, before);
  } else {
    std::nth_element(order + begin, order + end, order + n, before);
    std::sort(order + begin, order + end, before);
  }
}

// Ids with scaled[v] >= cut, ascending.
int32_t collect(const float* scaled, float cut, int32_t vocab_size, int32_t* order) {
  int32_t n = 0;
  for (int32_t v = 0; v < vocab_size; ++v) {
    order[n] = v;
    n += scaled[v] >= cut ? 1 : 0;
  }
  return n;
}

// Length of the shortest prefix of order [n] in the total order whose weights reach `threshold`, or 0. Sorts as far as it
// looks: the nucleus is usually a few tokens of a large vocabulary.
int32_t nucleus(double threshold, const float* scaled, float max_logit, int32_t n, int32_t sorted, int32_t* order) {
  double cumulative = 0.0;
  for (int32_t i = 0; i < n; ++i) {
    if (i == sorted) {
      sorted = std::min(n, std::max(64, 16 * i));
      sort_prefix(i, sorted, n, Before{scaled}, order);
    }
    cumulative += static_cast<double>(exp32(scaled[order[i]] - max_logit));
    if (cumulative >= threshold) return i + 1;
  }
  return 0;
}

// Top-p over the whole vocabulary. Tokens of weight below (1 - p) sum / vocab_size together weigh less than (1 - p) sum, so the
// nucleus ends before them: they are left out of the sorting, with a margin of 1 % for the roundings, and taken in only if the
// rest does not reach the threshold after all (p next to 1).
int32_t nucleus_of_all(float top_p, const float* scaled, float max_logit, double sum, int32_t vocab_size, int32_t* order) {
  const double threshold = static_cast<double>(top_p) * sum;
  const double least_weight = (1.0 - static_cast<double>(top_p)) * sum / vocab_size;
  const float cut = max_logit + (log32(static_cast<float>(least_weight)) - 0.01f);
  const int32_t heavy = collect(scaled, cut, vocab_size, order);
  const int32_t kept = nucleus(threshold, scaled, max_logit, heavy, 0, order);
  if (kept > 0) return kept;
  collect(scaled, -__builtin_inff(), vocab_size, order);
  sort_prefix(0, vocab_size, vocab_size, Before{scaled}, order);
  const int32_t of_all = nucleus(threshold, scaled, max_logit, vocab_size, vocab_size, order);
  return of_all > 0 ? of_all : vocab_size;
}

}  // namespace

void sample_penalise(const SampleDraw& d, float* logits) {
  for (int32_t i = 0; i < d.num_penalties; ++i) {
    const PenaltyEntry& e = d.penalties[i];
    logits[e.token] = sample_penalised(d, e, logits[e.token]);
  }
}

int32_t sample_survivors(const SampleDraw& d, const float* scaled, float max_logit, double sum, int32_t vocab_size,
                         int32_t* order) {
  int32_t n = vocab_size;
  bool sorted = false;
  if (d.top_k > 0 && d.top_k < vocab_size) {
    n = d.top_k;
    collect(scaled, -__builtin_inff(), vocab_size, order);
    sort_prefix(0, n, vocab_size, Before{scaled}, order);
    sorted = true;
  }
  if (d.top_p < 1.0f) {
    if (sorted) {
      double total = 0.0;
      for (int32_t i = 0; i < n; ++i) total += static_cast<double>(exp32(scaled[order[i]] - max_logit));
      n = nucleus(static_cast<double>(d.top_p) * total, scaled, max_logit, n, n, order);
    } else {
      n = nucleus_of_all(d.top_p, scaled, max_logit, sum, vocab_size, order);
    }
    sorted = true;
  }
  if (d.min_p > 0.0f) {  // p_v >= min_p * p_max, and p_max has weight exp(0) = 1
    if (!sorted) {       // the margin of 1 % covers the roundings of both exp32 and log32
      n = collect(scaled, max_logit + (log32(std::clamp(d.min_p, 1e-37f, 1.0f)) - 0.01f), vocab_size, order);
      sort_prefix(0, n, n, Before{scaled}, order);
    }
    while (n > 1 && exp32(scaled[order[n - 1]] - max_logit) < d.min_p) --n;
  }
  return n;
}

void sample_survivor_scores(const SampleDraw& d, bool without_noise, const float* scaled, int32_t num_survivors, int32_t* order,
                            float* scores) {
  std::sort(order, order + num_survivors);  // so that a survivor's own place lies at its index or behind it
  for (int32_t i = 0; i < num_survivors; ++i) {
    scores[i] = scaled[order[i]];
    if (!without_noise) scores[i] += gumbel(d.noise, static_cast<uint32_t>(order[i]), static_cast<uint32_t>(d.position));
  }
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
