// How samples go on, end and migrate.
#include <algorithm>

#include "sched/step_simulation.h"
#include "spec/window_speed.h"

namespace otr {

void StepSimulation::advance(int32_t w, double ms) {
  Worker& one = worker(w);
  const double passed = ms - std::max(one.now, one.ready_ms);
  if (passed > 0) {
    for (Run& r : one.runs) r.done += r.speed * passed;
  }
  one.now = ms;
}

// From its queue, as far as the batch has room. Keys and values of what was drawn elsewhere are computed in passes of their
// own.
void StepSimulation::fill(int32_t w, double ms) {
  Worker& one = worker(w);
  const std::vector<int32_t>& queue = step(one.step).queues[static_cast<size_t>(w)];
  for (; one.next < queue.size() && one.runs.size() < static_cast<size_t>(o_.max_batch); ++one.next) {
    const int32_t i = queue[one.next];
    one.runs.push_back({i, carried_[static_cast<size_t>(i)], 0});
    if (sample(i).move == StepMove::kNone) {
      sample(i).first_version = one.version;
      continue;
    }
    const double tokens = prompt_tokens_[static_cast<size_t>(i)] + carried_[static_cast<size_t>(i)];
    one.ready_ms = std::max(ms, one.ready_ms) + o_.cost.verify_ms(1, tokens, tokens / 2, tokens);
  }
}

void StepSimulation::price(int32_t w) {
  Worker& one = worker(w);
  double context = 0, p = 0;
  const double batch = static_cast<double>(one.runs.size());
  for (const Run& r : one.runs) {
    context += prompt_tokens_[static_cast<size_t>(r.sample)] + r.done;
    p += p_of(r.sample);
  }
  const StepPass pass = step_pass(o_.cost, o_.most, batch, context / batch, p / batch);
  for (Run& r : one.runs) r.speed = coupled_tokens(p_of(r.sample), pass.window) / pass.ms;
}

void StepSimulation::schedule(int32_t w) {
  Worker& one = worker(w);
  double context = 0, speed = 0, next = std::numeric_limits<double>::infinity();
  for (const Run& r : one.runs) {
    const SimulatedSample& s = sample(r.sample);
    next = std::min(next, std::max(0.0, s.tokens - r.done) / r.speed);
    context += prompt_tokens_[static_cast<size_t>(r.sample)] + r.done;
    speed += r.speed;
    const Group& group = step(s.step).groups[static_cast<size_t>(s.group)];
    const double longest = group.rule.longest_tokens;
    if (s.move == StepMove::kNone && r.done <= longest && group.rule.is_late(group.unfinished))
      next = std::min(next, (longest - r.done + 2 * kTiny) / r.speed);
  }
  next = std::min(next, repricing_tokens(context, static_cast<double>(one.runs.size())) / speed);
  events_.push({std::max(one.now, one.ready_ms) + next, w, ++one.event});
}

bool StepSimulation::is_outlier(const Run& r) {
  const SimulatedSample& s = sample(r.sample);
  const Group& group = step(s.step).groups[static_cast<size_t>(s.group)];
  return s.move == StepMove::kNone && group.rule.is_outlier(group.unfinished, r.done);
}

// Where a group has become late, its other workers look for outliers too.
void StepSimulation::end_samples(int32_t w, double ms, std::vector<int32_t>* touched) {
  std::vector<Run>& runs = worker(w).runs;
  for (size_t i = 0; i < runs.size();) {
    SimulatedSample& s = sample(runs[i].sample);
    if (runs[i].done < s.tokens - kTiny) {
      ++i;
      continue;
    }
    runs.erase(runs.begin() + static_cast<std::ptrdiff_t>(i));
    s.end_ms = ms;
    s.worker = w;
    s.last_version = worker(w).version;
    StepTimes& times = result_.steps[static_cast<size_t>(s.trained_step)];
    ++times.samples;
    times.tokens += s.tokens;
    if (s.move != StepMove::kToNextStep) {
      Group& group = step(s.step).groups[static_cast<size_t>(s.group)];
      const bool was_late = group.rule.is_late(group.unfinished);
      --group.unfinished;
      if (!was_late && group.rule.is_late(group.unfinished) && at_least(StepMode::kMigrated)) {
        for (int32_t other = 0; other < o_.workers; ++other) {
          if (step(s.step).group_of_worker[static_cast<size_t>(other)] == s.group && worker(other).runs_part &&
              worker(other).step == s.step)
            touched->push_back(other);
        }
      }
    }
    one_less(s.trained_step, ms);
  }
}

// The longest group's worker of the fewest samples: it ends last. -1: nobody outlasts the group.
int32_t StepSimulation::worker_within_step(int32_t s, int32_t group) const {
  const std::vector<int32_t>& groups = steps_[static_cast<size_t>(s)].group_of_worker;
  int32_t best = -1;
  for (int32_t w = 0; w < o_.workers; ++w) {
    const Worker& one = workers_[static_cast<size_t>(w)];
    const int32_t own = groups[static_cast<size_t>(w)];
    if (!one.runs_part || one.step != s || one.runs.empty() || own <= group) continue;
    if (best >= 0) {
      const int32_t best_group = groups[static_cast<size_t>(best)];
      const size_t fewest = workers_[static_cast<size_t>(best)].runs.size();
      if (own < best_group || (own == best_group && one.runs.size() >= fewest)) continue;
    }
    best = w;
  }
  return best;
}

// The same of the next step, of those who have not ended it.
int32_t StepSimulation::worker_of_next_step(int32_t s) const {
  const Step& next = steps_[static_cast<size_t>(s + 1)];
  int32_t best = -1;
  size_t fewest = 0;
  for (int32_t w = 0; w < o_.workers; ++w) {
    const Worker& one = workers_[static_cast<size_t>(w)];
    if (one.step > s + 1 || (one.step == s + 1 && !one.runs_part)) continue;
    const size_t load = next.queues[static_cast<size_t>(w)].size() - (one.step == s + 1 ? one.next - one.runs.size() : 0);
    const int32_t own = next.group_of_worker[static_cast<size_t>(w)];
    const int32_t best_group = best < 0 ? -2 : next.group_of_worker[static_cast<size_t>(best)];
    if (own < best_group || (own == best_group && load >= fewest)) continue;
    best = w;
    fewest = load;
  }
  return best;
}

void StepSimulation::put_off(const Run& r, double ms, std::vector<int32_t>* touched) {
  SimulatedSample& s = sample(r.sample);
  if (!step(s.step + 1).is_dealt) deal(s.step + 1);
  const int32_t to = worker_of_next_step(s.step);
  s.move = StepMove::kToNextStep;
  s.trained_step = s.step + 1;
  ++result_.num_to_next_step;
  --step(s.step).groups[static_cast<size_t>(s.group)].unfinished;
  ++step(s.trained_step).left;
  step(s.trained_step).queues[static_cast<size_t>(to)].push_back(r.sample);
  if (worker(to).step == s.trained_step) touched->push_back(to);
  one_less(s.step, ms);
}

void StepSimulation::move_outliers(int32_t w, double ms, std::vector<int32_t>* touched) {
  std::vector<Run>& runs = worker(w).runs;
  for (size_t i = 0; i < runs.size();) {
    const Run r = runs[i];
    SimulatedSample& s = sample(r.sample);
    const bool stays = stays_in_step(s.group, o_.groups);
    const int32_t to = is_outlier(r) && stays ? worker_within_step(s.step, s.group) : -1;
    if (!(is_outlier(r) && (stays ? to >= 0 : o_.puts_off && s.step + 1 < work_.num_steps()))) {
      ++i;
      continue;
    }
    runs.erase(runs.begin() + static_cast<std::ptrdiff_t>(i));
    carried_[static_cast<size_t>(r.sample)] = r.done;
    if (!stays) {
      put_off(r, ms, touched);
      continue;
    }
    s.move = StepMove::kWithinStep;
    ++result_.num_within_step;
    step(s.step).queues[static_cast<size_t>(to)].push_back(r.sample);
    touched->push_back(to);
  }
}

void StepSimulation::on_worker(int32_t w, double ms) {
  std::vector<int32_t> touched = {w};
  advance(w, ms);
  end_samples(w, ms, &touched);
  for (size_t i = 0; i < touched.size(); ++i) {  // grows
    advance(touched[i], ms);
    move_outliers(touched[i], ms, &touched);
  }
  std::sort(touched.begin(), touched.end());
  touched.erase(std::unique(touched.begin(), touched.end()), touched.end());
  for (const int32_t t : touched) fill(t, ms);
  for (const int32_t t : touched) {
    if (worker(t).runs.empty()) continue;
    price(t);
    schedule(t);
  }
  for (const int32_t t : touched) {
    if (worker(t).runs.empty() && worker(t).runs_part) end_part(t, ms);
  }
  begin_waiting(ms);
}

}  // namespace otr
