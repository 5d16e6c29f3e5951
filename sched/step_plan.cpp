#include "sched/step_plan.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <utility>

namespace otr {
namespace {

// Of equal parts of `count` in order.
int32_t part_of(size_t index, size_t count, int32_t parts) {
  return static_cast<int32_t>(index * static_cast<size_t>(parts) / count);
}

template <typename T>
std::vector<size_t> order_of(std::span<const T> values) {
  std::vector<size_t> order(values.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [values](size_t a, size_t b) { return values[a] < values[b]; });
  return order;
}

Status check(const AllocationQuestion& q) {
  if (q.tokens.empty()) return invalid_argument("there is no group to give workers to");
  if (!std::is_sorted(q.tokens.begin(), q.tokens.end()) || !(q.tokens.front() >= 0))
    return invalid_argument("the groups' lengths are negative or descend");
  if (q.least < 1 || q.most < q.least)
    return invalid_argument("a group's workers must be at least 1, the most no less than the least");
  if (q.first != 0 && (q.first < q.least || q.first > q.most))
    return invalid_argument("the first group's workers must be from a group's least to its most");
  return Status();
}

// The times of every group on every number of workers, and what follows from them.
class Allocator {
 public:
  Allocator(const AllocationQuestion& q, const GroupTime& tau) : q_(q) {
    for (const double tokens : q.tokens) {
      std::vector<double>& row = ms_.emplace_back();
      for (int32_t k = q.least; k <= q.most; ++k) row.push_back(tau(tokens, k));
    }
  }

  Allocation run(int32_t first) {
    t0_ = std::max(ms(0, first), q_.train_ms);
    Allocation plan;
    plan.first_ms = t0_;
    if (!std::isfinite(t0_)) {
      plan.infeasible = reason();
      return plan;
    }
    const std::vector<double> gradients = candidates();
    // More time never needs more workers, so halving finds the first gradient that suffices.
    const auto suffices = [this](double d) { return needed(d, nullptr) <= q_.workers; };
    const auto found = std::partition_point(gradients.begin(), gradients.end(), [&](double d) { return !suffices(d); });
    if (found == gradients.end()) {
      plan.infeasible = reason();
      return plan;
    }
    plan.gradient_ms = *found;
    const int64_t used = needed(plan.gradient_ms, &plan.workers);
    spread(q_.workers - static_cast<int32_t>(used), &plan);
    for (size_t i = 0; i < ms_.size(); ++i) plan.ms.push_back(ms(i, plan.workers[i]));
    return plan;
  }

 private:
  static constexpr int64_t kTooMany = std::numeric_limits<int64_t>::max();

  double ms(size_t group, int32_t workers) const { return ms_[group][static_cast<size_t>(workers - q_.least)]; }
  // The gradient that lets the group take this long; both sides of every comparison are computed so.
  double gradient(size_t group, double time_ms) const { return (time_ms - t0_) / static_cast<double>(group); }
  bool in_time(size_t group, int32_t workers, double d) const {
    const double time = ms(group, workers);
    return std::isfinite(time) && (group == 0 ? time <= t0_ : gradient(group, time) <= d);
  }

  std::vector<double> candidates() const {
    std::vector<double> d = {0};
    for (size_t i = 1; i < ms_.size(); ++i) {
      for (const double time : ms_[i]) {
        if (std::isfinite(time) && time > t0_) d.push_back(gradient(i, time));
      }
    }
    std::sort(d.begin(), d.end());
    return d;
  }

  int64_t needed(double d, std::vector<int32_t>* workers) const {
    int64_t sum = 0;
    for (size_t i = 0; i < ms_.size(); ++i) {
      int32_t k = q_.least;
      while (k <= q_.most && !in_time(i, k, d)) ++k;
      if (k > q_.most) return kTooMany;
      sum += k;
      if (workers != nullptr) workers->push_back(k);
    }
    return sum;
  }

  void spread(int32_t left, Allocation* plan) const {
    for (; left > 0; --left) {
      size_t longest = ms_.size();
      for (size_t i = 0; i < ms_.size(); ++i) {
        const int32_t k = plan->workers[i];
        if (k == q_.most || !(ms(i, k + 1) < ms(i, k))) continue;
        if (longest == ms_.size() || ms(i, k) > ms(longest, plan->workers[longest])) longest = i;
      }
      if (longest == ms_.size()) break;
      ++plan->workers[longest];
      ++plan->left_over;
    }
    plan->idle = left;
  }

  std::string reason() const {
    const auto count = std::to_string(q_.workers) + " workers";
    if (static_cast<int64_t>(q_.least) * static_cast<int64_t>(ms_.size()) > q_.workers)
      return std::to_string(ms_.size()) + " groups of at least " + std::to_string(q_.least) + " need more than " + count;
    if (!std::isfinite(t0_)) return "the shortest group never ends";
    for (size_t i = 1; i < ms_.size(); ++i) {
      if (std::none_of(ms_[i].begin(), ms_[i].end(), [](double time) { return std::isfinite(time); }))
        return "group " + std::to_string(i) + " never ends on at most " + std::to_string(q_.most) + " workers";
    }
    std::vector<int32_t> steepest;
    const int64_t all = needed(candidates().back(), &steepest);
    return "even the steepest plan needs " + std::to_string(all) + " of " + count + ", " + std::to_string(steepest[0]) +
           " of them for the shortest group";
  }

