#include "sched/simulator.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <limits>
#include <queue>
#include <tuple>
#include <utility>

#include "sched/leapfrog.h"
#include "spec/optimiser.h"

namespace otr {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr double kTiny = 1e-7;           // tokens
constexpr double kContextGrowth = 0.05;  // speeds are priced anew after
constexpr double kAssignEvery = 1000;    // ms: workers that come free wait for others so long
constexpr int64_t kOurIterations = 100;  // between two looks at the windows
constexpr size_t kMostDecisions = 100;

// A request on a worker.
struct Run {
  int32_t request = 0;
  int32_t drafter = -1;
  WindowSetting setting;
  double p = 0;
  double begin = 0, done = 0;           // tokens of the response
  double ready_ms = 0;                  // its keys and values are there
  double speed = 0;                     // tokens a millisecond
  double waste = 0;                     // drafted tokens thrown away a token
  double tick_ms = 0;                   // a draft and its verification in turns
  double whole = 0, window_tokens = 0;  // p^w; 1 + p + … + p^(w-1)

  void set(WindowSetting s) {
    setting = s;
    whole = std::pow(p, s.window);
    window_tokens = s.window == 0 ? 0 : coupled_tokens(p, s.window - 1);
  }
};

struct Group {
  std::vector<Run> runs;
  int32_t drafter = -1;
  bool races = false;  // its requests are others' too
  double now = 0;      // what the runs say holds then
  double next_reconfigure = kNever;
  double busy_ms = 0;
  uint64_t version = 0;  // of its event
};

struct Event {
  double ms;
  int32_t group;  // -1: free workers are assigned
  uint64_t version;
  bool operator>(const Event& o) const { return std::tie(ms, group) > std::tie(o.ms, o.group); }
};

class Simulation {
 public:
  Simulation(SimulationMode mode, const SimulationOptions& o, std::span<const SimulatedRequest> requests)
      : mode_(mode), o_(o), requests_(requests), places_(requests.size()) {}

  Result<SimulationResult> run();

 private:
  bool at_least(SimulationMode m) const { return static_cast<int>(mode_) >= static_cast<int>(m); }
  WindowCosts costs(const Group& g, double context) const {
    WindowCosts c =
        window_costs(question_, plan_.verifier, g.drafter, plan_.draft_gpus == 0 ? plan_.verify_gpus : plan_.draft_gpus);
    c.context = context;
    return c;
  }
  const SimulatedRequest& request(const Run& r) const { return requests_[static_cast<size_t>(r.request)]; }
  void decide(double ms, const std::string& text);
  Status plan();
  void place();
  void advance(int32_t group, double ms);
  void price(int32_t group);
  void price_leapfrog(int32_t group);
  void schedule(int32_t group);
  void finish(int32_t group, double ms);
  void remove(int32_t request, int32_t group);
  void reconfigure_group(int32_t group, double ms);
  void optimise_group(Group* g, double context);
  void assign(double ms);
  void race(const Racer& racer, double ms);
  double rebuild_ms(double tokens) const;
  Run& run_of(int32_t request, int32_t group);

