// Penalties and filters: the steps of a draw that are the same code on every CPU path (sample.h has their definition).
//
// The filters look at few of the tokens: a bound leaves out most of the vocabulary in one pass, and what is left is brought
// into the total order only as far as the filters look.
#pragma once

#include "kernels/sample/sample.h"

namespace otr {

// A token's logit after penalties: the same on every path, GPUs included.
OTR_INLINE float sample_penalised(const SampleDraw& d, const PenaltyEntry& e, float x) {
  if (d.repetition_penalty != 1.0f) x = x > 0.0f ? x / d.repetition_penalty : x * d.repetition_penalty;
  if (e.output_count > 0) {
    x -= d.frequency_penalty * static_cast<float>(e.output_count);
    x -= d.presence_penalty;
  }
  return x;
}

OTR_INLINE bool sample_has_penalty(const SampleDraw& d) {
  return d.num_penalties > 0 && (d.repetition_penalty != 1.0f || d.presence_penalty != 0.0f || d.frequency_penalty != 0.0f);
}
OTR_INLINE bool sample_has_filter(const SampleDraw& d, int32_t vocab_size) {
  return (d.top_k > 0 && d.top_k < vocab_size) || d.top_p < 1.0f || d.min_p > 0.0f;
}

// weights[i] = exp32(scaled[ids[i]] - max_logit), with the instructions of the path: the same bits on all.
using SampleWeigh = void (*)(const float* scaled, float max_logit, const int32_t* ids, int32_t num_ids, float* weights);

// Applies the penalties to `logits` [vocab_size] in place.
void sample_penalise(const SampleDraw& draw, float* logits);

// True if sample_survivors reads `sum`: top-p over the whole vocabulary.
OTR_INLINE bool sample_needs_sum(const SampleDraw& d, int32_t vocab_size) {
  return d.top_p < 1.0f && !(d.top_k > 0 && d.top_k < vocab_size);
}

// Every token that survives the filters has scaled[v] >= this bound, which may be -inf. REQUIRES: `maxima` are those of the
// blocks of `scaled`, all finite, `max_logit` the greatest; `sum` is their sum of exponentials if sample_needs_sum. `scratch`
// [blocks]
float sample_survivor_bound(const SampleDraw& draw, float max_logit, double sum, int32_t vocab_size, const float* maxima,
                            float* scratch);

// Ids that survive top-k, top-p and min-p, in the total order. `ids` [num_ids] are the tokens not below the bound, ascending;
// `order` [vocab_size] receives the survivors first. Returns how many, at least 1; or 0 if some survivor is
// not among `ids`: top-p's bound is one of real numbers, and p may be next to 1. Never 0 if `ids` are all tokens.
int32_t sample_survivors(const SampleDraw& draw, SampleWeigh weigh, const float* scaled, float max_logit, double sum,
                         int32_t vocab_size, const int32_t* ids, int32_t num_ids, int32_t* order);

// Brings `order` [num_survivors] into ascending order and writes the survivors' logit + G, or their logit alone, to `scores`,
// which may be `scaled`.
void sample_survivor_scores(const SampleDraw& draw, bool without_noise, const float* scaled, int32_t num_survivors,
                            int32_t* order, float* scores);

// The survivors' sum of exponentials, in their order.
double sample_total(SampleWeigh weigh, const float* scaled, float max_logit, const int32_t* order, int32_t num_survivors);

// The survivor with the greatest logit + G; of equal ones the lowest id.
int32_t sample_among(const SampleDraw& draw, const float* scaled, const int32_t* order, int32_t num_survivors);

}  // namespace otr
