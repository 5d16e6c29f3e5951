#include "spec/ngram_index.h"

#include <algorithm>

namespace otr {

int32_t NgramIndex::add_stream(std::span<const int32_t> context) {
  const auto last = context.last(std::min(context.size(), static_cast<size_t>(kMaxMatch)));
  streams_.emplace_back(last.begin(), last.end());
  return static_cast<int32_t>(streams_.size()) - 1;
}

// Slots may be shared by different n-grams: find() compares tokens.
size_t NgramIndex::slot_of(const int32_t* end) const {
  uint64_t h = 0;
  for (int32_t i = 1; i <= min_match_; ++i) h = (h ^ static_cast<uint32_t>(end[-i])) * 0x9e3779b97f4a7c15u;
  return static_cast<size_t>(h >> 32) & (table_.size() - 1);
}

void NgramIndex::enter(int32_t stream, int32_t position) {
  int32_t& newest = table_[slot_of(streams_[static_cast<size_t>(stream)].data() + position)];
  entries_.push_back({stream, position, newest});
  newest = static_cast<int32_t>(entries_.size()) - 1;
}

void NgramIndex::grow_table() {
  constexpr size_t kFirst = 256;
  table_.assign(std::max(kFirst, 2 * table_.size()), kNone);
  std::vector<Entry> old;
  old.swap(entries_);
  entries_.reserve(std::max(kFirst, 2 * old.size()));
  for (const Entry& e : old) enter(e.stream, e.position);
}

// The entry of a position is made when its successor arrives: what is found can be continued.
void NgramIndex::append(int32_t stream, int32_t token) {
  std::vector<int32_t>& tokens = streams_[static_cast<size_t>(stream)];
  tokens.push_back(token);
  const int32_t position = static_cast<int32_t>(tokens.size()) - 1;
  if (position < min_match_) return;
  if (2 * entries_.size() >= table_.size()) grow_table();
  enter(stream, position);
}

NgramIndex::Match NgramIndex::find(std::span<const int32_t> tokens) const {
  Match best;
  if (table_.empty() || tokens.size() < static_cast<size_t>(min_match_)) return best;
  const int32_t* end = tokens.data() + tokens.size();
  const int32_t most = static_cast<int32_t>(std::min(tokens.size(), static_cast<size_t>(kMaxMatch)));
  int32_t visits = kMaxVisits;
  for (int32_t i = table_[slot_of(end)]; i != kNone && visits > 0; i = entries_[static_cast<size_t>(i)].previous, --visits) {
    const Entry& e = entries_[static_cast<size_t>(i)];
    const int32_t* before = streams_[static_cast<size_t>(e.stream)].data() + e.position;
    const int32_t limit = std::min(most, e.position);
    int32_t length = 0;
    while (length < limit && before[-1 - length] == end[-1 - length]) ++length;
    if (length < min_match_ || length <= best.length) continue;
    best = {e.stream, e.position, length};
    if (length == kMaxMatch) break;
  }
  return best;
}

}  // namespace otr
