// Which worker gets which samples of a step, and what is expected of groups.
#include <algorithm>
#include <cmath>

#include "kernels/base/append_format.h"
#include "sched/step_simulation.h"
#include "spec/window_speed.h"

namespace otr {
namespace {

constexpr size_t kMostPlansTold = 100;

}  // namespace

StepPass step_pass(const CostModel& cost, int32_t most, double batch, double context, double p) {
  StepPass pass = {.ms = cost.target_ms(batch, context)};
  if (p <= 0) return pass;
  const WindowCosts costs = {.verify = &cost, .context = context};
  const WindowChoice best = best_window(WindowForm::kCoupled, p, costs, batch, batch, most);
  if (best.speed * pass.ms > 1) pass = {costs.verify_ms(WindowForm::kCoupled, best.window, batch), best.window};
  return pass;
}

double wave_ms(const CostModel& cost, int32_t most, double batch, double prompt, double tokens, double p) {
  double ms = 0;
  for (double done = 0, next; done < tokens; done = next) {
    next = std::min(tokens, done + repricing_tokens(prompt + done, 1));
    const StepPass pass = step_pass(cost, most, batch, prompt + done, p);
    ms += (next - done) / coupled_tokens(p, pass.window) * pass.ms;
  }
  return ms;
}

void StepSimulation::decide(int32_t s, const std::string& text) {
  if (result_.decisions.size() >= kMostPlansTold) return;
  result_.decisions.push_back("step " + std::to_string(s + 1) + ": " + text);
}

// Of the step's prompts, in an epoch.
std::vector<double> StepSimulation::history(int32_t epoch, int32_t s) const {
  const std::vector<double>& all = medians_[static_cast<size_t>(epoch)];
  const bool is_last = s % work_.steps_per_epoch + 1 == work_.steps_per_epoch;
  const auto begin = all.begin() + static_cast<std::ptrdiff_t>(first_prompt(s));
  return {begin, is_last ? all.end() : all.begin() + static_cast<std::ptrdiff_t>(first_prompt(s + 1))};
}

// Beta by the growth of the step's own prompts: that of all would not be known when an epoch begins.
double StepSimulation::growth_limit(int32_t s) const {
  std::vector<double> growth;
  if (epoch_of(s) >= 2) {
    growth = history(epoch_of(s) - 1, s);
    const std::vector<double> before = history(epoch_of(s) - 2, s);
    for (size_t i = 0; i < growth.size(); ++i) growth[i] /= before[i];
  }
  return outlier_growth(growth);
}

// Workers by group.
std::vector<int32_t> StepSimulation::shares(int32_t s, const std::vector<double>& lengths, int32_t group_samples) {
  std::vector<int32_t> equal;
  for (int64_t g = 0; g < o_.groups; ++g) {
    equal.push_back(static_cast<int32_t>((g + 1) * o_.workers / o_.groups - g * o_.workers / o_.groups));
  }
  if (!at_least(StepMode::kTwoTier) || lengths.empty()) return equal;
  AllocationQuestion question = {.tokens = lengths, .workers = o_.workers, .least = o_.least_workers};
  question.most =
      o_.most_workers > 0 ? o_.most_workers : std::max(o_.least_workers, o_.workers - (o_.groups - 1) * o_.least_workers);
  if (trained_ > 0) {
    const StepTimes& last = result_.steps[static_cast<size_t>(trained_ - 1)];
    question.train_ms = last.train_end_ms - last.train_begin_ms;
  }
  const size_t first = static_cast<size_t>(first_sample_[static_cast<size_t>(s)]);
  const size_t count = static_cast<size_t>(first_sample_[static_cast<size_t>(s) + 1]) - first;
  double prompt = 0, p = 0;
  for (size_t i = first; i < first + count; ++i) prompt += prompt_tokens_[i], p += p_[i];
  prompt /= static_cast<double>(count), p /= static_cast<double>(count);
  const GroupTime tau = [&](double tokens, int32_t workers) {
    const int32_t each = (group_samples + workers - 1) / workers, rest = each % o_.max_batch;
    double ms = each < o_.max_batch ? 0 : each / o_.max_batch * wave_ms(o_.cost, o_.most, o_.max_batch, prompt, tokens, p);
    if (rest > 0) ms += wave_ms(o_.cost, o_.most, rest, prompt, tokens, p);
    return ms;
  };
  const Result<Allocation> planned = o_.tries_first ? best_allocation(question, tau) : allocate_workers(question, tau);
  if (!planned.ok() || !planned.value().infeasible.empty()) {
    ++result_.num_infeasible;
    decide(s, "no plan, equal numbers of workers instead: " +
                  (planned.ok() ? planned.value().infeasible : planned.status().message()));
    return equal;
  }
  const Allocation& plan = planned.value();
  std::string text = "groups of ";
  for (const double tokens : lengths) append_format(&text, "%.0f ", tokens);
  text += "tokens have ";
  for (const int32_t k : plan.workers) append_format(&text, "%d ", k);
  append_format(&text, "workers: %.1f s and %.2f s more a group, %d left over, %d idle", plan.first_ms / 1e3,
                plan.gradient_ms / 1e3, plan.left_over, plan.idle);
  decide(s, text);
  return plan.workers;
}

void StepSimulation::set_rules(int32_t s, const std::vector<std::vector<int32_t>>& groups, const std::vector<double>& lengths) {
  const double beta = growth_limit(s);
  std::string text;
  append_format(&text, "beta %.2f, outliers have more than", beta);
  for (size_t g = 0; g < groups.size(); ++g) {
    double longest = 0;
    for (const int32_t q : groups[g]) longest = std::max(longest, lengths[static_cast<size_t>(q)]);
    step(s).groups[g].rule.longest_tokens = beta * longest;
    append_format(&text, " %.0f", beta * longest);
  }
  decide(s, text + " tokens");
}

void StepSimulation::score_ranking(int32_t s) {
  std::vector<int32_t> predicted, tokens;
  for (int32_t i = first_sample_[static_cast<size_t>(s)]; i < first_sample_[static_cast<size_t>(s) + 1]; ++i) {
    predicted.push_back(sample(i).group);
    tokens.push_back(sample(i).tokens);
  }
  const RankingAccuracy one = ranking_accuracy(predicted, tokens, o_.groups);
  result_.accuracy.held += one.held;
  result_.accuracy.near += one.near;
  ++num_ranked_;
}

// A group's samples go to its workers in turns.
void StepSimulation::deal(int32_t s) {
  Step& now = step(s);
  now.is_dealt = true;
  const auto& epoch = work_.epochs[static_cast<size_t>(epoch_of(s))];
  const bool ranks = at_least(StepMode::kRanked) && epoch_of(s) > 0;
  const std::vector<double> lengths = history(std::max(0, epoch_of(s) - 1), s);
  const auto groups = ranking_groups(lengths.size(), ranks ? lengths : std::vector<double>{}, o_.groups);
  std::vector<int32_t> first(lengths.size());  // sample of a prompt
  int32_t at = first_sample_[static_cast<size_t>(s)];
  for (size_t q = 0; q < lengths.size(); ++q) {
    first[q] = at;
    at += static_cast<int32_t>(epoch[first_prompt(s) + q].size());
  }
  now.groups.resize(groups.size());
  std::vector<std::vector<int32_t>> samples(groups.size());
  std::vector<double> means;
  for (size_t g = 0; g < groups.size(); ++g) {
    double sum = 0;
    for (const int32_t q : groups[g]) {
      sum += lengths[static_cast<size_t>(q)];
      const size_t count = epoch[first_prompt(s) + static_cast<size_t>(q)].size();
      for (size_t i = 0; i < count; ++i) samples[g].push_back(first[static_cast<size_t>(q)] + static_cast<int32_t>(i));
    }
    for (const int32_t i : samples[g]) sample(i).group = static_cast<int32_t>(g);
    now.groups[g].unfinished = now.groups[g].rule.samples = static_cast<int32_t>(samples[g].size());
    now.groups[g].rule.longest_tokens = std::numeric_limits<double>::infinity();
    means.push_back(sum / static_cast<double>(groups[g].size()));
  }
  size_t largest = 0;
  for (const auto& one : samples) largest = std::max(largest, one.size());
  now.group_of_worker =
      groups_of_workers(shares(s, ranks ? means : std::vector<double>{}, static_cast<int32_t>(largest)), ranks ? s + 1 : 1);
  now.group_of_worker.resize(workers_.size(), -1);  // the idle
  if (now.queues.empty()) now.queues.resize(workers_.size());
  for (size_t g = 0; g < groups.size(); ++g) {
    std::vector<size_t> own;
    for (size_t w = 0; w < workers_.size(); ++w) {
      if (now.group_of_worker[w] == static_cast<int32_t>(g)) own.push_back(w);
    }
    for (size_t i = 0; i < samples[g].size(); ++i) now.queues[own[i % own.size()]].push_back(samples[g][i]);
  }
  if (ranks && at_least(StepMode::kMigrated)) set_rules(s, groups, lengths);
  if (ranks) score_ranking(s);
}

}  // namespace otr
