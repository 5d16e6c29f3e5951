// Sorting and short sums, scalar on every CPU path so that they are one definition.
#include "kernels/sample/sample_filter.h"

#include <algorithm>
#include <functional>

#include "kernels/base/elementary.h"

namespace otr {
namespace {

// The total order every filter and tie is defined by (logit, then lower id), as a number: what comes first is smaller.
uint64_t key_of(float logit, int32_t id) {
  const uint32_t bits = bits_from_float(logit + 0.0f);  // -0 + 0 = +0, its equal
  const uint32_t descending = bits >> 31 != 0 ? bits : ~bits & 0x7fffffffu;
  return uint64_t{descending} << 32 | static_cast<uint32_t>(id);
}

// Brings ids into the total order as far as somebody looks. They are distributed over buckets by their distance from the
// maximum, which the order's roundings preserve, and a bucket is sorted when its first place is asked for; a long one is split
// again and again, and only its first part sorted. What is looked at is usually the start of a long list.
class LazyOrder {
 public:
  // REQUIRES: `max_logit` is the greatest of the ids' logits; 0 < num_ids; `order` [num_ids] does not overlap `ids`.
  LazyOrder(const float* scaled, float max_logit, const int32_t* ids, int32_t num_ids, int32_t* order)
      : scaled_(scaled), order_(order) {
    const int32_t last = std::clamp(num_ids / kMeanBucket, 64, kBuckets) - 1;
    const float range = max_logit - lowest_of_some(scaled, max_logit, ids, num_ids);
    const float scale = range > 1e-30f && range < 1e30f ? static_cast<float>(last) / range : 0.0f;  // else all in one bucket
    const auto bucket_of = [=](int32_t id) {
      const float at = scale > 0.0f ? (max_logit - scaled[id]) * scale : 0.0f;
      return at < static_cast<float>(last) ? static_cast<int32_t>(at) : last;
    };
    std::fill_n(bucket_end_, last + 3, 0);
    for (int32_t i = 0; i < num_ids; ++i) ++bucket_end_[bucket_of(ids[i]) + 1];
    for (int32_t b = 1; b <= last + 1; ++b) bucket_end_[b] += bucket_end_[b - 1];  // here the start of bucket b
    for (int32_t i = 0; i < num_ids; ++i) order[bucket_end_[bucket_of(ids[i])]++] = ids[i];
  }

  // The token in place i. REQUIRES: i < num_ids; places are asked for from 0 on, none left out.
  int32_t operator[](int32_t i) {
    while (i >= sorted_) sort_more();
    return order_[i];
  }
  const int32_t* order() const { return order_; }

 private:
  static constexpr int32_t kBuckets = 8192, kMeanBucket = 8, kMostKeys = 1024, kSome = 256;

  // Of a few ids: one outlier among the others must not put them all into one bucket.
  static float lowest_of_some(const float* scaled, float max_logit, const int32_t* ids, int32_t num_ids) {
    float lowest = max_logit;
    for (int32_t i = 0; i < num_ids; i += num_ids / kSome + 1) lowest = std::min(lowest, scaled[ids[i]]);
    return lowest;
  }

  void sort_more() {
    if (depth_ == 0) ends_[depth_++] = bucket_end_[bucket_++];
    int32_t end = ends_[depth_ - 1];
    while (end - sorted_ > kMostKeys) {
      const int32_t middle = sorted_ + (end - sorted_) / 4;
      std::nth_element(order_ + sorted_, order_ + middle, order_ + end,
                       [this](int32_t a, int32_t b) { return key_of(scaled_[a], a) < key_of(scaled_[b], b); });
      ends_[depth_++] = end = middle;
    }
    --depth_;
    uint64_t keys[kMostKeys];
    const int32_t size = end - sorted_;
    for (int32_t i = 0; i < size; ++i) keys[i] = key_of(scaled_[order_[sorted_ + i]], order_[sorted_ + i]);
    std::sort(keys, keys + size);
    for (int32_t i = 0; i < size; ++i) order_[sorted_ + i] = static_cast<int32_t>(keys[i]);
    sorted_ = end;
  }

