// Simulation: the state of a simulated rollout and its events. See simulator.h for what it is; this is its inside.
//
//   simulator.cpp          the plan, the groups, the clock
//   simulation_servers.cpp workers that draft for others, as the engine has them
//   simulation_speed.cpp   how fast the requests of a group are, and in which windows
//   simulation_moves.cpp   requests and replicas that go to other groups
//
// Single-threaded.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <queue>
#include <string>
#include <tuple>
#include <vector>

#include "sched/simulator.h"

namespace otr {

inline constexpr double kNever = std::numeric_limits<double>::infinity();
inline constexpr double kTiny = 1e-7;         // tokens
inline constexpr double kSurest = 1 - 1e-12;  // a chance whose opposite has a logarithm

// A request on a worker.
struct SimulatedRun {
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
  double log_wrong = 0;                 // of 1 - p^w

  void set(WindowSetting s) {
    setting = s;
    whole = std::pow(p, s.window);
    log_wrong = std::log1p(-std::min(whole, kSurest));
    window_tokens = s.window == 0 ? 0 : coupled_tokens(p, s.window - 1);
  }
};

struct SimulatedGroup {
  std::vector<SimulatedRun> runs;
  int32_t drafter = -1;
  bool races = false;  // its requests are others' too
  double now = 0;      // what the runs say holds then
  double next_reconfigure = kNever;
  double busy_ms = 0;
  uint64_t version = 0;  // of its event
};

// A worker that drafts for others.
struct SimulatedServer {
  double now = 0;        // what follows holds then
  double level_ms = 0;   // 0: it has nobody to draft for
  double left = 0;       // levels until it reconfigures
  uint64_t version = 0;  // of its event
};

struct SimulationEvent {
  static constexpr int32_t kAssign = -1;  // free workers are assigned
  static int32_t of_server(size_t server) { return kAssign - 1 - static_cast<int32_t>(server); }
  static size_t server_of(int32_t group) { return static_cast<size_t>(kAssign - 1 - group); }

  double ms;
  int32_t group;  // or one of those above
  uint64_t version;
  bool operator>(const SimulationEvent& o) const { return std::tie(ms, group) > std::tie(o.ms, o.group); }
};

class Simulation {
 public:
  Simulation(SimulationMode mode, const SimulationOptions& o, std::span<const SimulatedRequest> requests)
      : mode_(mode), o_(o), requests_(requests), places_(requests.size()) {}

  Result<SimulationResult> run();

 private:
  using Run = SimulatedRun;
  using Group = SimulatedGroup;
  using Event = SimulationEvent;
  bool at_least(SimulationMode m) const { return static_cast<int>(mode_) >= static_cast<int>(m); }
  WindowCosts costs(const Group& g, double context) const {
    WindowCosts c =
        window_costs(question_, plan_.verifier, g.drafter, plan_.draft_gpus == 0 ? plan_.verify_gpus : plan_.draft_gpus);
    if (shares_drafters()) c.drafters = g.races ? 1 : 1 / verifiers_of_a_server();
    c.context = context;
    return c;
  }
  double verifiers_of_a_server() const { return 1.0 * o_.gpus / o_.verifiers.front().gpus / o_.draft_workers - 1; }
  bool is_engine() const { return o_.draft_workers > 0 || o_.moves; }
  bool optimises_ticks() const { return is_engine() && mode_ == SimulationMode::kOurs && plan_.draft_gpus == 0; }
  bool is_served(const Group& g) const { return shares_drafters() && !g.races; }
  bool shares_drafters() const { return o_.draft_workers > 0 && question_.may_decouple && !question_.may_couple; }
  const SimulatedRequest& request(const Run& r) const { return requests_[static_cast<size_t>(r.request)]; }
  void decide(double ms, const std::string& text);
  Status plan();
  Status plan_shared();
  void place();
  void advance(int32_t group, double ms);
  void choose_windows(Group* g);
  double rows_of(const Run& r) const;
  struct ServedLoad {  // what a level and a pass take; requests of the drafter; the log of the chance that all of the
                       // verifier's are wrong
    double draft_ms = 0, verify_ms = 0, served = 0, log_wrong = 0;
  };
  static WindowTimes served_times(const Run& r, const ServedLoad& load);
  double served_pass_ms(const Group& g, const WindowCosts& c, ServedLoad load) const;
  void price(int32_t group);
  void price_leapfrog(int32_t group);
  void schedule(int32_t group);
  void finish(int32_t group, double ms);
  void remove(int32_t request, int32_t group);
  void reconfigure_group(int32_t group, double ms);
  double level_ms(size_t server, double* batch) const;
  void count_levels(size_t server, double ms);
  void reconfigure_server(size_t server, double ms);
  void optimise_group(Group* g, double context);
  void assign(double ms);
  bool take_half(int32_t to, double ms);
  void race(const Racer& racer, double ms);
  double rebuild_ms(double tokens) const;
  Run& run_of(int32_t request, int32_t group);

  const SimulationMode mode_;
  const SimulationOptions& o_;
  const std::span<const SimulatedRequest> requests_;
  PlanQuestion question_;
  Plan plan_;
  std::vector<Group> groups_;
  std::vector<SimulatedServer> servers_;
  std::vector<std::vector<int32_t>> places_;  // by request: its groups
  std::vector<int32_t> ladder_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  bool assigning_ = false, raced_ = false;  // an assignment is due; workers have come free
  size_t left_ = 0;
  SimulationResult result_;
};

}  // namespace otr