  const SimulationMode mode_;
  const SimulationOptions& o_;
  const std::span<const SimulatedRequest> requests_;
  PlanQuestion question_;
  Plan plan_;
  std::vector<Group> groups_;
  std::vector<std::vector<int32_t>> places_;  // by request: its groups
  std::vector<int32_t> ladder_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  bool assigning_ = false, raced_ = false;  // an assignment is due; workers have come free
  size_t left_ = 0;
  SimulationResult result_;
};

void Simulation::decide(double ms, const std::string& text) {
  if (result_.decisions.size() >= kMostDecisions) return;
  char time[32];
  std::snprintf(time, sizeof time, "%9.1f s  ", ms / 1e3);
  result_.decisions.push_back(time + text);
}

Status Simulation::plan() {
  double context = 0;
  std::vector<double> p(o_.drafters.size());
  for (const SimulatedRequest& r : requests_) {
    if (r.tokens < 1 || r.prompt < 0) return invalid_argument("a request has no tokens, or a prompt of less than none");
    if (r.p.size() != p.size()) return invalid_argument("a request does not have one p a drafter");
    for (size_t d = 0; d < p.size(); ++d) {
      if (!(r.p[d] >= 0 && r.p[d] <= 1)) return invalid_argument("a request's p is not in [0, 1]");
      p[d] += r.p[d];
    }
    context += r.prompt + r.tokens / 2.0;
    result_.tokens += r.tokens;
  }
  if (requests_.empty()) return invalid_argument("there are no requests");
  if (o_.verifiers.empty()) return invalid_argument("there is no verifier");
  if (o_.most < 1 || o_.most > kMaxDraftDepth)
    return invalid_argument("windows must be from 1 to " + std::to_string(kMaxDraftDepth));
  for (const VerifierChoice& verifier : o_.verifiers) {
    if (verifier.gpus < 1) return invalid_argument("a verifier has no GPU");
  }
  if (o_.max_race_batch < 1) return invalid_argument("a racing worker's batch is less than 1");
  if (!(o_.shared >= 0 && o_.shared <= 1)) return invalid_argument("the share of places that are hard for all is not in [0, 1]");
  if (!(o_.kv_transfer_ms >= 0)) return invalid_argument("a token's transfer takes less than no time");
  if (o_.drafters.size() > 32) return invalid_argument("there are more than 32 drafters");
  const double count = static_cast<double>(requests_.size());
  question_ = {.batch = count, .gpus = o_.gpus, .verifiers = o_.verifiers, .drafters = o_.drafters, .context = context / count};
  question_.most = o_.most;
  question_.form = o_.form;
  for (size_t d = 0; d < p.size(); ++d) question_.drafters[d].p = p[d] / count;
  if (mode_ != SimulationMode::kOff && p.empty()) return invalid_argument("there is no drafter");
  const bool ours = mode_ == SimulationMode::kOurs;  // it may leave any request without a draft later
  question_.may_be_plain = mode_ == SimulationMode::kOff;
  question_.may_couple = mode_ == SimulationMode::kVanilla || ours;
  if (ours) question_.form = WindowForm::kDecoupled;
  question_.may_decouple = at_least(SimulationMode::kDecoupled);
  if (!question_.may_decouple) question_.verifiers.resize(1);
  std::vector<Plan> considered;
  plan_ = make_plan(question_, &considered);
  if (plan_.speed <= 0) return invalid_argument("no verifier fits " + std::to_string(o_.gpus) + " GPUs");
  decide(0, explain(question_, plan_, considered));
  return Status();
}

void Simulation::place() {
  groups_.resize(static_cast<size_t>(o_.gpus / plan_.gpus()));
  left_ = requests_.size();
  for (size_t i = 0; i < requests_.size(); ++i) {
    const size_t g = i * groups_.size() / requests_.size();  // a prompt's samples stay together
    Run r;
    r.request = static_cast<int32_t>(i);
    r.drafter = plan_.drafter;
    r.p = plan_.drafter < 0 ? 0 : requests_[i].p[static_cast<size_t>(plan_.drafter)];
    if (plan_.drafter >= 0) r.set(plan_.setting);
    groups_[g].runs.push_back(r);
    places_[i].push_back(static_cast<int32_t>(g));
  }
  for (Group& g : groups_) g.drafter = plan_.drafter;
}

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

Run& Simulation::run_of(int32_t request, int32_t group) {
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

void Simulation::schedule(int32_t group) {
  Group& g = groups_[static_cast<size_t>(group)];
  ++g.version;
  if (g.runs.empty()) return;
  double next = kNever, context = 0, grows = 0, tick = 0;
  for (const Run& r : g.runs) {
    if (r.ready_ms > g.now + kTiny) {
      next = std::min(next, r.ready_ms);
      continue;
    }
    next = std::min(next, g.now + std::max(0.0, request(r).tokens - r.done) / r.speed);
    context += request(r).prompt + r.done;
    grows += r.speed;
    tick = std::max(tick, r.tick_ms);
  }
  if (grows > 0) next = std::min(next, g.now + (kContextGrowth * context + 64.0 * static_cast<double>(g.runs.size())) / grows);
  if (at_least(SimulationMode::kReconfigured)) {
    if (g.next_reconfigure == kNever && tick > 0)
      g.next_reconfigure = g.now + (mode_ == SimulationMode::kOurs ? kOurIterations : kReconfigureIterations) * tick;
    next = std::min(next, g.next_reconfigure);
  }
  events_.push({next, group, g.version});
}

// The replica is gone: another finished.
void Simulation::remove(int32_t request, int32_t group) {
  Group& g = groups_[static_cast<size_t>(group)];
  const Run& r = run_of(request, group);
  result_.raced_tokens += std::max(0.0, r.done - r.begin);
  g.runs.erase(g.runs.begin() + (&r - g.runs.data()));
}

// Ends the responses that are complete in this group.
void Simulation::finish(int32_t group, double ms) {
  std::vector<int32_t> touched;
  std::vector<Run>& runs = groups_[static_cast<size_t>(group)].runs;
  for (size_t i = 0; i < runs.size();) {
    const Run r = runs[i];
    if (r.done < request(r).tokens - kTiny) {
      ++i;
      continue;
    }
    runs.erase(runs.begin() + static_cast<std::ptrdiff_t>(i));
    result_.finish_ms[static_cast<size_t>(r.request)] = ms;
    --left_;
    for (const int32_t other : places_[static_cast<size_t>(r.request)]) {
      if (other == group) continue;
      advance(other, ms);
      remove(r.request, other);
      touched.push_back(other);
    }
    places_[static_cast<size_t>(r.request)].clear();
  }
  touched.push_back(group);
  for (const int32_t t : touched) {
    Group& g = groups_[static_cast<size_t>(t)];
    price(t);
    schedule(t);
    if (!g.runs.empty() || !at_least(SimulationMode::kFastestOfN)) continue;
    g.drafter = -1;
    g.next_reconfigure = kNever;
    raced_ = true;
  }
  if (raced_ && !assigning_) {
    events_.push({ms + kAssignEvery, -1, 0});
    assigning_ = true;
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
  optimiser.best_depth(times, odds, o_.most, 0);
  for (size_t i = 0; i < g->runs.size(); ++i) g->runs[i].set({optimiser.row_depth()[i], DraftMode::kCoupled});
  result_.num_reconfigured += static_cast<int64_t>(g->runs.size());
}

// From the front computed anew, from the back transferred, until both meet.
double Simulation::rebuild_ms(double tokens) const {
  tokens = std::max(tokens, 1.0);
  const double compute = o_.verifiers[plan_.verifier].cost.verify_ms(1, tokens, tokens / 2) / tokens;
  return tokens / (1 / compute + (o_.kv_transfer_ms > 0 ? 1 / o_.kv_transfer_ms : 0));
}

void Simulation::race(const Racer& racer, double ms) {
  const int32_t name = static_cast<int32_t>(racer.request), first = places_[racer.request].front();
  advance(first, ms);
  const Run& leader = run_of(name, first);
  Group& g = groups_[static_cast<size_t>(racer.worker)];
  g.drafter = racer.drafter;
  Run r;
  r.request = name;
  r.drafter = racer.drafter;
  r.p = requests_[racer.request].p[static_cast<size_t>(racer.drafter)];
  r.begin = r.done = leader.done;
  const double context = request(r).prompt + r.done;
  r.ready_ms = ms + rebuild_ms(context);
  // Its own p is not known yet: what suits the drafter's mean.
  const WindowCosts c = costs(g, context);
  const double mean = question_.drafters[static_cast<size_t>(racer.drafter)].p, batch = o_.max_race_batch;
  const WindowChoice coupled = best_window(WindowForm::kCoupled, mean, c, batch, std::max(2.0, batch), o_.most);
  WindowChoice decoupled;
  if (plan_.draft_gpus > 0) decoupled = best_window(question_.form, mean, c, batch, std::max(2.0, batch), o_.most);
  const bool better = decoupled.speed > coupled.speed;
  r.set({.window = (better ? decoupled : coupled).window, .mode = better ? DraftMode::kDecoupled : DraftMode::kCoupled});
  g.runs.push_back(r);
  places_[racer.request].push_back(racer.worker);
  ++result_.num_racers;
}

void Simulation::assign(double ms) {
  assigning_ = false;
  std::vector<RaceWorker> workers;
  size_t free = 0;
  for (size_t g = 0; g < groups_.size(); ++g) {
    const int32_t load = static_cast<int32_t>(groups_[g].runs.size());
    free += load == 0;
    workers.push_back({.id = static_cast<int32_t>(g), .drafter = load == 0 ? -1 : groups_[g].drafter, .load = load});
  }
  std::vector<RaceRequest> requests;
  for (size_t i = 0; i < places_.size(); ++i) {
    if (places_[i].empty()) continue;
    RaceRequest r{.request = i, .p = 0, .drafters = 0};
    for (const int32_t place : places_[i]) {
      const int32_t d = groups_[static_cast<size_t>(place)].drafter;
      r.drafters |= 1u << d;
      r.p = std::max<double>(r.p, requests_[i].p[static_cast<size_t>(d)]);
    }
    requests.push_back(r);
  }
  const std::vector<Racer> racers = assign_racers(requests, ladder_, workers, o_.max_race_batch);
  std::vector<int32_t> touched;
  for (const Racer& racer : racers) {
    advance(racer.worker, ms);
    race(racer, ms);
    for (const int32_t place : places_[racer.request]) touched.push_back(place);
  }
  std::sort(touched.begin(), touched.end());
  touched.erase(std::unique(touched.begin(), touched.end()), touched.end());
  for (const int32_t t : touched) {
    advance(t, ms);
    price(t);
    schedule(t);
  }
  if (!racers.empty()) {
    decide(ms, std::to_string(free) + " free workers, " + std::to_string(requests.size()) +
                   " requests: " + std::to_string(racers.size()) + " racers begin");
  }
}

Result<SimulationResult> Simulation::run() {
  OTR_RETURN_IF_ERROR(plan());
  place();
  ladder_ = ladder_order(question_, plan_.verifier, o_.max_race_batch);
  result_.finish_ms.assign(requests_.size(), 0);
  for (int32_t g = 0; g < static_cast<int32_t>(groups_.size()); ++g) {
    price(g);
    schedule(g);
  }
  while (left_ > 0) {
    const Event e = events_.top();
    events_.pop();
    if (e.group < 0) {
      assign(e.ms);
      continue;
    }
    Group& g = groups_[static_cast<size_t>(e.group)];
    if (e.version != g.version) continue;
    advance(e.group, e.ms);
    result_.makespan_ms = e.ms;
    if (g.next_reconfigure <= e.ms) reconfigure_group(e.group, e.ms);
    finish(e.group, e.ms);
  }
  double busy = 0;
  for (const Group& g : groups_) busy += g.busy_ms;
  result_.plan = plan_;
  result_.num_workers = static_cast<int32_t>(groups_.size());
  result_.busy_share = busy / (result_.makespan_ms * static_cast<double>(groups_.size()));
  return std::move(result_);
}

}  // namespace

const char* simulation_mode_name(SimulationMode mode) {
  constexpr std::array<const char*, kNumSimulationModes> kNames = {"off",     "vanilla",  "decoupled", "reconfigured",
                                                                   "fastest", "leapfrog", "ours"};
  return kNames[static_cast<size_t>(mode)];
}

Result<SimulationResult> simulate(SimulationMode mode, const SimulationOptions& options,
                                  std::span<const SimulatedRequest> requests) {
  return Simulation(mode, options, requests).run();
}

}  // namespace otr
