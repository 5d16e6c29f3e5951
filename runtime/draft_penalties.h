// DraftPenalties: penalty lists for draws behind drafted tokens: a sequence's own list, with the drafted tokens before the draw
// counted as output, as plain decoding would have counted them.
//
// Lists live until clear(); their memory is kept. Single-threaded.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "runtime/request.h"

namespace otr {

class DraftPenalties {
 public:
  void clear() { used_ = 0; }

  // Gives `draw` of sequence `s` the list behind `drafted`.
  void extend(const Sequence& s, std::span<const int32_t> drafted, SampleDraw* draw) {
    if (drafted.empty() || !s.group->sampling.penalised()) return;
    if (used_ == lists_.size()) lists_.emplace_back();
    std::vector<PenaltyEntry>& list = lists_[used_++];
    list.assign(s.penalties.begin(), s.penalties.end());
    for (const int32_t token : drafted) add_penalty(token, true, &list);
    draw->num_penalties = static_cast<int32_t>(list.size());
    draw->penalties = list.data();
  }

 private:
  std::vector<std::vector<PenaltyEntry>> lists_;  // growing moves the lists, not their elements
  size_t used_ = 0;
};

}  // namespace otr
