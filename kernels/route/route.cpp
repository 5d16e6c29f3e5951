#include "kernels/route/route.h"

#include "kernels/base/elementary.h"
#include "kernels/base/integers.h"
#include "kernels/base/thread_pool.h"

namespace otr {
namespace {

// The expert after `last` in the order of (logit descending, e ascending); last < 0: the first one.
int32_t next_expert(const float* logits, int32_t num_experts, int32_t last) {
  int32_t best = -1;
  for (int32_t e = 0; e < num_experts; ++e) {
    const bool taken = last >= 0 && (logits[e] > logits[last] || (logits[e] == logits[last] && e <= last));
    if (!taken && (best < 0 || logits[e] > logits[best])) best = e;
  }
  return best;
}

void route_row(const RouteParams& p, int64_t row) {
  float* logits = p.logits + row * p.num_experts;
  int32_t* experts = p.experts + row * p.experts_per_token;
  float* weights = p.weights + row * p.experts_per_token;
  bool ordered = true;
  for (int32_t e = 0; e < p.num_experts; ++e) ordered &= logits[e] == logits[e];
  for (int32_t i = 0, last = -1; i < p.experts_per_token; ++i) {
    last = ordered ? next_expert(logits, p.num_experts, last) : i;
    int32_t at = i;  // into its place among those found
    for (; at > 0 && experts[at - 1] > last; --at) experts[at] = experts[at - 1];
    experts[at] = last;
  }
  float max = logits[0], all = 0.0f, taken = 0.0f;
  for (int32_t e = 1; e < p.num_experts; ++e) max = logits[e] > max ? logits[e] : max;
  for (int32_t e = 0; e < p.num_experts; ++e) all += logits[e] = exp32(logits[e] - max);
  for (int32_t i = 0; i < p.experts_per_token; ++i) taken += logits[experts[i]];
  const float sum = p.normalised && ordered ? taken : all;  // `all` is NaN wherever the NaN logit is
  for (int32_t i = 0; i < p.experts_per_token; ++i) weights[i] = logits[experts[i]] / sum;
}

}  // namespace

void route(const RouteParams& p, ThreadPool& pool) {
  // Some 5 us: of a row's work the search is the most.
  const int64_t task_rows =
      greater_of<int64_t>(1, smaller_of<int64_t>(16, 1024 / (int64_t{p.num_experts} * p.experts_per_token)));
  pool.parallel_for(divide_up(p.num_rows, task_rows), [&](int task, int) {
    for (int64_t row = task * task_rows; row < (task + 1) * task_rows && row < p.num_rows; ++row) route_row(p, row);
  });
}

}  // namespace otr
