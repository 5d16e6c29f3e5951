#include "sched/simulator.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <utility>

#include "sched/simulation.h"

namespace otr {
namespace {

constexpr double kAssignEvery = 1000;    // ms: workers that come free wait for others so long, but for the engine's
constexpr double kContextGrowth = 0.05;  // speeds are priced anew after
constexpr int64_t kOurIterations = 100;  // between two looks at the windows
constexpr size_t kMostDecisions = 100;

}  // namespace

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
  if (o_.reconfigure_every < 1) return invalid_argument("a reconfiguration comes more often than every iteration");
  if (o_.drafter >= static_cast<int32_t>(p.size()))
    return invalid_argument("draft workers draft with a drafter that is not there");
  if (o_.max_race_batch < 1) return invalid_argument("a racing worker's batch is less than 1");
  if (!(o_.shared >= 0 && o_.shared <= 1))
    return invalid_argument("the share of places that are hard for all is not in [0, 1]");
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
  question_.may_decouple =
      at_least(SimulationMode::kDecoupled) && !(ours && o_.draft_workers > 0);  // such groups are not the engine's
  if (shares_drafters()) return plan_shared();
  if (!question_.may_decouple) question_.verifiers.resize(1);
  std::vector<Plan> considered;
  plan_ = make_plan(question_, &considered);
  if (plan_.speed <= 0) return invalid_argument("no verifier fits " + std::to_string(o_.gpus) + " GPUs");
  decide(0, explain(question_, plan_, considered));
  return Status();
}

// The first workers draft for the others: with the drafter that is fastest so.
Status Simulation::plan_shared() {
  const int32_t gpus = o_.verifiers.front().gpus, workers = o_.gpus / gpus;
  if (2 * o_.draft_workers > workers) return invalid_argument("more than half of the workers draft for others");
  const double batch = question_.batch / (workers - o_.draft_workers);
  for (size_t d = 0; d < o_.drafters.size(); ++d) {
    if (!o_.drafters[d].has_model || (o_.drafter >= 0 && static_cast<size_t>(o_.drafter) != d)) continue;
    Group g;
    g.drafter = static_cast<int32_t>(d);
    const WindowChoice best =
        best_window(question_.form, question_.drafters[d].p, costs(g, question_.context), batch, batch, o_.most);
    if (best.speed <= plan_.speed) continue;
    const int32_t window = o_.window > 0 ? o_.window : best.window;
    plan_ = {.drafter = g.drafter,
             .verify_gpus = gpus,
             .draft_gpus = gpus,
             .setting = {window, DraftMode::kDecoupled},
             .batch = batch,
             .speed = best.speed};
  }
  if (plan_.drafter < 0) return invalid_argument("no drafter has a model that could draft for other workers");
  decide(0, plan_name(question_.drafters, plan_) + ", " + std::to_string(o_.draft_workers) + " of " + std::to_string(workers) +
                " workers draft");
  return Status();
}

void Simulation::place() {
  const int32_t workers = shares_drafters() ? o_.gpus / plan_.verify_gpus - o_.draft_workers : o_.gpus / plan_.gpus();
  groups_.resize(static_cast<size_t>(workers));
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
  if (!shares_drafters()) return;
  servers_.assign(static_cast<size_t>(o_.draft_workers), {.left = static_cast<double>(o_.reconfigure_every)});
}

void Simulation::schedule(int32_t group) {
  Group& g = groups_[static_cast<size_t>(group)];
  ++g.version;
  if (shares_drafters() && at_least(SimulationMode::kReconfigured))
    count_levels(static_cast<size_t>(group) % servers_.size(), g.now);
  if (g.runs.empty()) return;
  double next = kNever, batch = 0, context = 0, grows = 0, tick = 0;
  for (const Run& r : g.runs) {
    if (r.ready_ms > g.now + kTiny) {
      next = std::min(next, r.ready_ms);
      continue;
    }
    next = std::min(next, g.now + std::max(0.0, request(r).tokens - r.done) / r.speed);
    ++batch;
    context += request(r).prompt + r.done;
    grows += r.speed;
    tick = std::max(tick, r.tick_ms);
  }
  if (grows > 0) next = std::min(next, g.now + (kContextGrowth * context + 64.0 * batch) / grows);
  if (at_least(SimulationMode::kReconfigured) && !shares_drafters() && !optimises_ticks()) {
    if (g.next_reconfigure == kNever && tick > 0)
      g.next_reconfigure =
          g.now + static_cast<double>(mode_ == SimulationMode::kOurs ? kOurIterations : o_.reconfigure_every) * tick;
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
    if (g.runs.empty() && o_.moves && take_half(t, ms)) continue;
    price(t);
    schedule(t);
    if (!g.runs.empty() || !at_least(SimulationMode::kFastestOfN)) continue;
    g.drafter = -1;
    g.races = false;
    g.next_reconfigure = kNever;
    raced_ = true;
  }
  if (raced_ && !assigning_) {
    events_.push({ms + (is_engine() ? 0 : kAssignEvery), Event::kAssign, 0});
    assigning_ = true;
  }
}

Result<SimulationResult> Simulation::run() {
  OTR_RETURN_IF_ERROR(plan());
  place();
  ladder_ = ladder_order(question_, plan_.verifier, is_engine() ? 1 : o_.max_race_batch);
  result_.finish_ms.assign(requests_.size(), 0);
  for (int32_t g = 0; g < static_cast<int32_t>(groups_.size()); ++g) {
    price(g);
    schedule(g);
  }
  while (left_ > 0) {
    const Event e = events_.top();
    events_.pop();
    if (e.group == Event::kAssign) {
      assign(e.ms);
      continue;
    }
    if (e.group < Event::kAssign) {
      const size_t server = Event::server_of(e.group);
      if (e.version == servers_[server].version) reconfigure_server(server, e.ms);
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
