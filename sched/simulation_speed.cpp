// How fast the requests of a group are, and in which windows.
#include <algorithm>
#include <cmath>
#include <utility>

#include "sched/leapfrog.h"
#include "sched/simulation.h"
#include "spec/optimiser.h"

namespace otr {
namespace {

constexpr int kPassIterations = 4;  // then a pass and those who are in it agree within a percent

}  // namespace

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

// What the engine's policies choose anew as often as the batch changes.
void Simulation::choose_windows(Group* g) {
  double context = 0, batch = 0;
  for (const Run& r : g->runs) {
    if (r.ready_ms > g->now + kTiny) continue;
    context += request(r).prompt + r.done;
    ++batch;
  }
  if (batch == 0) return;
  if (optimises_ticks()) return optimise_group(g, context / batch);
  if (!g->races) return;
  const double mean = question_.drafters[static_cast<size_t>(g->drafter)].p;
  const WindowChoice best = best_window(WindowForm::kCoupled, mean, costs(*g, context / batch), batch, batch, o_.most);
  for (Run& r : g->runs) r.set({.window = std::max(1, best.window), .mode = DraftMode::kCoupled});
}

// Rows of a pass that a run takes part in: what replicas find comes as rows too, about another window.
double Simulation::rows_of(const Run& r) const {
  const bool leaps = at_least(SimulationMode::kLeapfrog) && places_[static_cast<size_t>(r.request)].size() > 1;
  return r.setting.window * (leaps ? 2 : 1) + (r.setting.mode == DraftMode::kCoupled ? 1 : 0);
}

// Who is wrong in a batch goes on with the next pass, if others keep the verifier busy: those whose next window is there
// already, each with its own chance.
WindowTimes Simulation::served_times(const Run& r, const ServedLoad& load) {
  const double others = std::min(0.0, load.log_wrong - r.log_wrong);
  return {.draft_ms = load.draft_ms,
          .verify_ms = load.verify_ms,
          .level = load.served > 1 ? 1.0 : 0.0,
          .busy = -std::expm1(others)};
}

// A pass of those whose windows have come, which are the more the shorter it takes.
double Simulation::served_pass_ms(const Group& g, const WindowCosts& c, ServedLoad load) const {
  for (int i = 0; i < kPassIterations; ++i) {
    double there = 0, rows = 0, nobody = 1;
    for (const Run& r : g.runs) {
      if (r.ready_ms > g.now + kTiny) continue;
      const WindowTimes times = served_times(r, load);
      const double wait = window_wait_ms(r.setting.window, times, times.busy);
      const double ahead = std::max(0.0, r.setting.window * load.draft_ms - load.verify_ms);  // of a window that is kept whole
      const double apart = r.setting.mode == DraftMode::kCoupled ? wait : (1 - r.whole) * wait + r.whole * ahead;
      const double share = load.verify_ms / (apart + load.verify_ms);
      there += share;
      rows += share * rows_of(r);
      nobody *= 1 - share;
    }
    load.verify_ms = c.verify->verify_ms(there / (1 - nobody), rows / (1 - nobody), c.context);
  }
  return load.verify_ms;
}

// Speeds in the batch and context of now.
void Simulation::price(int32_t group) {
  Group& g = groups_[static_cast<size_t>(group)];
  if (is_engine()) choose_windows(&g);
  double context = 0, rows = 0, batch = 0, log_wrong = 0;
  int32_t widest = 0;
  for (const Run& r : g.runs) {
    if (r.ready_ms > g.now + kTiny) continue;
    context += request(r).prompt + r.done;
    rows += rows_of(r);
    widest = std::max(widest, r.setting.window);
    log_wrong += r.log_wrong;
    ++batch;
  }
  for (Run& r : g.runs) r.speed = r.waste = 0;
  if (batch == 0) return;
  const WindowCosts c = costs(g, context / batch);
  const bool served = is_served(g);
  ServedLoad load{.draft_ms = c.draft_ms(batch), .log_wrong = log_wrong};
  load.verify_ms = g.drafter < 0 ? c.verify->target_ms(batch, c.context) : c.verify->verify_ms(batch, rows, c.context);
  if (served) {
    load.draft_ms = level_ms(static_cast<size_t>(group) % servers_.size(), &load.served);
    load.verify_ms = served_pass_ms(g, c, load);
  }
  const double draft = load.draft_ms, verify = load.verify_ms;
  // Where all share their GPUs, the widest window sets the pace.
  const bool in_turns = plan_.draft_gpus == 0 || (g.races && is_engine());
  for (Run& r : g.runs) {
    if (r.ready_ms > g.now + kTiny) continue;
    if (g.drafter < 0) {
      r.speed = 1 / verify;
      continue;
    }
    const double w = r.setting.window;
    const WindowTimes times = served ? served_times(r, load) : WindowTimes{draft, verify};
    r.tick_ms = (served ? window_wait_ms(r.setting.window, times, times.busy) : (in_turns ? widest : w) * draft) + verify;
    if (r.setting.mode == DraftMode::kCoupled) {
      const double tokens = r.window_tokens + r.whole;
      r.speed = tokens / r.tick_ms;
      r.waste = (w - r.window_tokens) / tokens;
    } else {
      r.speed = window_speed(form_in(WindowForm::kDecoupled, batch), r.p, r.setting.window, times);
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
  optimiser.best_depth(times, odds, o_.most);
  for (size_t i = 0; i < g->runs.size(); ++i) g->runs[i].set({optimiser.row_depth()[i], DraftMode::kCoupled});
  result_.num_reconfigured += static_cast<int64_t>(g->runs.size());
}

}  // namespace otr
