#include "sched/kv_split.h"

#include <algorithm>
#include <limits>

namespace otr {

double rebuild_seconds(int32_t x, int32_t gap, const RebuildRates& rates) {
  constexpr double kNever = std::numeric_limits<double>::infinity();
  const auto seconds = [](int32_t tokens, double rate) {
    if (tokens <= 0) return 0.0;
    return rate > 0 ? tokens / rate : kNever;
  };
  const double front = x > 0 ? std::max(rates.least_tick, seconds(x, rates.computed)) : 0;
  return std::max(front, seconds(gap - x, rates.copied));
}

int32_t tokens_from_front(int32_t begin, int32_t end, int32_t page, const RebuildRates& rates) {
  const int32_t gap = end - begin;
  if (gap == 0 || rates.copied <= 0) return gap;
  if (rates.computed <= 0) return std::min(end, (begin / page + 1) * page) - begin;
  // Where both take equally long, the better one of the page ends around it; or no more than the page that is begun.
  const int32_t least = std::min(end, (begin + page - 1) / page * page);
  const int32_t equal = begin + static_cast<int32_t>(gap * (rates.computed / (rates.computed + rates.copied)));
  const int32_t below = std::max(least, equal / page * page), above = std::max(least, std::min(end, (equal / page + 1) * page));
  int32_t best = least;
  for (const int32_t other : {below, above}) {
    if (rebuild_seconds(other - begin, gap, rates) < rebuild_seconds(best - begin, gap, rates)) best = other;
  }
  return best - begin;
}

}  // namespace otr
