// StepSimulation: the state of simulated training steps and its events. See step_simulator.h for what it is; this is its
// inside.
//
//   step_simulator.cpp  what is checked, the clock, who waits for what
//   step_dealing.cpp    which worker gets which samples of a step, and what is expected of groups
//   step_moves.cpp      how samples go on, end and migrate
//
// Single-threaded.
#pragma once

#include <limits>
#include <queue>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "sched/step_simulator.h"

namespace otr {

// One pass of a worker's batch.
struct StepPass {
  double ms = 0;
  int32_t window = 0;  // tokens that are drafted; 0: plain decoding
};
// The faster of plain decoding and the best coupled window at this mean p.
StepPass step_pass(const CostModel& cost, int32_t most, double batch, double context, double p);
// How long a worker takes for samples of these lengths, in this order.
double part_ms(const StepOptions& o, double prompt, std::span<const double> tokens, double p);

inline double repricing_tokens(double context, double batch) {
  return 0.05 * context + 64 * batch;
}  // of all contexts together

class StepSimulation {
 public:
  StepSimulation(StepMode mode, const StepOptions& o, const StepWorkload& work) : mode_(mode), o_(o), work_(work) {}

  Result<StepResult> run();

 private:
  static constexpr double kTiny = 1e-7;  // tokens
  struct Run {
    int32_t sample = 0;
    double done = 0, speed = 0;  // tokens, tokens a millisecond
  };
  struct Worker {
    int32_t step = -1;  // begun last
    int32_t version = 0;
    bool runs_part = false;
    double begin_ms = 0, now = 0, ready_ms = 0;  // what runs says holds at `now`; nobody goes on before ready_ms
    std::vector<Run> runs;
    size_t next = 0;     // of its queue in this step
    uint64_t event = 0;  // that counts
  };
  struct Group {
    int32_t unfinished = 0;
    OutlierRule rule;
  };
  struct Step {
    bool is_dealt = false, has_begun = false;
    int64_t left = 0;                          // samples that its training waits for
    std::vector<std::vector<int32_t>> queues;  // [workers] samples
    std::vector<int32_t> group_of_worker;
    std::vector<double> foretold_ms;  // [groups] of a worker's part; empty: not asked
    std::vector<Group> groups;
  };
  // What a step's plan is made of.
  struct Asked {
    AllocationQuestion question;
    double prompt = 0, p = 0;  // means
    size_t samples = 0;        // of a group
  };
  struct Event {
    static constexpr int32_t kTrained = -1;
    double ms;
    int32_t worker;
    uint64_t version;
    bool operator>(const Event& o) const { return std::tie(ms, worker) > std::tie(o.ms, o.worker); }
  };

  bool at_least(StepMode m) const { return static_cast<int>(mode_) >= static_cast<int>(m); }
  int32_t epoch_of(int32_t step) const { return step / work_.steps_per_epoch; }
  size_t first_prompt(int32_t step) const;
  Step& step(int32_t s) { return steps_[static_cast<size_t>(s)]; }
  Worker& worker(int32_t w) { return workers_[static_cast<size_t>(w)]; }
  SimulatedSample& sample(int32_t i) { return result_.samples[static_cast<size_t>(i)]; }
  double p_of(int32_t i) const { return p_[static_cast<size_t>(i)]; }

  // step_simulator.cpp
  Status check() const;
  void load();
  bool may_begin(int32_t s) const;
  void begin_waiting(double ms);
  void begin(int32_t w, double ms);
  void end_part(int32_t w, double ms);
  void one_less(int32_t s, double ms);
  void train(double ms);
  void finish_result();
  // step_dealing.cpp
  void deal(int32_t s);
  void take_longest(int32_t w);
  std::vector<double> history(int32_t epoch, int32_t s) const;
  double growth_limit(int32_t s) const;
  std::vector<double> foretold(int32_t s, const std::vector<int32_t>& prompts, int32_t workers) const;
  std::vector<int32_t> equal_shares() const;
  Asked ask(int32_t s, const std::vector<std::vector<int32_t>>& groups, const std::vector<double>& lengths) const;
  Result<Allocation> two_tier(const Asked& asked) const;
  std::vector<int32_t> shares(int32_t s, const std::vector<std::vector<int32_t>>& groups, const std::vector<double>& lengths);
  std::vector<int32_t> balance(int32_t s, Asked asked, const std::vector<std::vector<int32_t>>& groups,
                               std::vector<std::vector<int32_t>> starts);
  std::vector<std::vector<int32_t>> group_samples(int32_t s, const std::vector<std::vector<int32_t>>& groups);
  void set_rules(int32_t s, const std::vector<std::vector<int32_t>>& groups, const std::vector<double>& lengths);
  void score_ranking(int32_t s);
  void decide(int32_t s, const std::string& text);
  // step_moves.cpp
  void advance(int32_t w, double ms);
  void fill(int32_t w, double ms);
  void price(int32_t w);
  void schedule(int32_t w);
  bool is_outlier(const Run& r);
  void end_samples(int32_t w, double ms, std::vector<int32_t>* touched);
  void move_outliers(int32_t w, double ms, std::vector<int32_t>* touched);
  int32_t worker_within_step(int32_t s, int32_t group) const;
  int32_t worker_of_next_step(int32_t s) const;
  void put_off(const Run& r, double ms, std::vector<int32_t>* touched);
  void on_worker(int32_t w, double ms);

  const StepMode mode_;
  const StepOptions& o_;
  const StepWorkload& work_;
  std::vector<Worker> workers_;
  std::vector<Step> steps_;
  std::vector<int32_t> first_sample_;         // by step, and the end
  std::vector<float> p_;                      // by sample, as it is drafted for
  std::vector<int32_t> prompt_tokens_;        // by sample
  std::vector<double> carried_;               // by sample: tokens that it brought from another worker
  std::vector<std::vector<double>> medians_;  // by epoch and prompt
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  int32_t trained_ = 0;  // steps
  bool training_ = false;
  int32_t num_ranked_ = 0;  // steps
  StepResult result_;
};

}  // namespace otr
