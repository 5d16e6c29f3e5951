// Planning speculation over many GPUs, as SpecActor does (section 4), and with a better model of decoupled speed.
//
// When a rollout begins: which drafter, how many GPUs verify and draft together (a group), and in which windows (algorithm 1).
// Every 1,000 iterations: window and mode of the requests whose drafts are kept less often than the mean, as if each ran alone
// (algorithm 2). When workers come free: which of them race for which request with which drafter (algorithm 3 of the paper's
// second version, and the first's lines 1-3, which give each free worker its drafter).
//
// Ours beside the paper's: PlanQuestion::form chooses the model of decoupled speed (spec/window_speed.h), and may_couple also
// considers groups that draft and verify in turns on the same GPUs, and plain decoding.
//
// Thread safety: pure functions and values.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "sched/window.h"
#include "spec/window_speed.h"

namespace otr {

// One copy of the target on some GPUs, and what its passes cost.
struct VerifierChoice {
  int32_t gpus = 1;
  CostModel cost;
};
// A drafter runs on one GPU.
struct DrafterChoice {
  std::string name;
  bool has_model = false;
  CostModel cost;  // its levels; the target's part is not looked at
  double p = 0;    // the chance that a drafted token is kept, over all requests
};

struct PlanQuestion {
  double batch = 0;  // requests, B
  int32_t gpus = 0;  // in all, G
  std::vector<VerifierChoice> verifiers;
  std::vector<DrafterChoice> drafters;
  double context = 0;                        // tokens of a request
  int32_t most = 16;                         // the widest window
  WindowForm form = WindowForm::kDecoupled;  // or kPaperDecoupled
  int32_t draft_gpus = 0;                    // of a group, if decoupled; 0: as many as are best
  const char* unit = "GPUs";                 // what they are called in explain()
  bool may_be_plain = true, may_couple = true, may_decouple = true;
};

// A way to run the rollout: the cluster is divided into groups of verify_gpus + draft_gpus.
struct Plan {
  int32_t drafter = -1;  // -1: plain decoding, on verify_gpus
  size_t verifier = 0;   // of PlanQuestion::verifiers
  int32_t verify_gpus = 0, draft_gpus = 0;
  WindowSetting setting = {};
  double batch = 0;  // of a group
  double speed = 0;  // tokens a millisecond of a request; 0: there is no plan

  int32_t gpus() const { return verify_gpus + draft_gpus; }
};

// Of a drafter (-1: plain decoding) with a verifier: the costs that plans, reconfigurations and simulations agree on.
WindowCosts window_costs(const PlanQuestion& question, size_t verifier, int32_t drafter, int32_t draft_gpus);

// The fastest plan; `considered`, if not null, gets the best window of every placement, in the order in which they were tried.
Plan make_plan(const PlanQuestion& question, std::vector<Plan>* considered = nullptr);
// "decoupled 'small' on 4 + 1, windows of 5".
std::string plan_name(std::span<const DrafterChoice> drafters, const Plan& plan);
// What was decided and why, in lines.
std::string explain(const PlanQuestion& question, const Plan& plan, std::span<const Plan> considered);

inline constexpr int64_t kReconfigureIterations = 1000;

struct RequestWindow {
  uint64_t request = 0;
  double p = 0;  // as it was seen
  WindowSetting setting = {};
};
// Who is looked at, and in which batch; as it stands, the paper's algorithm.
struct ReconfigureRule {
  double batch = 1;       // what a request is thought to run in
  double line = 1;        // the batch to which bounds are drawn
  bool everyone = false;  // not only those whose p is below the mean
  bool may_decouple = true;
};
// Sets window and mode of those requests to what is fastest for each. Returns how many were looked at.
int32_t reconfigure(const ReconfigureRule& rule, WindowForm form, const WindowCosts& costs, int32_t most,
                    std::span<RequestWindow> requests);

// Drafters by the speed of their best coupled windows at their own p, the fastest first: the draft ladder at one batch.
std::vector<int32_t> ladder_order(const PlanQuestion& question, size_t verifier, double batch);

struct RaceRequest {
  uint64_t request = 0;
  double p = 0;
  uint32_t drafters = 0;  // bit d: drafter d works for it already
};
struct RaceWorker {
  int32_t id = 0;
  int32_t drafter = -1;  // -1: it is free
  int32_t load = 0;      // requests that it verifies
};
struct Racer {
  uint64_t request;
  int32_t drafter, worker;
  bool operator==(const Racer&) const = default;
};
// Gives free workers a drafter, and requests more drafters: those of the lowest p first, each with all drafters in the ladder's
// order, each by its worker of the least load, while that is below `max_batch`. Sets the workers' drafters and loads.
std::vector<Racer> assign_racers(std::span<const RaceRequest> requests, std::span<const int32_t> ladder,
                                 std::span<RaceWorker> workers, int32_t max_batch);

}  // namespace otr
