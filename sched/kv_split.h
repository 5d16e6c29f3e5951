// KvSplit: where two ends meet, when a sequence goes on at another worker and its keys and values are made anew from the front
// while those of the old place are copied from the back.
//
// The copies come while the worker computes, so what takes longer decides. Behind the gap come the sequence's newest rows, in a
// tick of their own; only where nothing is copied at all the last chunk takes them along. Of the pages that this tick reads
// layer l is needed when its pass comes to layer l, so it begins when what is left arrives within it:
//
//   front    ▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒ F                       begin = max(F, C - tick)
//   copies   ░░░░░░░░░░░░░░░░░░░░░░░░│ layer 0, 1, … │ C    end = begin + tick + max(0, C - begin) / layers
//   behind                           ·█ layer 0, 1, … █     ·: the wait for the first layer
//
// Pages that come whole have one layer in this: end = max(F, C) + tick. The worker asks again before every tick, with the gap
// that is left and the rates that it measured. The front ends where a page does; rounding loses less than the time in which a
// page is computed or copied.
//
// Pure functions of their arguments.
#pragma once

#include <cstdint>
#include <limits>

namespace otr {

struct RebuildRates {
  double computed = 0;                                  // tokens per second that a tick's rows come to; 0: not known yet
  double copied = 0;                                    // tokens per second that arrive; 0: none do
  double least_tick = 0;                                // seconds that a tick takes, however few its rows
  int32_t chunk = std::numeric_limits<int32_t>::max();  // tokens that a tick computes at most; > 0
  double arrived = 0;       // tokens whose pages have arrived, wholly or in part, and are not copied yet
  int32_t num_layers = 1;   // > 0: that the last pages come in, one by one; 1: they come whole
  bool any_copied = false;  // then the rows behind the gap take a tick of their own, even if all that is left is computed
};

// How long it takes until the rows behind the gap are through, if the first x of its `gap` tokens are computed, and the rest is
// copied in pages.
double rebuild_seconds(int32_t x, int32_t gap, int32_t page, const RebuildRates& rates);

// How many of the positions [begin, end) to compute, from the front: such that all is done soonest, and the front ends at a
// multiple of `page` or at `end` (a page whose beginning is computed is not copied, so at least the rest of that one). With no
// copies all of them; with a compute rate that is not known, to the end of one page, which measures it. REQUIRES: 0 <= begin <=
// end, page > 0.
int32_t tokens_from_front(int32_t begin, int32_t end, int32_t page, const RebuildRates& rates);

// What the front does next in the gap [begin, end).
struct RebuildStep {
  int32_t rows = 0;           // as tokens_from_front()
  bool takes_newest = false;  // true: these rows are the whole gap and nothing has been copied, so the newest row goes along
};
RebuildStep rebuild_step(int32_t begin, int32_t end, int32_t page, const RebuildRates& rates);

// Copies that are to come in a pass, in seconds from now: their first layer, and all of them.
struct ComingCopies {
  double first_layer = 0, all = 0;
};
// Of so much that is wanted so much has arrived; in whatever unit a link brings `per_second` of. REQUIRES: per_second > 0,
// num_layers > 0
ComingCopies coming_copies(double wanted, double arrived, double per_second, int32_t num_layers);
// Until what is left comes within a tick; infinite if it does already.
double seconds_until_early(const ComingCopies& copies, double tick);

// Whether the tick behind the gap may begin with these on their way, in company of `num_samples` samples, itself included.
//   all <= tick   no layer is waited for but the first: layer l is there after (l + 1) / L * all, and the pass, which then began
//                 first_layer = all / L later, comes to it after all / L + l / L * tick, which is no sooner
//   the others    are held up by first_layer each, and this sample has its next token a tick sooner, less first_layer, where others tick
//                 meanwhile: (num_samples - 1) * first_layer <= tick - first_layer. Alone it holds nobody up, and the rule says no more
//                 than that the first layer comes within the tick.
bool may_begin_early(const ComingCopies& copies, double tick, int32_t num_samples);

}  // namespace otr
