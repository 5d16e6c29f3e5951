// Sorting and short sums, scalar on every CPU path so that they are one definition.
#include "kernels/sample/sample_filter.h"

#include <algorithm>
#include <functional>

#include "kernels/base/elementary.h"

namespace otr {
namespace {

// The total order every filter and tie is defined by.
struct Before {
  const float* logits;
  bool operator()(int32_t a, int32_t b) const { return logits[a] > logits[b] || (logits[a] == logits[b] && a < b); }
};

// Brings ids into the total order as far as somebody looks: they are distributed over buckets by their distance from the
// maximum, which the order's roundings preserve, and a bucket is sorted when its first place is asked for. What is looked at is
// usually the start of a long list, and most buckets hold few ids.
class LazyOrder {
 public:
  // REQUIRES: `max_logit` is the greatest of the ids' logits; 0 < num_ids; `order` [num_ids] does not overlap `ids`.
  LazyOrder(const float* scaled, float max_logit, const int32_t* ids, int32_t num_ids, int32_t* order)
      : before_{scaled}, order_(order) {
    float lowest = max_logit;
    for (int32_t i = 0; i < num_ids; ++i) lowest = std::min(lowest, scaled[ids[i]]);
    const float range = max_logit - lowest;
    const float scale = range > 1e-30f && range < 1e30f ? (kBuckets - 1) / range : 0.0f;  // else all in one bucket
    const auto bucket_of = [&](int32_t id) {
      return scale > 0.0f ? static_cast<int32_t>((max_logit - scaled[id]) * scale) : 0;
    };
    for (int32_t i = 0; i < num_ids; ++i) ++bucket_end_[bucket_of(ids[i]) + 1];
    for (int32_t b = 1; b <= kBuckets; ++b) bucket_end_[b] += bucket_end_[b - 1];  // here the start of bucket b
    for (int32_t i = 0; i < num_ids; ++i) order[bucket_end_[bucket_of(ids[i])]++] = ids[i];
  }

  // The token in place i. REQUIRES: i < num_ids; places are asked for from 0 on, none left out.
  int32_t operator[](int32_t i) {
    while (i >= sorted_) {
      const int32_t end = bucket_end_[bucket_++];
      if (end - sorted_ > 1) std::sort(order_ + sorted_, order_ + end, before_);
      sorted_ = end;
    }
    return order_[i];
  }

 private:
  static constexpr int32_t kBuckets = 2048;
  const Before before_;
  int32_t* const order_;
  int32_t sorted_ = 0, bucket_ = 0;
  int32_t bucket_end_[kBuckets + 2] = {};
};

// Length of the shortest prefix of the first n whose weights reach `threshold`, or 0.
int32_t nucleus(double threshold, const float* scaled, float max_logit, int32_t n, LazyOrder& order) {
  double cumulative = 0.0;
  for (int32_t i = 0; i < n; ++i) {
    cumulative += static_cast<double>(exp32(scaled[order[i]] - max_logit));
    if (cumulative >= threshold) return i + 1;
  }
  return 0;
}

bool has_top_k(const SampleDraw& d, int32_t vocab_size) { return d.top_k > 0 && d.top_k < vocab_size; }

}  // namespace

void sample_penalise(const SampleDraw& d, float* logits) {
  for (int32_t i = 0; i < d.num_penalties; ++i) {
    const PenaltyEntry& e = d.penalties[i];
    logits[e.token] = sample_penalised(d, e, logits[e.token]);
  }
}

float sample_survivor_bound(const SampleDraw& d, float max_logit, double sum, int32_t vocab_size, const float* maxima,
                            float* scratch) {
  if (has_top_k(d, vocab_size)) {  // k blocks have a token that is not below the k-th greatest maximum
    const int32_t blocks = (vocab_size + kSampleMaxBlock - 1) / kSampleMaxBlock;
    if (d.top_k > blocks) return -__builtin_inff();
    std::copy(maxima, maxima + blocks, scratch);
    std::nth_element(scratch, scratch + (d.top_k - 1), scratch + blocks, std::greater<float>());
    return scratch[d.top_k - 1];
  }
  // The margin of 1 % in weight covers the roundings of exp32 and log32.
  if (d.top_p < 1.0f) {
    // Tokens of weight below (1 - p) sum / vocab_size together weigh less than (1 - p) sum: the nucleus ends before them.
    const double least_weight = (1.0 - static_cast<double>(d.top_p)) * sum / vocab_size;
    return max_logit + (log32(static_cast<float>(least_weight)) - 0.01f);
  }
  // p_v >= min_p * p_max, and p_max has weight exp(0) = 1. Below 1e-37 every weight that is not zero may be kept.
  return d.min_p < 1e-37f ? -__builtin_inff() : max_logit + (log32(std::min(d.min_p, 1.0f)) - 0.01f);
}

int32_t sample_survivors(const SampleDraw& d, const float* scaled, float max_logit, double sum, int32_t vocab_size,
                         const int32_t* ids, int32_t num_ids, int32_t* order) {
  LazyOrder in_order(scaled, max_logit, ids, num_ids, order);
  const bool top_k = has_top_k(d, vocab_size);
  int32_t n = top_k ? d.top_k : num_ids;
  if (d.top_p < 1.0f) {
    double total = top_k ? 0.0 : sum;
    for (int32_t i = 0; top_k && i < n; ++i) total += static_cast<double>(exp32(scaled[in_order[i]] - max_logit));
    const int32_t kept = nucleus(static_cast<double>(d.top_p) * total, scaled, max_logit, n, in_order);
    if (kept == 0 && !top_k && num_ids < vocab_size) return 0;
    n = kept > 0 ? kept : n;
  }
  in_order[n - 1];
  while (n > 1 && exp32(scaled[order[n - 1]] - max_logit) < d.min_p) --n;
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
    const PhiloxKeys keys = noise_keys(d.noise);
    float best_score = 0.0f;
    for (int32_t i = 0; i < num_survivors; ++i) {
      const int32_t v = order[i];
      const uint32_t word =
          noise_words(d.noise, keys, static_cast<uint32_t>(v) / 4, static_cast<uint32_t>(d.position)).w[v % 4];
      if (best >= 0 && word < least_word(scaled[v], best_score)) continue;
      const float score = scaled[v] + gumbel_from_word(word);
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
