#include "sched/kv_split.h"

#include <algorithm>

namespace otr {
namespace {

constexpr double kNeverComes = std::numeric_limits<double>::infinity();

// Ticks of a chunk each, and the last one of what is left.
double front_seconds(int32_t x, const RebuildRates& rates) {
  const auto tick = [&rates](int32_t tokens) {
    return std::max(rates.least_tick, rates.computed > 0 ? tokens / rates.computed : kNeverComes);
  };
  const int32_t chunks = x / rates.chunk, rest = x % rates.chunk;
  return (chunks > 0 ? chunks * tick(rates.chunk) : 0) + (rest > 0 ? tick(rest) : 0);
}

double copy_seconds(int32_t tokens, const RebuildRates& rates) {
  if (tokens <= rates.arrived) return 0;
  return rates.copied > 0 ? (tokens - rates.arrived) / rates.copied : kNeverComes;
}

}  // namespace

double rebuild_seconds(int32_t x, int32_t gap, int32_t page, const RebuildRates& rates) {
  const double front = front_seconds(x, rates);
  if (x == gap && !rates.any_copied) return front;
  const double copies = copy_seconds((gap - x + page - 1) / page * page, rates);
  const double begin = std::max(front, copies - rates.least_tick);
  return begin == kNeverComes ? kNeverComes : begin + rates.least_tick + std::max(0.0, copies - begin) / rates.num_layers;
}

int32_t tokens_from_front(int32_t begin, int32_t end, int32_t page, const RebuildRates& rates) {
  const int32_t gap = end - begin;
  if (gap == 0 || rates.copied <= 0) return gap;
  if (rates.computed <= 0) return std::min(end, (begin / page + 1) * page) - begin;
  // All that it may choose from: a few thousand pages at most, some nanoseconds each.
  int32_t best = gap;
  double best_seconds = rebuild_seconds(gap, gap, page, rates);
  for (int32_t at = (begin + page - 1) / page * page; at < end; at += page) {
    const double seconds = rebuild_seconds(at - begin, gap, page, rates);
    if (seconds < best_seconds || (seconds == best_seconds && at - begin < best)) {
      best = at - begin;
      best_seconds = seconds;
    }
  }
  return best;
}

RebuildStep rebuild_step(int32_t begin, int32_t end, int32_t page, const RebuildRates& rates) {
  const int32_t rows = tokens_from_front(begin, end, page, rates);
  return {.rows = rows, .takes_newest = !rates.any_copied && rows == end - begin};
}

ComingCopies coming_copies(double wanted, double arrived, double per_second, int32_t num_layers) {
  return {.first_layer = std::max(0.0, wanted / num_layers - arrived) / per_second,
          .all = std::max(0.0, wanted - arrived) / per_second};
}

double seconds_until_early(const ComingCopies& copies, double tick) {
  return copies.all > tick ? copies.all - tick : kNeverComes;
}

bool may_begin_early(const ComingCopies& copies, double tick, int32_t num_samples) {
  return copies.all <= tick && num_samples * copies.first_layer <= tick;
}

}  // namespace otr
