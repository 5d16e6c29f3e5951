// How fast the requests of a group are, and in which windows.
#include <algorithm>
#include <cmath>
#include <utility>

#include "sched/leapfrog.h"
#include "sched/simulation.h"
#include "spec/optimiser.h"

namespace otr {

// Tokens and waste until `ms` at the speeds of the last pricing.
void Simulation::advance(int32_t group, double ms) {
  Group& g = groups_[static_cast<size_t>(group)];
  const double passed = ms - g.now;
  for (Run& r : g.runs) {
    const double tokens = r.speed * passed;
    r.done += tokens;
    result_.wasted_drafts += tokens * r.waste;
  }
  if (!g.runs.empty()) g.busy_ms += passed;
  g.now = ms;
}

// Speeds in the batch and context of now.
void Simulation::price(int32_t group) {
  Group& g = groups_[static_cast<size_t>(group)];
  double context = 0, rows = 0, batch = 0;
  int32_t widest = 0;
  for (const Run& r : g.runs) {
    if (r.ready_ms > g.now + kTiny) continue;
    const bool leaps = at_least(SimulationMode::kLeapfrog) && places_[static_cast<size_t>(r.request)].size() > 1;
    context += request(r).prompt + r.done;
    // What replicas find comes as rows too: about another window.
    rows += r.setting.window * (leaps ? 2 : 1) + (r.setting.mode == DraftMode::kCoupled ? 1 : 0);
    widest = std::max(widest, r.setting.window);
    ++batch;
  }
  for (Run& r : g.runs) r.speed = r.waste = 0;
  if (batch == 0) return;
  const WindowCosts c = costs(g, context / batch);
  const double draft = c.draft_ms(batch);
  const double verify = g.drafter < 0 ? c.verify->target_ms(batch, c.context) : c.verify->verify_ms(batch, rows, c.context);
  for (Run& r : g.runs) {
    if (r.ready_ms > g.now + kTiny) continue;
    if (g.drafter < 0) {
      r.speed = 1 / verify;
      continue;
    }
    // Where all share their GPUs, the widest window sets the pace.
    const double w = r.setting.window, once = (plan_.draft_gpus == 0 ? widest : w) * draft + verify;
    r.tick_ms = once;
    if (r.setting.mode == DraftMode::kCoupled) {
      const double tokens = r.window_tokens + r.whole;
      r.speed = tokens / once;
      r.waste = (w - r.window_tokens) / tokens;
    } else {
      r.speed = window_speed(form_in(WindowForm::kDecoupled, batch), r.p, r.setting.window, {draft, verify});
      const double ahead = draft > 0 ? std::min(w, verify / draft) : w;
      r.waste = (w - r.window_tokens + (1 - r.whole) * ahead) / r.window_tokens;
    }
  }
  if (at_least(SimulationMode::kLeapfrog)) price_leapfrog(group);
}

SimulatedRun& Simulation::run_of(int32_t request, int32_t group) {
  std::vector<Run>& runs = groups_[static_cast<size_t>(group)].runs;
  return *std::find_if(runs.begin(), runs.end(), [request](const Run& r) { return r.request == request; });
}

// Replicas stand where the first of them stands, and go at the speed of the best subset that exchanges: the quicker ones up to
// some pace.
void Simulation::price_leapfrog(int32_t group) {
  Group& g = groups_[static_cast<size_t>(group)];
  struct Replica {
    double tick_ms, p;
    int32_t window;
  };
  std::vector<Replica> replicas;
  std::vector<double> p;
  std::vector<int32_t> windows;
  for (Run& r : g.runs) {
    const std::vector<int32_t>& places = places_[static_cast<size_t>(r.request)];
    if (places.size() < 2 || r.speed == 0) continue;
    replicas.clear();
    p.clear();
    windows.clear();
    for (const int32_t place : places) {
      const Group& other = groups_[static_cast<size_t>(place)];
      const Run& o = run_of(r.request, place);
      if (o.ready_ms > g.now + kTiny || o.tick_ms == 0) continue;
      r.done = std::max(r.done, std::min<double>(request(r).tokens, o.done + o.speed * (g.now - other.now)));
      replicas.push_back({o.tick_ms, o.p, o.setting.window});
    }
    std::sort(replicas.begin(), replicas.end(), [](const Replica& a, const Replica& b) { return a.tick_ms < b.tick_ms; });
    const double alone = r.speed;
    for (const Replica& one : replicas) {
      p.push_back(one.p);
      windows.push_back(one.window);
      r.speed = std::max(r.speed, leapfrog_tokens(p, windows, o_.shared) / one.tick_ms);
    }
    r.waste *= alone / r.speed;
  }
}

// The mean p of all requests for whom the same worker drafts.
double Simulation::mean_beside(int32_t group) const {
  double sum = 0, count = 0;
  for (size_t g = static_cast<size_t>(group % o_.draft_workers); g < groups_.size(); g += static_cast<size_t>(o_.draft_workers)) {
    for (const Run& r : groups_[g].runs) sum += r.p, ++count;
  }
  return sum / count;
}

void Simulation::reconfigure_group(int32_t group, double ms) {
  Group& g = groups_[static_cast<size_t>(group)];
  g.next_reconfigure = kNever;
  std::vector<RequestWindow> windows;
  double context = 0;
  for (const Run& r : g.runs) {
    windows.push_back({.request = static_cast<uint64_t>(r.request), .p = r.p, .setting = r.setting});
    context += request(r).prompt + r.done;
  }
  const double batch = static_cast<double>(windows.size()), line = std::max(2.0, plan_.batch);
  const bool ours = mode_ == SimulationMode::kOurs;
  if (ours && plan_.draft_gpus == 0) return optimise_group(&g, context / batch);
  ReconfigureRule rule{.line = line};
  if (ours) rule = {.batch = batch, .line = line, .everyone = true};
  if (shares_drafters()) rule.mean = mean_beside(group);
  const int32_t changed = reconfigure(rule, question_.form, costs(g, context / batch), o_.most, windows);
  for (size_t i = 0; i < windows.size(); ++i) g.runs[i].set(windows[i].setting);
  result_.num_reconfigured += changed;
  if (changed > 0) {
    decide(ms, "worker " + std::to_string(group) + ": " + std::to_string(changed) + " of " + std::to_string(windows.size()) +
                   " requests get windows of their own");
  }
}

// Whoever drafts where all draft and verify in turns: the widest window sets the pace, so they are chosen together.
void Simulation::optimise_group(Group* g, double context) {
  const int32_t gpus = plan_.verify_gpus;
  const WindowCosts c = costs(*g, context);
  CostModel cost = *c.verify;
  TickTimes times;
  if (c.draft != nullptr) {
    RoleCost& level = cost.roles[static_cast<size_t>(CostRole::kDraft)];
    level = c.draft->role(CostRole::kDraft);
    for (double RoleCost::*const share : {&RoleCost::kv_ms, &RoleCost::row_ms, &RoleCost::attention_ms, &RoleCost::sample_ms}) {
      level.*share /= gpus;  // each draws for its part of the batch
    }
    times.fixed_ms = cost.comm_ms - c.draft->comm_ms;
    cost.comm_ms = c.draft->comm_ms;
  } else {
    times.fixed_ms = std::exchange(cost.comm_ms, 0);
    cost.roles[static_cast<size_t>(CostRole::kDraft)] = {};
  }
  times.plain_fixed_ms = times.fixed_ms;
  times.cost = &cost;
  times.batch = times.rows = static_cast<double>(g->runs.size());
  times.context = context;
  std::vector<RowOdds> odds;
  for (const Run& r : g->runs) odds.push_back({.p = static_cast<float>(r.p), .max_depth = o_.most});
  Optimiser optimiser;
  optimiser.best_depth(times, odds, o_.most, 0);
  for (size_t i = 0; i < g->runs.size(); ++i) g->runs[i].set({optimiser.row_depth()[i], DraftMode::kCoupled});
  result_.num_reconfigured += static_cast<int64_t>(g->runs.size());
}

}  // namespace otr
