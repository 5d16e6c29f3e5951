#include "spec/optimiser.h"

#include <algorithm>
#include <cmath>

namespace otr {
namespace {

constexpr float kNothingIsWorthIt = 2.0f;
constexpr double kLeastGain = 1.03;   // what a draft must be foretold to bring: forecasts flatter what is chosen by them
constexpr double kPastTheBest = 0.9;  // of the best value: deeper levels do not come back from there

// Over an eighth more rows, so that a rounded model's steps do not hide the slope.
double slope_step(double rows) { return std::max(1.0, rows / 8); }

double kept_of_chain(float p, int32_t depth) {
  double kept = 1, sum = 0;
  for (int32_t level = 0; level < depth; ++level) sum += kept *= static_cast<double>(p);
  return sum;
}

double nodes_of_known(const RowOdds& row) { return static_cast<double>(std::max(row.known, row.known_nodes)); }

}  // namespace

double TickTimes::node_ms(double nodes) const {
  const double step = slope_step(rows + nodes);
  return (verify_ms(nodes + step) - verify_ms(nodes)) / step;
}

double TickTimes::row_ms(double level_rows) const {
  const double step = slope_step(level_rows);
  return (draft_ms(level_rows + step) - draft_ms(level_rows)) / step;
}

// Who drafts how deep at the price of the rows and nodes there, each row for itself: sets trial_ and levels_.
void Optimiser::price_rows(const TickTimes& times, std::span<const RowOdds> rows, int32_t most, double value, double level_rows,
                           double nodes) {
  const double node_price = value * times.node_ms(nodes), price = value * times.row_ms(level_rows) + node_price;
  levels_ = {};
  for (size_t r = 0; r < rows.size(); ++r) {
    const RowOdds& row = rows[r];
    const double weight = static_cast<double>(row.weight), known = static_cast<double>(row.known),
                 known_nodes = nodes_of_known(row);
    double kept = 1, sum = 0;
    int32_t depth = 0;
    for (; depth < std::min(row.max_depth, most); ++depth) {
      kept *= static_cast<double>(row.p);
      if (weight * kept < price) break;
      sum += kept;
    }
    // Where lookups bring as much, and what the drafter would have to read first is not worth reading, it leaves the row to
    // them.
    const double drafted = weight * std::max(sum, known) - price * depth - value * static_cast<double>(row.once_ms);
    if (known > 0 || row.once_ms > 0) depth = drafted > std::max(0.0, weight * known - node_price * known_nodes) ? depth : 0;
    trial_[r] = depth;
    (depth > 0 ? levels_.known_of_drafting : levels_.known_of_others) += known_nodes;
    if (depth > 0) levels_.once_ms += static_cast<double>(row.once_ms);
    kept = 1, sum = 0;
    for (size_t level = 1; level <= static_cast<size_t>(depth); ++level) {
      const double before = std::max(0.0, sum - known);
      kept *= static_cast<double>(row.p);
      sum += kept;
      levels_.gain[level] += weight * (std::max(0.0, sum - known) - before);
      levels_.count[level] += 1;
    }
  }
}

DraftDepth Optimiser::best_depth(const TickTimes& times, std::span<const RowOdds> rows, int32_t most, double guess) {
  constexpr int kIterations = 4;  // Dinkelbach converges faster than Newton; the value then moves by less than 0.1 %
  most = std::min(most, kMaxDraftDepth);
  double known = 0, known_nodes = 0;
  for (const RowOdds& row : rows) known += static_cast<double>(row.weight * row.known), known_nodes += nodes_of_known(row);
  const double n = static_cast<double>(rows.size());
  DraftDepth best{.depth = 0, .tokens = n, .ms = times.plain_ms()};
  const DraftDepth looked_up{.depth = 0, .tokens = n + known, .ms = times.verify_ms(known_nodes)};
  if (known > 0 && looked_up.value() > best.value()) best = looked_up;
  row_depth_.assign(rows.size(), 0);
  trial_.assign(rows.size(), 0);
  double nodes = known_nodes, level_rows = n;
  for (int iteration = 0; iteration < kIterations; ++iteration) {
    price_rows(times, rows, most, iteration == 0 ? std::max(best.value(), guess) : best.value(), level_rows, nodes);
    DraftDepth found = best;
    double drafting = levels_.once_ms, drafted = 0, tokens = n + known, before = best.value();
    for (size_t level = 1; level <= static_cast<size_t>(most) && levels_.count[level] > 0; ++level) {
      drafting += times.draft_ms(levels_.count[level]);
      drafted += levels_.count[level];
      tokens += levels_.gain[level];
      const double verified = std::max(levels_.known_of_drafting, drafted) + levels_.known_of_others;
      const DraftDepth here{.depth = static_cast<int32_t>(level), .tokens = tokens, .ms = drafting + times.verify_ms(verified)};
      if (here.value() <= found.value()) {
        // What lookups bring anyway, the first levels bring again: the gain comes behind it.
        const bool falls = levels_.gain[level] > 0 && here.value() <= before;
        if (falls && here.value() < kPastTheBest * found.value()) break;
        before = here.value();
        continue;
      }
      found = here;
      before = here.value();
      nodes = verified;
      level_rows = drafted / static_cast<double>(level);
    }
    if (found.value() <= best.value() * (1 + 1e-4)) {
      if (iteration > 0 || guess <= best.value()) break;
      continue;  // the guess was too high
    }
    best = found;
    for (size_t r = 0; r < rows.size(); ++r) {
      const int32_t depth = std::min(trial_[r], best.depth);
      row_depth_[r] = kept_of_chain(rows[r].p, depth) > static_cast<double>(rows[r].known) ? depth : 0;
    }
  }
  return best;
}

float Optimiser::least_acceptance(const TickTimes& times, double value, double p, std::span<const float> frontier,
                                  double nodes) {
  const double n = static_cast<double>(frontier.size()), node_ms = times.node_ms(nodes);
  if (p <= 0) return kNothingIsWorthIt;
  const float least = static_cast<float>(value * (times.row_ms(n) + node_ms) / p);
  double sum = 0, count = 0;
  for (const float acceptance : frontier) {
    if (acceptance < least) continue;
    sum += static_cast<double>(acceptance);
    ++count;
  }
  if (count == 0 || p * sum <= value * (times.draft_ms(count) + node_ms * count)) return kNothingIsWorthIt;
  return least;
}

// For a given value the first node that is not worth its row ends the list, since A falls and the slope does not; each step
// takes the value of the cut before it.
Optimiser::Cut Optimiser::best_cut(const TickTimes& times, std::span<const float> acceptance, double spent_ms, int32_t rows,
                                   int32_t most) {
  const int32_t size = std::min(most, static_cast<int32_t>(acceptance.size()));
  const auto cut_at = [&](int32_t nodes) {
    double tokens = rows;
    for (int32_t i = 0; i < nodes; ++i) tokens += static_cast<double>(acceptance[static_cast<size_t>(i)]);
    return Cut{.nodes = nodes, .tokens = tokens, .ms = spent_ms + times.verify_ms(nodes)};
  };
  // The tick has looked for drafts already, whatever it verifies.
  const double looked_ms = times.fixed_ms - times.plain_fixed_ms;
  const Cut plain{.nodes = 0, .tokens = static_cast<double>(rows), .ms = spent_ms + looked_ms + times.plain_ms()};
  Cut best = cut_at(0);
  for (;;) {
    const double value = best.value();
    int32_t low = 0, high = size;
    while (low < high) {  // the first node that is not worth it
      const int32_t middle = (low + high) / 2;
      const bool worth = static_cast<double>(acceptance[static_cast<size_t>(middle)]) >=
                         value * (times.verify_ms(middle + 1) - times.verify_ms(middle));
      if (worth) low = middle + 1;
      else high = middle;
    }
    const Cut next = cut_at(low);
    if (!(next.value() > value)) return best.value() > kLeastGain * plain.value() ? best : plain;
    best = next;
  }
}

}  // namespace otr
