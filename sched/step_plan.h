// Planning the steps of a training run over rollout workers, as RhymeRL's HistoPipe does (section 6): a worker that has the
// long responses in one step has the short ones in the next, so that nobody waits although no single step is balanced. This
// works one step off-policy: a worker goes on to the next step before the others have ended this one.
//
// A prompt's historical length is the median of its responses' lengths in the last epoch (6.2); all lengths are in tokens.
//
//   tier 1     prompts ranked by historical length, cut into groups of equal size; groups go to workers in ascending order on odd
//              steps, in descending order on even ones (figure 10)
//   tier 2     group i gets the fewest workers with tau(l_i, workers) <= t0 + i d, for the smallest gradient d for which the workers
//              suffice (figure 12): then times rise linearly, and an ascending and a descending step add up to the same for all
//   outliers   a sample among the last tenth of its group that is longer than beta times the longest historical length of the
//              group goes elsewhere (6.3)
//
// Where figure 12 is silent or fails:
//   - It halves the gradient's interval up to a precision of 1. Whether a gradient is feasible changes only where a tau(l_i, k) meets
//     its target, so here the halving is over these gradients, and the smallest feasible one is found exactly.
//   - Its d_max, with which the last group gets by on its fewest workers, can be infeasible itself: groups in the middle may need
//     more. Here all gradients are candidates.
//   - With t0 = tau(l_0, MAX) the shortest responses take MAX workers, unless training lasts longer. best_allocation() also tries t0 =
//     tau(l_0, k) for all k.
//   - It gives fewer workers than there are. Here those left over go one by one to the group that takes longest, if one more makes it
//     quicker: it decides when the step ends.
//
// Thread safety: pure functions and values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "kernels/base/status.h"

namespace otr {

// The mean of the middle two of an even number. REQUIRES: not empty
double median_tokens(std::span<const int32_t> tokens);

// Prompts by group, from short to long, ties by index; groups differ by at most one prompt. `history`: [num_prompts] historical
// lengths, or empty in the first epoch: then they stay in the order as given. REQUIRES: num_groups >= 1
std::vector<std::vector<int32_t>> ranking_groups(size_t num_prompts, std::span<const double> history, int32_t num_groups);

// How well the ranking foretold the lengths (figure 9, table 2), of all samples of the step.
struct RankingAccuracy {
  double held = 0;  // shares: ended in their group or a lower one
  double near = 0;  // rose by one group, into its shorter half
};
// `predicted`, `tokens`: [samples] the group that its prompt was put in, and the length that came. The real groups are equal
// parts of all samples by length. REQUIRES: equal sizes, num_groups >= 1
RankingAccuracy ranking_accuracy(std::span<const int32_t> predicted, std::span<const int32_t> tokens, int32_t num_groups);

// Workers in the order of their indices, each with its group. `workers`: [groups]. `step`: its number; the first one's is 1.
std::vector<int32_t> groups_of_workers(std::span<const int32_t> workers, int64_t step);

// tau(l, dp), in ms: a group of samples of `tokens` each on `workers` of them, speculation included.
using GroupTime = std::function<double(double tokens, int32_t workers)>;

struct AllocationQuestion {
  std::vector<double> tokens;  // [groups] representative lengths: the mean of the historical ones; not descending
  int32_t workers = 0;
  int32_t least = 1, most = 1;  // MIN and MAX: workers of a group
  int32_t first = 0;            // t0 = max(tau(l_0, first), train_ms); 0: MAX, as the paper has it
  double train_ms = 0;          // of the last step's training: the next weights are not there sooner
};

struct Allocation {
  std::string infeasible;        // why there is none; empty: there is one
  std::vector<int32_t> workers;  // [groups]
  std::vector<double> ms;        // [groups] tau of these
  double first_ms = 0;           // t0
  double gradient_ms = 0;        // d, before workers that were left over went to anybody
  int32_t left_over = 0;         // workers that went to the longest groups then
  int32_t idle = 0;              // workers that nobody is quicker with
};

// kInvalidArgument: no group, lengths that descend or are negative, a MIN below 1, a MAX below MIN or FIRST not among them. Too
// few workers are no such error but infeasible. `tau` need not fall with more workers nor rise with the length; a time that is
// not finite is too long.
Result<Allocation> allocate_workers(const AllocationQuestion& question, const GroupTime& tau);

// Of allocate_workers() with every `first` the one of the least pair_ms(), the smaller `first` where two are equal. Infeasible
// if all are, for the reason of the largest.
Result<Allocation> best_allocation(const AllocationQuestion& question, const GroupTime& tau);

// What an odd and an even step take together on the worker for which that is most. Groups of unequal numbers of workers do not
// mirror each other exactly. REQUIRES: feasible
double pair_ms(const Allocation& allocation, double train_ms = 0);

// As GroupTime, of a group by its index.
using GroupPartTime = std::function<double(size_t group, int32_t workers)>;
// Ours: the numbers of workers of the least pair_ms() that is found from these starts by moving workers from one group to
// another, as long as that makes it less. REQUIRES: starts of equal sums, all numbers from `least` to `most`
Allocation balanced_allocation(std::span<const std::vector<int32_t>> starts, int32_t least, int32_t most, double train_ms,
                               const GroupPartTime& tau);

inline constexpr double kOutlierShare = 0.1;        // alpha
inline constexpr double kLeastOutlierGrowth = 1.1;  // of beta

// beta: the 75th percentile (nearest rank) of the prompts' growth in the previous epoch, new length over old; at least 1.1,
// also without any.
double outlier_growth(std::span<const double> growth);

// What a group's samples are measured by.
struct OutlierRule {
  int32_t samples = 0;        // of the group in this step
  double longest_tokens = 0;  // beta times its longest historical length

  bool is_late(int32_t unfinished) const { return unfinished <= kOutlierShare * samples; }
  bool is_outlier(int32_t unfinished, double tokens) const { return is_late(unfinished) && tokens > longest_tokens; }
};

// Outliers of the shorter groups go to others within the step, those of the longer ones, which nobody outlasts, to the next
// step.
inline bool stays_in_step(int32_t group, int32_t num_groups) { return 2 * (group + 1) <= num_groups; }

}  // namespace otr
