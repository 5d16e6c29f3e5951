#include "spec/ngram_drafter.h"

#include <algorithm>
#include <utility>

namespace otr {
namespace {

// The token of the node `distance` before `node`.
int32_t ancestor(const Forest& forest, int32_t node, int32_t distance) {
  for (; distance > 0; --distance) node = forest[node].parent;
  return forest[node].token;
}

}  // namespace

void NgramDrafter::Tail::push(int32_t token) {
  if (size == tokens.size()) {
    std::shift_left(tokens.begin(), tokens.end(), 1);
    --size;
  }
  tokens[size++] = token;
}

bool NgramDrafter::Ahead::came(std::span<const int32_t> sequence) const {
  return num_tokens != 0 && sequence.size() == num_tokens && std::ranges::equal(sequence.last(tail.size), tail.view());
}

void NgramDrafter::join(const DraftSequence& s) {
  if (members_.size() <= static_cast<size_t>(s.slot)) members_.resize(static_cast<size_t>(s.slot) + 1);
  const auto prompt = s.tokens.first(static_cast<size_t>(s.num_prompt));
  auto it = groups_.find(s.group);
  if (it == groups_.end()) {  // whole before it is there: another sample of the group may join after this one had no memory
    auto group = std::make_unique<GroupIndex>();
    group->index.add_stream({});  // kPromptStream
    for (const int32_t token : prompt) group->index.append(kPromptStream, token);
    it = groups_.emplace(s.group, std::move(group)).first;
  }
  Member& m = member(s.slot);
  m = {.group = s.group, .index = it->second.get()};
  ++m.index->members;  // from here on leave() undoes it
  m.stream = m.index->index.add_stream(prompt);
  for (const int32_t token : s.tokens.subspan(prompt.size())) m.index->index.append(m.stream, token);
}

// What follows a match: in the sequence itself, to its end, where the match is in its prompt or response.
std::span<const int32_t> NgramDrafter::source_of(const DraftSequence& s, const Member& m,
                                                 const NgramIndex::Match& match) const {
  const int32_t before_response =
      s.num_prompt - std::min(s.num_prompt, NgramIndex::kMaxMatch);  // a response's stream has no more
  if (match.stream == kPromptStream) return s.tokens.subspan(static_cast<size_t>(match.position));
  if (match.stream == m.stream) return s.tokens.subspan(static_cast<size_t>(before_response + match.position));
  return m.index->index.stream(match.stream).subspan(static_cast<size_t>(match.position));
}

DraftWork NgramDrafter::propose(std::span<const DraftRow> rows, const DraftLimits& limits) {
  for (const DraftRow& row : rows) {
    Member& m = member(row.sequence.slot);
    const NgramIndex::Match match =
        m.ahead.came(row.sequence.tokens) ? m.ahead.match : m.index->index.find(row.sequence.tokens);
    m.match_length = match.length;
    if (match.length == 0) continue;
    const float keep = rates_[static_cast<size_t>(match.length)].value();
    const std::span<const int32_t> source = source_of(row.sequence, m, match);
    const int32_t available = static_cast<int32_t>(source.size());
    const bool own = source.data() + available == row.sequence.tokens.data() + row.sequence.tokens.size();
    int32_t parent = Forest::kRoot;
    float acceptance = 1.0f;
    for (int32_t i = 0; i < std::min(row.max_depth, limits.max_nodes); ++i) {
      int32_t token;
      if (i < available) {
        token = source[static_cast<size_t>(i)];
      } else if (own) {  // the match reaches the sequence's end: what has been drafted goes on from there
        token = ancestor(*row.forest, parent, available - 1);
      } else {
        break;
      }
      acceptance *= keep;
      parent = row.forest->add(parent, token, acceptance, number_, 0);
    }
  }
  return {};
}

void NgramDrafter::look_ahead(std::span<const DraftRow> rows) {
  for (const DraftRow& row : rows) {
    Member& m = member(row.sequence.slot);
    m.ahead = {};
    if (row.forest->empty()) continue;
    const NgramIndex& index = m.index->index;
    const std::span<const int32_t> tokens = row.sequence.tokens;
    const int32_t path = row.forest->run_end(0);
    Tail tail;
    for (const int32_t token : tokens.last(std::min(tokens.size(), tail.tokens.size()))) tail.push(token);
    for (int32_t node = 0; node < path; ++node) tail.push((*row.forest)[node].token);
    const NgramIndex::Match next = index.find(tail.view());
    if (next.length == 0) continue;
    tail.push(index.stream(next.stream)[static_cast<size_t>(next.position)]);
    if (const NgramIndex::Match match = index.find(tail.view()); match.length > 0) {
      m.ahead = {.num_tokens = tokens.size() + static_cast<size_t>(path) + 1, .tail = tail, .match = match};
    }
  }
}

void NgramDrafter::observe(const DraftVerdict& v) {
  Member& m = member(v.sequence.slot);
  if (m.match_length > 0) {
    const uint16_t mine = static_cast<uint16_t>(1u << number_);
    int32_t drafted = 0, kept = 0;
    for (const DraftNode& node : v.forest->nodes()) drafted += (node.drafters & mine) != 0;
    for (const int32_t node : v.accepted) kept += ((*v.forest)[node].drafters & mine) != 0;
    KeepRate& rate = rates_[static_cast<size_t>(m.match_length)];
    rate.add_chain(std::min(drafted, v.num_new), kept);  // what an end cuts off is not wrong
    rate.fade();
    m.match_length = 0;
  }
  for (const int32_t token : v.sequence.tokens.last(static_cast<size_t>(v.num_new))) m.index->index.append(m.stream, token);
}

void NgramDrafter::leave(int32_t slot) {
  if (static_cast<size_t>(slot) >= members_.size()) return;  // it never joined: memory ran out
  Member& m = member(slot);
  if (m.index != nullptr && --m.index->members == 0) groups_.erase(m.group);
  m = {};
}

}  // namespace otr
