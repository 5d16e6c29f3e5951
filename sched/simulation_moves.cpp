// Requests and replicas that go to other groups.
#include <algorithm>

#include "sched/simulation.h"

namespace otr {

// From the front computed anew, from the back transferred, until both meet.
double Simulation::rebuild_ms(double tokens) const {
  tokens = std::max(tokens, 1.0);
  const double compute = o_.verifiers[plan_.verifier].cost.verify_ms(1, tokens, tokens / 2, tokens) / tokens;
  return tokens / (1 / compute + (o_.kv_transfer_ms > 0 ? 1 / o_.kv_transfer_ms : 0));
}

// Of the group with the most requests half, the shortest first, as Placement does. False: none has two that are its alone.
bool Simulation::take_half(int32_t to, double ms) {
  const auto fewer = [](const Group& a, const Group& b) { return a.runs.size() < b.runs.size(); };
  const auto busiest = std::max_element(groups_.begin(), groups_.end(), fewer);
  const int32_t from = static_cast<int32_t>(busiest - groups_.begin());
  if (busiest->runs.size() < 2) return false;
  advance(from, ms);
  std::vector<Run>& runs = busiest->runs;
  const auto shorter = [this](const Run& a, const Run& b) { return request(a).prompt + a.done < request(b).prompt + b.done; };
  std::stable_sort(runs.begin(), runs.end(), shorter);
  Group& taker = groups_[static_cast<size_t>(to)];
  taker.drafter = busiest->drafter;
  taker.races = busiest->races;
  for (size_t left = runs.size() / 2; left > 0; --left) {
    Run r = runs.front();
    runs.erase(runs.begin());
    r.ready_ms = ms + rebuild_ms(request(r).prompt + r.done);
    if (is_served(taker)) r.set(plan_.setting);  // its drafter knows it no more
    std::vector<int32_t>& places = places_[static_cast<size_t>(r.request)];
    std::replace(places.begin(), places.end(), from, to);
    taker.runs.push_back(r);
  }
  ++result_.num_moves;
  for (const int32_t g : {from, to}) {
    price(g);
    schedule(g);
  }
  return true;
}

void Simulation::race(const Racer& racer, double ms) {
  const int32_t name = static_cast<int32_t>(racer.request), first = places_[racer.request].front();
  advance(first, ms);
  const Run& leader = run_of(name, first);
  Group& g = groups_[static_cast<size_t>(racer.worker)];
  g.drafter = racer.drafter;
  g.races = true;
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
  if (plan_.draft_gpus > 0 && !is_engine())
    decoupled = best_window(question_.form, mean, c, batch, std::max(2.0, batch), o_.most);
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
    // Those for whom others draft are not of the ladder: their drafter is none that a racer has.
    const int32_t drafter = is_served(groups_[g]) ? static_cast<int32_t>(o_.drafters.size()) : groups_[g].drafter;
    workers.push_back({.id = static_cast<int32_t>(g), .drafter = load == 0 ? -1 : drafter, .load = load});
  }
  std::vector<RaceRequest> requests;
  for (size_t i = 0; i < places_.size(); ++i) {
    if (places_[i].empty()) continue;
    RaceRequest r{.request = i, .p = 0, .drafters = 0};
    for (const int32_t place : places_[i]) {
      const Group& g = groups_[static_cast<size_t>(place)];
      const int32_t d = g.drafter;
      r.drafters |= is_served(g) ? 0 : 1u << d;
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

}  // namespace otr