  const AllocationQuestion& q_;
  std::vector<std::vector<double>> ms_;  // [groups][workers - least]
  double t0_ = 0;
};

}  // namespace

double median_tokens(std::span<const int32_t> tokens) {
  std::vector<int32_t> sorted(tokens.begin(), tokens.end());
  std::sort(sorted.begin(), sorted.end());
  return (static_cast<double>(sorted[(sorted.size() - 1) / 2]) + sorted[sorted.size() / 2]) / 2;
}

std::vector<std::vector<int32_t>> ranking_groups(size_t num_prompts, std::span<const double> history, int32_t num_groups) {
  std::vector<size_t> order(num_prompts);
  std::iota(order.begin(), order.end(), size_t{0});
  if (!history.empty()) order = order_of(history);
  std::vector<std::vector<int32_t>> groups(static_cast<size_t>(num_groups));
  for (size_t rank = 0; rank < num_prompts; ++rank) {
    groups[static_cast<size_t>(part_of(rank, num_prompts, num_groups))].push_back(static_cast<int32_t>(order[rank]));
  }
  return groups;
}

RankingAccuracy ranking_accuracy(std::span<const int32_t> predicted, std::span<const int32_t> tokens, int32_t num_groups) {
  RankingAccuracy accuracy;
  const std::vector<size_t> order = order_of(tokens);
  const size_t count = order.size();
  for (size_t rank = 0; rank < count; ++rank) {
    const int32_t real = part_of(rank, count, num_groups), said = predicted[order[rank]];
    accuracy.held += real <= said;
    accuracy.near += real == said + 1 && part_of(rank, count, 2 * num_groups) == 2 * real;
  }
  if (count > 0) accuracy.held /= static_cast<double>(count), accuracy.near /= static_cast<double>(count);
  return accuracy;
}

std::vector<int32_t> groups_of_workers(std::span<const int32_t> workers, int64_t step) {
  std::vector<int32_t> groups;
  for (size_t i = 0; i < workers.size(); ++i) {
    const size_t group = step % 2 != 0 ? i : workers.size() - 1 - i;
    groups.insert(groups.end(), static_cast<size_t>(workers[group]), static_cast<int32_t>(group));
  }
  return groups;
}

Result<Allocation> allocate_workers(const AllocationQuestion& question, const GroupTime& tau) {
  OTR_RETURN_IF_ERROR(check(question));
  return Allocator(question, tau).run(question.first == 0 ? question.most : question.first);
}

Result<Allocation> best_allocation(const AllocationQuestion& question, const GroupTime& tau) {
  OTR_RETURN_IF_ERROR(check(question));
  Allocator allocator(question, tau);
  Allocation best;
  for (int32_t first = question.least; first <= question.most; ++first) {
    Allocation one = allocator.run(first);
    const bool better = best.workers.empty() || (one.infeasible.empty() && pair_ms(one) < pair_ms(best));
    if (better) best = std::move(one);
  }
  return best;
}

double pair_ms(const Allocation& allocation, double train_ms) {
  const std::vector<int32_t> odd = groups_of_workers(allocation.workers, 1), even = groups_of_workers(allocation.workers, 2);
  double most = 0;
  for (size_t w = 0; w < odd.size(); ++w) {
    most = std::max(most, std::max(train_ms, allocation.ms[static_cast<size_t>(odd[w])]) +
                              std::max(train_ms, allocation.ms[static_cast<size_t>(even[w])]));
  }
  return most;
}

Allocation balanced_allocation(std::span<const std::vector<int32_t>> starts, int32_t least, int32_t most, double train_ms,
                               const GroupPartTime& tau) {
  std::map<std::pair<size_t, int32_t>, double> known;
  const auto measured = [&](std::vector<int32_t> workers) {
    Allocation one;
    for (size_t g = 0; g < workers.size(); ++g) {
      const auto [at, is_new] = known.try_emplace({g, workers[g]}, 0.0);
      if (is_new) at->second = tau(g, workers[g]);
      one.ms.push_back(at->second);
    }
    one.workers = std::move(workers);
    return one;
  };
  // Where all wait for the training the longest part is the one that may delay it, as lengths are foretold with errors.
  const auto cost = [train_ms](const Allocation& a) {
    return std::pair(pair_ms(a, train_ms), *std::max_element(a.ms.begin(), a.ms.end()));
  };
  const auto is_better = [&cost](const Allocation& a, const Allocation& b) { return cost(a) < cost(b); };
  const auto improved = [&](const Allocation& now) {
    Allocation best = now;
    for (size_t from = 0; from < now.workers.size(); ++from) {
      for (size_t to = 0; to < now.workers.size(); ++to) {
        for (int32_t k = 1; to != from && now.workers[from] - k >= least && now.workers[to] + k <= most; ++k) {
          std::vector<int32_t> workers = now.workers;
          workers[from] -= k;
          workers[to] += k;
          Allocation one = measured(std::move(workers));
          if (is_better(one, best)) best = std::move(one);
        }
      }
    }
    return best;
  };
  Allocation best;
  for (const std::vector<int32_t>& start : starts) {
    Allocation now = measured(start);
    for (Allocation next = improved(now); is_better(next, now); next = improved(now)) now = std::move(next);
    if (best.workers.empty() || is_better(now, best)) best = std::move(now);
  }
  return best;
}

double outlier_growth(std::span<const double> growth) {
  if (growth.empty()) return kLeastOutlierGrowth;
  std::vector<double> sorted(growth.begin(), growth.end());
  std::sort(sorted.begin(), sorted.end());
  const size_t rank = static_cast<size_t>(std::ceil(0.75 * static_cast<double>(sorted.size())));
  return std::max(kLeastOutlierGrowth, sorted[rank - 1]);
}

}  // namespace otr
