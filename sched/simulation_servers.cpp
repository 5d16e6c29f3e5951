// Workers that draft for others, as the engine has them: a level for all their requests at a time, and algorithm 2 for all of
// these together every so many levels.
#include <algorithm>

#include "sched/simulation.h"

namespace otr {

// A level for everyone whom it drafts for now: so many requests.
double Simulation::level_ms(size_t server, double* batch) const {
  double context = 0;
  *batch = 0;
  for (size_t g = server; g < groups_.size(); g += servers_.size()) {
    if (!is_served(groups_[g])) continue;
    for (const Run& r : groups_[g].runs) ++*batch, context += request(r).prompt + r.done;
  }
  return *batch == 0 ? 0 : question_.drafters[static_cast<size_t>(plan_.drafter)].cost.draft_ms(*batch, context / *batch);
}

// Its requests have changed.
void Simulation::count_levels(size_t server, double ms) {
  SimulatedServer& s = servers_[server];
  if (s.level_ms > 0) s.left -= (ms - s.now) / s.level_ms;
  s.now = ms;
  double batch = 0;
  s.level_ms = level_ms(server, &batch);
  ++s.version;
  if (s.level_ms > 0) events_.push({ms + std::max(0.0, s.left) * s.level_ms, Event::of_server(server), s.version});
}

void Simulation::reconfigure_server(size_t server, double ms) {
  servers_[server].left = static_cast<double>(o_.reconfigure_every);
  servers_[server].now = ms;
  std::vector<RequestWindow> windows;
  double context = 0;
  for (size_t g = server; g < groups_.size(); g += servers_.size()) {
    if (!is_served(groups_[g])) continue;
    advance(static_cast<int32_t>(g), ms);
    for (const Run& r : groups_[g].runs) {
      windows.push_back({.request = static_cast<uint64_t>(r.request), .p = r.p, .setting = r.setting});
      context += request(r).prompt + r.done;
    }
  }
  const double batch = static_cast<double>(windows.size());
  WindowCosts c = window_costs(question_, plan_.verifier, plan_.drafter, 1);
  c.drafters = 1 / verifiers_of_a_server();
  c.context = context / batch;
  const int32_t changed =
      reconfigure({.line = std::max(2.0, batch / verifiers_of_a_server())}, question_.form, c, o_.most, windows);
  size_t next = 0;
  for (size_t g = server; g < groups_.size(); g += servers_.size()) {
    if (!is_served(groups_[g])) continue;
    for (Run& r : groups_[g].runs) r.set(windows[next++].setting);
    price(static_cast<int32_t>(g));
    schedule(static_cast<int32_t>(g));
  }
  result_.num_reconfigured += changed;
  if (changed > 0) {
    decide(ms, "draft worker " + std::to_string(server) + ": " + std::to_string(changed) + " of " +
                   std::to_string(windows.size()) + " requests get windows of their own");
  }
}

}  // namespace otr
