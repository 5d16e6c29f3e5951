#include "sched/step_simulator.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "sched/step_simulation.h"
#include "spec/forest.h"

namespace otr {

size_t StepSimulation::first_prompt(int32_t s) const {
  const size_t k = static_cast<size_t>(s % work_.steps_per_epoch);
  return k * work_.epochs.front().size() / static_cast<size_t>(work_.steps_per_epoch);
}

Status StepSimulation::check() const {
  if (work_.epochs.empty() || work_.steps_per_epoch < 1) return invalid_argument("there is no step");
  const size_t prompts = work_.epochs.front().size(), count = static_cast<size_t>(work_.steps_per_epoch);
  const int32_t least = work_.epochs.size() == 1 ? 1 : o_.puts_off ? 3 : 2;
  if (work_.steps_per_epoch < least)
    return invalid_argument("an epoch has fewer than " + std::to_string(least) +
                            " steps: a prompt would be asked again before its history is there");
  if (o_.workers < 1 || o_.groups < 1) return invalid_argument("there is no worker or no group");
  if (o_.groups > o_.workers) return invalid_argument("there are more groups than workers");
  if (static_cast<size_t>(o_.groups) > prompts / count) return invalid_argument("a step has fewer prompts than groups");
  if (o_.max_batch < 1) return invalid_argument("the largest batch is less than 1");
  if (o_.least_workers < 1 || (o_.most_workers != 0 && o_.most_workers < o_.least_workers))
    return invalid_argument("a group's workers must be at least 1, the most no less than the least");
  if (o_.most < 1 || o_.most > kMaxDraftDepth)
    return invalid_argument("windows must be from 1 to " + std::to_string(kMaxDraftDepth));
  if (!(o_.train_ms >= 0 && o_.train_token_ms >= 0)) return invalid_argument("training takes less than no time");
  for (const auto& epoch : work_.epochs) {
    if (epoch.size() != prompts) return invalid_argument("epochs differ in their prompts");
    for (const auto& samples : epoch) {
      if (samples.empty()) return invalid_argument("a prompt has no samples");
      for (const StepSample& one : samples) {
        if (one.tokens < 1 || one.prompt < 0) return invalid_argument("a sample has no tokens, or a prompt of less than none");
        if (!(one.p >= 0 && one.p <= 1)) return invalid_argument("a sample's p is not in [0, 1]");
      }
    }
  }
  return Status();
}

void StepSimulation::load() {
  std::vector<int32_t> tokens;
  for (const auto& epoch : work_.epochs) {
    std::vector<double>& medians = medians_.emplace_back();
    for (const auto& samples : epoch) {
      tokens.clear();
      for (const StepSample& one : samples) tokens.push_back(one.tokens);
      medians.push_back(median_tokens(tokens));
    }
  }
  const int32_t num_steps = work_.num_steps();
  steps_.resize(static_cast<size_t>(num_steps));
  result_.steps.resize(steps_.size());
  for (int32_t s = 0; s < num_steps; ++s) {
    first_sample_.push_back(static_cast<int32_t>(p_.size()));
    const auto& epoch = work_.epochs[static_cast<size_t>(epoch_of(s))];
    const size_t end = s % work_.steps_per_epoch + 1 == work_.steps_per_epoch ? epoch.size() : first_prompt(s + 1);
    for (size_t q = first_prompt(s); q < end; ++q) {
      for (const StepSample& one : epoch[q]) {
        p_.push_back(at_least(StepMode::kHistory) && epoch_of(s) > 0 ? one.p : 0);  // without history nothing is drafted
        prompt_tokens_.push_back(one.prompt);
        result_.samples.push_back({.step = s, .trained_step = s, .tokens = one.tokens});
        ++step(s).left;
      }
    }
  }
  first_sample_.push_back(static_cast<int32_t>(p_.size()));
  carried_.resize(p_.size());
  workers_.resize(static_cast<size_t>(o_.workers));
}

bool StepSimulation::may_begin(int32_t s) const {
  if (mode_ == StepMode::kSynchronous) return trained_ >= s;
  if (mode_ == StepMode::kOneStep && s > 0 && steps_[static_cast<size_t>(s - 1)].left > 0) return false;
  return trained_ >= s - 1;
}

// A worker whose part of a step is empty goes on at once.
void StepSimulation::begin(int32_t w, double ms) {
  Worker& one = worker(w);
  while (!one.runs_part && one.step + 1 < work_.num_steps() && may_begin(one.step + 1)) {
    ++one.step;
    if (!step(one.step).is_dealt) deal(one.step);
    if (!std::exchange(step(one.step).has_begun, true)) result_.steps[static_cast<size_t>(one.step)].begin_ms = ms;
    take_longest(w);
    one.version = trained_;
    one.next = 0;
    one.begin_ms = one.now = one.ready_ms = ms;
    fill(w, ms);
    if (one.runs.empty()) continue;
    one.runs_part = true;
    price(w);
    schedule(w);
  }
}

void StepSimulation::begin_waiting(double ms) {
  for (int32_t w = 0; w < o_.workers; ++w) begin(w, ms);
}

void StepSimulation::end_part(int32_t w, double ms) {
  Worker& one = worker(w);
  one.runs_part = false;
  ++one.event;
  result_.parts.push_back({w, one.step, one.begin_ms, ms});
  begin(w, ms);
}

// A sample of the step is there, or will be in another step.
void StepSimulation::one_less(int32_t s, double ms) {
  if (--step(s).left > 0) return;
  result_.steps[static_cast<size_t>(s)].rollout_ms = ms;
  train(ms);
}

void StepSimulation::train(double ms) {
  if (training_ || trained_ == work_.num_steps() || step(trained_).left > 0) return;
  StepTimes& times = result_.steps[static_cast<size_t>(trained_)];
  times.train_begin_ms = ms;
  times.train_end_ms = ms + o_.train_ms + o_.train_token_ms * static_cast<double>(times.tokens);
  training_ = true;
  events_.push({times.train_end_ms, Event::kTrained, 0});
}

double StepResult::ms_a_step() const {
  size_t first = 0;
  while (warm_ms > 0 && first < steps.size() && steps[first].train_end_ms <= warm_ms) ++first;
  return (end_ms - warm_ms) / static_cast<double>(steps.size() - first);
}

void StepSimulation::finish_result() {
  result_.end_ms = result_.steps.back().train_end_ms;
  if (work_.epochs.size() > 1) result_.warm_ms = result_.steps[static_cast<size_t>(work_.steps_per_epoch) - 1].train_end_ms;
  double busy = 0, last = 0;
  for (const WorkerPart& part : result_.parts) {
    busy += std::max(0.0, part.end_ms - std::max(part.begin_ms, result_.warm_ms));
    last = std::max(last, part.end_ms);
  }
  if (last > result_.warm_ms) result_.busy_share = busy / ((last - result_.warm_ms) * o_.workers);
  if (num_ranked_ > 0) result_.accuracy.held /= num_ranked_, result_.accuracy.near /= num_ranked_;
}

Result<StepResult> StepSimulation::run() {
  OTR_RETURN_IF_ERROR(check());
  load();
  begin_waiting(0);
  while (!events_.empty()) {
    const Event e = events_.top();
    events_.pop();
    if (e.worker == Event::kTrained) {
      training_ = false;
      ++trained_;
      train(e.ms);
      begin_waiting(e.ms);
    } else if (e.version == worker(e.worker).event) {
      on_worker(e.worker, e.ms);
    }
  }
  finish_result();
  return std::move(result_);
}

const char* step_mode_name(StepMode mode) {
  constexpr std::array<const char*, kNumStepModes> kNames = {"synchronous", "one_step", "own_switch", "ranked",
                                                             "migrated",    "two_tier", "history",    "ours"};
  return kNames[static_cast<size_t>(mode)];
}

Result<StepResult> simulate_steps(StepMode mode, const StepOptions& options, const StepWorkload& workload) {
  return StepSimulation(mode, options, workload).run();
}

}  // namespace otr
