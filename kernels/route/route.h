// route: which experts a row's MLP takes, and with what weights. One implementation for all CPU paths.
//
//   p_e = exp(logit_e - max) in float32, e ascending; the row takes the experts_per_token experts of the greatest logits, of
//   equal ones the lower e; weight_e = p_e / s, s the sum of p over those it takes if `normalised`, else over all, e ascending.
//
// A row with a NaN logit takes the first experts, and its weights are NaN, whether they are normalised or not.
//
// REQUIRES: 1 <= experts_per_token <= num_experts. Errors: none. Thread safety: params are read only, outputs must not overlap.
#pragma once

#include <cstdint>

namespace otr {

class ThreadPool;

struct RouteParams {
  int32_t num_rows;
  int32_t num_experts;
  int32_t experts_per_token;
  bool normalised;
  float* logits;     // [num_rows][num_experts]; spoilt
  int32_t* experts;  // [num_rows][experts_per_token], ascending
  float* weights;    // [num_rows][experts_per_token]
};

void route(const RouteParams& params, ThreadPool& pool);

}  // namespace otr
