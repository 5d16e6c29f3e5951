// KvSplit: where two ends meet, when a sequence goes on at another worker and its keys and values are made anew from the front while
// those of the old place are copied from the back.
//
// The copies come while the worker computes, so what takes longer decides: max(x / compute rate, (gap - x) / copy rate) for x tokens from
// the front, where computing anything takes a tick, and that a least time. The worker asks again before every tick, with the gap that is
// left and the rates that it measured.
//
// A page is copied whole, all layers of it, and the front ends where a page does. What that leaves on the table:
//   the page where they meet   both ends together do a page's tokens in 64 / (compute + copy rate), and rounding loses less than that:
//                              1.6 % of a gap of 4,000 tokens at most
//   its layers one by one      no row but those behind the gap needs copied pages, and the first of these runs in a tick of its own. Its
//                              layer l could begin when layer l of all pages is there, so the link could carry on for that tick, and no
//                              longer: tick * copy rate / (compute + copy rate) sooner, less than 1 of tinymath's 60 ms and more
//
// Pure functions of their arguments.
#pragma once

#include <cstdint>

namespace otr {

struct RebuildRates {
  double computed = 0;     // tokens per second that a tick's rows come to; 0: not known yet
  double copied = 0;       // tokens per second that arrive; 0: none do
  double least_tick = 0;   // seconds that a tick takes, however few its rows
};

// How long it takes until the two ends meet if the first x of `gap` tokens are computed.
double rebuild_seconds(int32_t x, int32_t gap, const RebuildRates& rates);

// How many of the positions [begin, end) to compute, from the front: such that they are done soonest, and the front ends at a multiple
// of `page` or at `end` (a page whose beginning is computed is not copied, so at least the rest of that one). With no copies all of
// them; with a compute rate that is not known, to the end of one page, which measures it. REQUIRES: 0 <= begin <= end, page > 0.
int32_t tokens_from_front(int32_t begin, int32_t end, int32_t page, const RebuildRates& rates);

}  // namespace otr
