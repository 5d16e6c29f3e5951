#include "spec/history_drafter.h"

#include <algorithm>
#include <utility>

namespace otr {
namespace {

// Length of the match behind a node at `depth`, if the first was behind one of `length`.
size_t match_at(int32_t length, int32_t depth) {
  return static_cast<size_t>(std::min(length + depth - 1, PromptHistory::kMaxMatch));
}

}  // namespace

HistoryDrafter::HistoryDrafter(int number, HistorySource source, bool use_logprobs)
    : number_(number), source_(std::move(source)), use_logprobs_(use_logprobs) {
  places_.reserve(static_cast<size_t>(PromptHistory::kMaxPlaces) * (kMaxDraftNodes + 1));
  children_.reserve(PromptHistory::kMaxPlaces);
  candidates_.reserve(static_cast<size_t>(PromptHistory::kMaxPlaces) * (kMaxDraftNodes + 1));
}

void HistoryDrafter::join(const DraftSequence& s) {
  if (members_.size() <= static_cast<size_t>(s.slot)) members_.resize(static_cast<size_t>(s.slot) + 1);
  member(s.slot) = {};
  if (const std::shared_ptr<const HistoryIndex> index = current_index(); index != nullptr) find_history(s, *index);
}

std::shared_ptr<const HistoryIndex> HistoryDrafter::current_index() {
  std::shared_ptr<const HistoryIndex> index = source_();
  if (index != nullptr && latest_.lock() != index) latest_ = index, ++indices_seen_;
  return index;
}

void HistoryDrafter::find_history(const DraftSequence& s, const HistoryIndex& index) {
  Member& m = member(s.slot);
  m.indices_seen = indices_seen_;
  m.history = index.find(s.tokens.first(static_cast<size_t>(s.num_prompt)));
}

void HistoryDrafter::look_again(std::span<const DraftRow> rows) {
  const std::shared_ptr<const HistoryIndex> index = current_index();
  if (index == nullptr) return;
  for (const DraftRow& row : rows) {
    const Member& m = member(row.sequence.slot);
    if (m.history == nullptr && m.indices_seen != indices_seen_) find_history(row.sequence, *index);
  }
}

DraftWork HistoryDrafter::propose(std::span<const DraftRow> rows, const DraftLimits& limits) {
  look_again(rows);
  for (const DraftRow& row : rows) propose_row(row, limits.top_k, limits.max_nodes);
  return {};
}

bool HistoryDrafter::find_places(const DraftSequence& s, Member* m) {
  m->match_length = m->history->find(s.tokens, &places_);
  if (m->match_length > 0) {
    m->num_anchors = std::min(places_.size(), kMaxAnchor);
    std::copy_n(places_.begin(), m->num_anchors, m->anchor.begin());
    m->anchor_tokens = s.tokens.size();
    return true;
  }
  for (PromptHistory::Place place : std::span(m->anchor).first(m->num_anchors)) {
    if (m->history->advance(&place, static_cast<uint32_t>(s.tokens.size() - m->anchor_tokens))) places_.push_back(place);
  }
  return !places_.empty();
}

void HistoryDrafter::propose_row(const DraftRow& row, int32_t top_k, int32_t max_nodes) {
  Member& m = member(row.sequence.slot);
  m.proposed = m.history != nullptr && find_places(row.sequence, &m);
  if (!m.proposed) return;
  m.coupled = use_logprobs_ && m.history->has_logprobs() && row.sequence.temperature > 0.0f;
  const int32_t max_depth = m.coupled ? row.max_depth : std::min(row.max_depth, m.window);
  const auto worse = [](const Candidate& a, const Candidate& b) { return a.acceptance < b.acceptance; };
  candidates_.clear();
  expand(row, Forest::kRoot, 0, 1.0f, {0, places_.size()}, top_k);
  for (int32_t added = 0; added < max_nodes && !candidates_.empty(); ++added) {
    std::pop_heap(candidates_.begin(), candidates_.end(), worse);
    const Candidate c = candidates_.back();
    candidates_.pop_back();
    const int32_t node = row.forest->add(c.parent, c.token, c.acceptance, number_, c.rank);
    if (c.depth == max_depth) continue;
    expand(row, node, c.depth, c.acceptance, follow(*m.history, c.parent_places, c.token), top_k);
  }
}

// The places of `places` that are continued by `token`, one further.
HistoryDrafter::Range HistoryDrafter::follow(const PromptHistory& history, Range places, int32_t token) {
  const size_t begin = places_.size();
  for (size_t i = places.begin; i < places.end; ++i) {
    const PromptHistory::Place place = places_[i];
    if (history.token_at(place.position) == token) places_.push_back({place.position + 1, place.weight});
  }
  return {begin, places_.size()};
}

// The distinct tokens at the places, with their weights.
void HistoryDrafter::list_children(const PromptHistory& history, Range places) {
  children_.clear();
  for (size_t i = places.begin; i < places.end; ++i) {
    const int32_t token = history.token_at(places_[i].position);
    if (token == PromptHistory::kEnd) continue;
    const auto same = [token](const Child& c) { return c.token == token; };
    auto child = std::find_if(children_.begin(), children_.end(), same);
    if (child == children_.end()) child = children_.insert(children_.end(), {token, 0.0f, 0.0f, 0.0f});
    child->weight += places_[i].weight;
    child->score = child->weight;
  }
}

// p of a child: the weighted mean over all places. A place that was left by another token, of probability p', had at most 1 -
// p' for this one: where the places agree in all that came before them this is exact, and where they do not the child gets its
// share.
void HistoryDrafter::estimate(const PromptHistory& history, Range places, const DraftSequence& s, uint32_t position) {
  float total = 0.0f;
  for (const Child& child : children_) total += child.weight;
  for (Child& child : children_) {
    float own = 0.0f;
    for (size_t i = places.begin; i < places.end; ++i) {
      const auto [at, weight] = places_[i];
      if (history.token_at(at) == child.token) own += weight * history.probability_at(at);
    }
    const float mean = own / child.weight;
    for (size_t i = places.begin; children_.size() > 1 && i < places.end; ++i) {
      const auto [at, weight] = places_[i];
      const int32_t token = history.token_at(at);
      if (token == child.token || token == PromptHistory::kEnd) continue;
      own += weight * std::min(mean, 1.0f - std::min(history.probability_at(at), 1.0f));
    }
    child.probability = own / total;
    child.score = std::log(child.probability) + gumbel(s.noise, static_cast<uint32_t>(child.token), position);
  }
}

// Makes candidates of what may come after a node at `depth`.
void HistoryDrafter::expand(const DraftRow& row, int32_t parent, int32_t depth, float acceptance, Range places, int32_t top_k) {
  const Member& m = member(row.sequence.slot);
  const PromptHistory& history = *m.history;
  list_children(history, places);
  if (children_.empty()) return;
  if (m.coupled)
    estimate(history, places, row.sequence, static_cast<uint32_t>(row.sequence.tokens.size()) + static_cast<uint32_t>(depth));
  std::sort(children_.begin(), children_.end(),
            [](const Child& a, const Child& b) { return a.score != b.score ? a.score > b.score : a.token < b.token; });
  const size_t match = match_at(m.match_length, depth + 1);
  for (int32_t rank = 0; rank < std::min(top_k, static_cast<int32_t>(children_.size())); ++rank) {
    float keep = rates_[match][static_cast<size_t>(std::min(rank, kRanks - 1))].value();
    if (m.coupled && rank == 0) {
      float rest = 1.0f;
      for (const Child& child : children_) rest -= child.probability;
      keep = trust_[match].value() * std::exp(-std::max(rest, 0.0f) * std::exp(-children_[0].score));
    }
    if (m.coupled && acceptance * keep < kMinAcceptance) {
      if (rank == 0 && acceptance * keep >= kMinAcceptance * trust_[match].value()) trust_[match].fade();
      continue;
    }
    candidates_.push_back({acceptance * keep, parent, children_[static_cast<size_t>(rank)].token, depth + 1, rank, places});
    std::push_heap(candidates_.begin(), candidates_.end(),
                   [](const Candidate& a, const Candidate& b) { return a.acceptance < b.acceptance; });
  }
}

void HistoryDrafter::observe(const DraftVerdict& v) {
  Member& m = member(v.sequence.slot);
  if (!m.proposed) return;
  const uint16_t mine = static_cast<uint16_t>(1u << number_);
  const auto kept = [&v](int32_t node) { return std::find(v.accepted.begin(), v.accepted.end(), node) != v.accepted.end(); };
  int32_t deepest = 0, reached = 0;
  for (int32_t i = 0; i < v.forest->size(); ++i) {
    const DraftNode& node = (*v.forest)[i];
    if (node.drafters != mine) continue;  // rank and acceptance of a shared node may be another's
    deepest = std::max(deepest, node.depth);
    if (node.depth > v.num_new || (node.parent != Forest::kRoot && !kept(node.parent))) continue;  // not judged
    const bool is_kept = kept(i);
    const size_t match = match_at(m.match_length, node.depth);
    KeepRate& rate = rates_[match][static_cast<size_t>(std::min<int32_t>(node.rank, kRanks - 1))];
    rate.add_chain(1, is_kept);
    rate.fade();
    if (m.coupled && node.rank == 0) {
      const float before = node.parent == Forest::kRoot ? 1.0f : (*v.forest)[node.parent].acceptance;
      if (before > 0.0f) trust_[match].add(is_kept, std::min(node.acceptance / before / trust_[match].value(), 1.0f));
    }
    if (is_kept) reached = node.depth;
  }
  m.proposed = false;
  if (deepest == 0) return;
  m.window = reached == deepest ? std::min(m.window + kWindowStep, kMaxWindow) : kFirstWindow;
}

void HistoryDrafter::leave(int32_t slot) {
  if (static_cast<size_t>(slot) < members_.size()) member(slot) = {};  // else it never joined: memory ran out
}

}  // namespace otr
