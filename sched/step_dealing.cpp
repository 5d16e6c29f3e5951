// Which worker gets which samples of a step, and what is expected of groups.
#include <algorithm>
#include <functional>
#include <queue>
#include <utility>

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

double part_ms(const StepOptions& o, double prompt, std::span<const double> tokens, double p) {
  using Run = std::pair<double, double>;  // its end and begin, on the clock `drawn`
  std::priority_queue<Run, std::vector<Run>, std::greater<>> runs;
  double ms = 0, drawn = 0, begun = 0;  // tokens of a sample that has run from the first on; the sum of the runs' begins
  for (size_t next = 0; next < tokens.size() || !runs.empty();) {
    for (; next < tokens.size() && runs.size() < static_cast<size_t>(o.max_batch); ++next) {
      runs.push({drawn + tokens[next], drawn});
      begun += drawn;
    }
    const double batch = static_cast<double>(runs.size()), context = prompt + drawn - begun / batch;
    const double until = std::min(runs.top().first, drawn + repricing_tokens(context, 1));
    const StepPass pass = step_pass(o.cost, o.most, batch, context, p);
    ms += (until - drawn) / coupled_tokens(p, pass.window) * pass.ms;
    drawn = until;
    for (; !runs.empty() && runs.top().first <= drawn; runs.pop()) begun -= runs.top().second;
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

// A worker's part of a group that is dealt to so many of them, by its lengths in the last epoch, the longest first.
std::vector<double> StepSimulation::foretold(int32_t s, const std::vector<int32_t>& prompts, int32_t workers) const {
  const auto& epoch = work_.epochs[static_cast<size_t>(epoch_of(s) - 1)];
  std::vector<double> all, part;
  for (const int32_t q : prompts) {
    for (const StepSample& one : epoch[first_prompt(s) + static_cast<size_t>(q)]) all.push_back(one.tokens);
  }
  std::sort(all.begin(), all.end(), std::greater<>());
  for (size_t i = 0; i < all.size(); i += static_cast<size_t>(workers)) part.push_back(all[i]);
  return part;
}

std::vector<int32_t> StepSimulation::equal_shares() const {
  std::vector<int32_t> equal;
  for (int64_t g = 0; g < o_.groups; ++g) {
    equal.push_back(static_cast<int32_t>((g + 1) * o_.workers / o_.groups - g * o_.workers / o_.groups));
  }
  return equal;
}

StepSimulation::Asked StepSimulation::ask(int32_t s, const std::vector<std::vector<int32_t>>& groups,
                                          const std::vector<double>& lengths) const {
  Asked asked;
  AllocationQuestion& question = asked.question;
  question.workers = o_.workers;
  question.least = o_.least_workers;
  question.most =
      o_.most_workers > 0 ? o_.most_workers : std::max(question.least, o_.workers - (o_.groups - 1) * question.least);
  if (trained_ > 0) {
    const StepTimes& last = result_.steps[static_cast<size_t>(trained_ - 1)];
    question.train_ms = last.train_end_ms - last.train_begin_ms;
  }
  size_t prompts = 0;
  for (const auto& group : groups) {
    double sum = 0;
    for (const int32_t q : group) sum += lengths[static_cast<size_t>(q)];
    question.tokens.push_back(sum / static_cast<double>(group.size()));
    prompts = std::max(prompts, group.size());
  }
  const size_t first = static_cast<size_t>(first_sample_[static_cast<size_t>(s)]);
  const size_t count = static_cast<size_t>(first_sample_[static_cast<size_t>(s) + 1]) - first;
  for (size_t i = first; i < first + count; ++i) asked.prompt += prompt_tokens_[i], asked.p += p_[i];
  asked.prompt /= static_cast<double>(count);
  asked.p /= static_cast<double>(count);
  asked.samples = prompts * count / lengths.size();
  return asked;
}

Result<Allocation> StepSimulation::two_tier(const Asked& asked) const {
  return best_allocation(asked.question, [&](double tokens, int32_t workers) {
    const size_t own = static_cast<size_t>(workers);
    return part_ms(o_, asked.prompt, std::vector<double>((asked.samples + own - 1) / own, tokens), asked.p);
  });
}

// Workers by group.
std::vector<int32_t> StepSimulation::shares(int32_t s, const std::vector<std::vector<int32_t>>& groups,
                                            const std::vector<double>& lengths) {
  const std::vector<int32_t> equal = equal_shares();
  if (!at_least(StepMode::kTwoTier)) return equal;
  const Asked asked = ask(s, groups, lengths);
  const Result<Allocation> planned = two_tier(asked);
  const std::string reason = planned.ok() ? planned.value().infeasible : planned.status().message();
  if (!reason.empty()) {
    ++result_.num_infeasible;
    decide(s, "no plan: " + reason + "; so each group has as many workers");
    return equal;
  }
  const Allocation& plan = planned.value();
  if (at_least(StepMode::kOurs)) return balance(s, asked, groups, {equal, plan.workers});
  std::string text = "groups of ";
  for (const double tokens : asked.question.tokens) append_format(&text, "%.0f ", tokens);
  text += "tokens have ";
  for (const int32_t k : plan.workers) append_format(&text, "%d ", k);
  append_format(&text, "workers: %.1f s and %.2f s more a group, %d left over, %d idle", plan.first_ms / 1e3,
                plan.gradient_ms / 1e3, plan.left_over, plan.idle);
  decide(s, text);
  return plan.workers;
}

// Also from the plan of shorter parts than the training: workers may wait for it now and then.
std::vector<int32_t> StepSimulation::balance(int32_t s, Asked asked, const std::vector<std::vector<int32_t>>& groups,
                                             std::vector<std::vector<int32_t>> starts) {
  const double train_ms = std::exchange(asked.question.train_ms, 0);
  const Result<Allocation> early = two_tier(asked);
  if (early.ok() && early.value().infeasible.empty()) starts.push_back(early.value().workers);
  const Allocation best =
      balanced_allocation(starts, asked.question.least, asked.question.most, train_ms,
                          [&](size_t g, int32_t k) { return part_ms(o_, asked.prompt, foretold(s, groups[g], k), asked.p); });
  std::string text = "groups of ";
  for (size_t g = 0; g < groups.size(); ++g) append_format(&text, "%d (%.1f s) ", best.workers[g], best.ms[g] / 1e3);
  append_format(&text, "workers: two steps take %.1f s", pair_ms(best, train_ms) / 1e3);
  decide(s, text);
  step(s).foretold_ms = best.ms;
  return best.workers;
}

// Who comes first to the step takes the longest part that is left.
void StepSimulation::take_longest(int32_t w) {
  Step& now = step(worker(w).step);
  if (now.foretold_ms.empty()) return;
  const auto ms = [&now](int32_t of) {
    const int32_t group = now.group_of_worker[static_cast<size_t>(of)];
    return group < 0 ? 0 : now.foretold_ms[static_cast<size_t>(group)];
  };
  int32_t longest = w;
  for (int32_t other = 0; other < o_.workers; ++other) {
    if (worker(other).step < worker(w).step && ms(other) > ms(longest)) longest = other;
  }
  std::swap(now.queues[static_cast<size_t>(w)], now.queues[static_cast<size_t>(longest)]);
  std::swap(now.group_of_worker[static_cast<size_t>(w)], now.group_of_worker[static_cast<size_t>(longest)]);
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
  result_.num_ranked += static_cast<int64_t>(tokens.size());
  ++num_ranked_;
}

// [groups] samples, in the order of the ranking.
std::vector<std::vector<int32_t>> StepSimulation::group_samples(int32_t s, const std::vector<std::vector<int32_t>>& groups) {
  const auto& epoch = work_.epochs[static_cast<size_t>(epoch_of(s))];
  std::vector<std::vector<int32_t>> prompts, samples;
  int32_t next = first_sample_[static_cast<size_t>(s)];
  const size_t end = first_prompt(s) + history(0, s).size();
  for (size_t q = first_prompt(s); q < end; ++q) {
    std::vector<int32_t>& own = prompts.emplace_back(epoch[q].size());
    for (int32_t& i : own) i = next++;
  }
  for (size_t g = 0; g < groups.size(); ++g) {
    std::vector<int32_t>& all = samples.emplace_back();
    for (const int32_t q : groups[g]) {
      const std::vector<int32_t>& own = prompts[static_cast<size_t>(q)];
      all.insert(all.end(), own.begin(), own.end());
    }
    for (const int32_t i : all) sample(i).group = static_cast<int32_t>(g);
  }
  return samples;
}

// A group's samples go to its workers in turns. As given, each worker has an equal part of all, as veRL divides them.
void StepSimulation::deal(int32_t s) {
  Step& now = step(s);
  now.is_dealt = true;
  now.queues.resize(workers_.size());
  const bool ranks = at_least(StepMode::kRanked) && epoch_of(s) > 0;
  const std::vector<double> lengths = history(std::max(0, epoch_of(s) - 1), s);
  const auto groups = ranking_groups(lengths.size(), ranks ? lengths : std::vector<double>{}, o_.groups);
  const auto samples = group_samples(s, groups);
  for (const auto& own : samples) {
    const int32_t count = static_cast<int32_t>(own.size());
    now.groups.push_back({count, {count, std::numeric_limits<double>::infinity()}});
  }
  now.group_of_worker = groups_of_workers(ranks ? shares(s, groups, lengths) : equal_shares(), ranks ? s + 1 : 1);
  now.group_of_worker.resize(workers_.size(), -1);  // the idle
  if (!ranks) {
    const size_t begin = static_cast<size_t>(first_sample_[static_cast<size_t>(s)]);
    const size_t count = static_cast<size_t>(first_sample_[static_cast<size_t>(s) + 1]) - begin;
    for (size_t i = 0; i < count; ++i) now.queues[i * workers_.size() / count].push_back(static_cast<int32_t>(begin + i));
    return;
  }
  for (size_t g = 0; g < groups.size(); ++g) {
    std::vector<size_t> own;
    for (size_t w = 0; w < workers_.size(); ++w) {
      if (now.group_of_worker[w] == static_cast<int32_t>(g)) own.push_back(w);
    }
    for (size_t i = 0; i < samples[g].size(); ++i) now.queues[own[i % own.size()]].push_back(samples[g][i]);
  }
  if (at_least(StepMode::kMigrated)) set_rules(s, groups, lengths);
  score_ranking(s);
}

}  // namespace otr
