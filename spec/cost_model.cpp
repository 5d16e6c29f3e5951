#include "spec/cost_model.h"

#include <algorithm>
#include <cmath>

namespace otr {

RoofShares roof_shares(double memory_ms, double arithmetic_ms, double overlap) {
  const double most = std::max(memory_ms, arithmetic_ms), least = std::min(memory_ms, arithmetic_ms);
  double larger = 1, smaller = 0;
  if (overlap < 1 && most > 0) {  // at overlap 0 the slopes are 1, also of a side that is 0
    const double p = 1 / (1 - overlap), ratio = least / most, power = std::pow(ratio, p);
    larger = std::pow(1 + power, 1 / p - 1);  // (most / roof)^(p-1)
    smaller = ratio > 0 ? larger * power / ratio : overlap > 0 ? 0 : larger;
  }
  return memory_ms >= arithmetic_ms ? RoofShares{larger, smaller} : RoofShares{smaller, larger};
}

double RoleCost::time_ms(const PassShape& pass) const {
  const double memory = memory_ms(pass), arithmetic = arithmetic_ms(pass);
  const RoofShares share = roof_shares(memory, arithmetic, overlap);
  return share.memory * memory + share.arithmetic * arithmetic + pass_ms + sample_ms * pass.batch + context_ms * pass.context;
}

// A sample catches up with c = caught_up / batch tokens, at context - c … context - 1: in the mean they see (c + 1) / 2 tokens
// less than its own row does. From an empty cache that is half the context, and larger c, of samples that differ, skips no
// more.
double CostModel::draft_ms(double batch, double context, double caught_up) const {
  const double unseen = caught_up > 0 ? std::min((caught_up / batch + 1) / 2, context / 2) : 0;
  return time_ms(CostRole::kDraft, {batch, batch + caught_up, context, caught_up, caught_up * unseen});
}

double CostModel::speedup(double batch, double context, double depth, double tokens) const {
  return tokens * target_ms(batch, context) /
         (depth * draft_ms(batch, context) + verify_ms(batch, (depth + 1) * batch, context));
}

Result<CostModel> cost_model_from(const RooflineConstants& c) {
  for (const double number : {c.target_bytes, c.draft_bytes, c.draft_factor, c.kv_bytes, c.dense_flops, c.attention_flops,
                              c.bandwidth, c.compute, c.target_s, c.draft_s, c.verify_s, c.comm_s}) {
    if (!std::isfinite(number) || number < 0) return invalid_argument("a roofline constant is negative or not finite");
  }
  if (c.bandwidth == 0 || c.compute == 0) return invalid_argument("bandwidth and compute must not be 0");
  const double byte_ms = 1e3 / c.bandwidth, flop_ms = 1e3 / c.compute;
  RoleCost target;
  target.weights_ms = c.target_bytes * byte_ms;
  target.kv_ms = c.kv_bytes * byte_ms;
  target.row_ms = c.dense_flops * flop_ms;
  target.attention_ms = c.attention_flops * flop_ms;
  RoleCost draft = target, verify = target;
  draft.weights_ms = c.draft_factor * c.draft_bytes * byte_ms;
  target.sample_ms = c.target_s * 1e3;
  draft.sample_ms = c.draft_s * 1e3;
  verify.sample_ms = c.verify_s * 1e3;
  return CostModel{{target, draft, verify}, c.comm_s * 1e3};
}

}  // namespace otr