  const float* const scaled_;
  int32_t* const order_;
  int32_t sorted_ = 0, bucket_ = 0, depth_ = 0;
  int32_t ends_[16];  // of the parts of a bucket that begin at sorted_: each is a quarter of the next, of 2^31 at most
  int32_t bucket_end_[kBuckets + 2];
};

// Calls visit(place, weight) for the places [begin, end) of the order, in turn, until one returns true.
template <typename Visit>
void visit_weights(SampleWeigh weigh, const float* scaled, float max_logit, const int32_t* order, int32_t begin, int32_t end,
                   const Visit& visit) {
  constexpr int32_t kPiece = 64;
  float weights[kPiece];
  for (int32_t at = begin; at < end; at += kPiece) {
    const int32_t size = std::min(kPiece, end - at);
    weigh(scaled, max_logit, order + at, size, weights);
    for (int32_t i = 0; i < size; ++i) {
      if (visit(at + i, weights[i])) return;
    }
  }
}

// Length of the shortest prefix of the first n whose weights reach `threshold`, or 0.
int32_t nucleus(double threshold, SampleWeigh weigh, const float* scaled, float max_logit, int32_t n, LazyOrder& order) {
  constexpr int32_t kAhead = 16;  // places: what lies behind the nucleus is sorted for nothing
  double cumulative = 0.0;
  int32_t kept = 0;
  for (int32_t at = 0; at < n && kept == 0; at += kAhead) {
    const int32_t end = std::min(n, at + kAhead);
    order[end - 1];
    visit_weights(weigh, scaled, max_logit, order.order(), at, end, [&](int32_t place, float w) {
      cumulative += static_cast<double>(w);
      if (cumulative >= threshold) kept = place + 1;
      return kept > 0;
    });
  }
  return kept;
}

bool has_top_k(const SampleDraw& d, int32_t vocab_size) { return d.top_k > 0 && d.top_k < vocab_size; }

}  // namespace

double sample_total(SampleWeigh weigh, const float* scaled, float max_logit, const int32_t* order, int32_t num_survivors) {
  double total = 0.0;
  visit_weights(weigh, scaled, max_logit, order, 0, num_survivors, [&total](int32_t, float w) {
    total += static_cast<double>(w);
    return false;
  });
  return total;
}

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

int32_t sample_survivors(const SampleDraw& d, SampleWeigh weigh, const float* scaled, float max_logit, double sum,
                         int32_t vocab_size, const int32_t* ids, int32_t num_ids, int32_t* order) {
  LazyOrder in_order(scaled, max_logit, ids, num_ids, order);
  const bool top_k = has_top_k(d, vocab_size);
  int32_t n = top_k ? d.top_k : num_ids;
  if (d.top_p < 1.0f) {
    if (top_k) in_order[n - 1];
    const double total = top_k ? sample_total(weigh, scaled, max_logit, order, n) : sum;
    const int32_t kept = nucleus(static_cast<double>(d.top_p) * total, weigh, scaled, max_logit, n, in_order);
    if (kept == 0 && !top_k && num_ids < vocab_size) return 0;
    n = kept > 0 ? kept : n;
  }
  in_order[n - 1];
  while (d.min_p > 0.0f && n > 1) {
    float weight;
    weigh(scaled, max_logit, order + n - 1, 1, &weight);
    if (weight >= d.min_p) break;
    --n;
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

int32_t sample_among(const SampleDraw& d, const float* scaled, const int32_t* order, int32_t num_survivors) {
  const PhiloxKeys keys = noise_keys(d.noise);
  int32_t best = -1;
  float best_score = 0.0f;
  for (int32_t i = 0; i < num_survivors; ++i) {
    const int32_t v = order[i];
    const uint32_t word = noise_words(d.noise, keys, static_cast<uint32_t>(v) / 4, static_cast<uint32_t>(d.position)).w[v % 4];
    if (best >= 0 && word < least_word(scaled[v], best_score)) continue;
    const float score = scaled[v] + gumbel_from_word(word);
    if (best < 0 || score > best_score || (score == best_score && v < best)) {
      best = v;
      best_score = score;
    }
  }
  return best;
}

}  // namespace otr
