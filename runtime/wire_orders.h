// Fields that messages in both directions have.
//
// Thread safety: functions of their arguments.
#pragma once

#include <algorithm>
#include <limits>
#include <vector>

#include "runtime/request.h"
#include "runtime/wire_fields.h"
#include "runtime/worker_port.h"
#include "sched/placement.h"
#include "spec/cost_model.h"

namespace otr {

inline constexpr int32_t kMaxMoved = 1 << 30, kMaxRung = 1 << 16, kMaxCosts = 64;
inline constexpr int64_t kMaxCount = std::numeric_limits<int64_t>::max();
inline constexpr double kMaxMs = 1e12;

inline void put_spec(const SampleSpec& s, WireWriter* w) {
  for (const int64_t n : {s.draft_tokens, s.accepted_tokens, s.verify_steps, s.judged_tokens}) w->put(n);
}

inline SampleSpec read_spec(WireReader* r) {
  SampleSpec s;
  s.draft_tokens = r->integer<int64_t>("spec_draft_tokens", 0, kMaxCount);
  s.accepted_tokens = r->integer<int64_t>("spec_accepted_tokens", 0, kMaxCount);
  s.verify_steps = r->integer<int64_t>("spec_verify_steps", 0, kMaxCount);
  s.judged_tokens = r->integer<int64_t>("spec_judged_tokens", 0, kMaxCount);
  return s;
}

inline void put_move(const Move& m, WireWriter* w) {
  w->put(m.from);
  w->put(m.to);
  w->put(m.count);
  w->put(static_cast<uint8_t>(m.running));
}

inline Move read_move(int32_t num_workers, WireReader* r) {
  Move m{};
  m.from = r->integer("from", 0, num_workers - 1);
  m.to = r->integer("to", 0, num_workers - 1);
  m.count = r->integer("count", 1, kMaxMoved);
  m.running = r->flag("running");
  return m;
}

inline void put_lend(const Lend& l, WireWriter* w) {
  w->put(l.to);
  w->put(l.rung);
  w->put(l.most);
  w->put(static_cast<uint8_t>(l.leaps));
}

inline Lend read_lend(int32_t num_workers, WireReader* r) {
  Lend l;
  l.to = r->integer("to", 0, num_workers - 1);
  l.rung = r->integer("rung", 1, kMaxRung);
  l.most = r->integer("most", 0, kMaxMoved);
  l.leaps = r->flag("leaps");
  return l;
}

// One list of a model's costs for both directions, each with the most that it may be.
template <typename Costs, typename Visit>
void for_each_cost(Costs& c, const Visit& visit) {
  for (auto& role : c.roles) {
    for (auto* x :
         {&role.weights_ms, &role.kv_ms, &role.row_ms, &role.attention_ms, &role.sample_ms, &role.context_ms, &role.pass_ms})
      visit(*x, kMaxMs);
    for (auto* x : {&role.overlap, &role.shares.logits, &role.shares.experts, &role.shares.passed_by}) visit(*x, 1.0);
  }
  visit(c.comm_ms, kMaxMs);
}

inline void put_cost(const CostModel& cost, WireWriter* w) {
  for_each_cost(cost, [w](double x, double) { w->put(x); });
}
inline void read_cost(const char* field, CostModel* cost, WireReader* r) {
  for_each_cost(*cost, [&](double& x, double most) { x = r->number(field, 0.0, most); });
}

inline void put_costs(const std::vector<CostModel>& costs, WireWriter* w) {
  w->put(static_cast<uint32_t>(costs.size()));
  for (const CostModel& c : costs) put_cost(c, w);
}

inline std::vector<CostModel> read_costs(WireReader* r) {
  std::vector<CostModel> costs(std::min<uint32_t>(r->count("costs", sizeof(double)), kMaxCosts));
  for (CostModel& c : costs) read_cost("costs", &c, r);
  return costs;
}

inline void check_tokens(const char* field, const std::vector<int32_t>& tokens, int32_t vocab_size, WireReader* r) {
  if (std::any_of(tokens.begin(), tokens.end(), [vocab_size](int32_t t) { return t < 0 || t >= vocab_size; })) {
    r->fail(field, "are outside the vocabulary");
  }
}

}  // namespace otr
