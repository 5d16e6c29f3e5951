#include "sched/placement.h"

#include <algorithm>
#include <tuple>

#include "sched/spare_pages.h"

namespace otr {

Placement::Placement(int32_t num_workers) : states_(static_cast<size_t>(num_workers)) {
  moves_.reserve(static_cast<size_t>(num_workers));
}

int32_t Placement::place(int32_t samples, int32_t home) {
  const auto rank = [](const State& s) { return std::tuple(s.gone, s.away, s.samples()); };
  const auto fewer = [&rank](const State& a, const State& b) { return rank(a) < rank(b); };
  State* to = &*std::min_element(takers().begin(), takers().end(), fewer);
  if (to->gone) return kNobody;
  if (home != kNobody && static_cast<size_t>(home) >= first_) {
    State& own = state(home);
    const int64_t most = to->samples() == 0 ? 0 : to->samples() + to->samples() / 4 + 1;
    if (!own.away && !own.gone && own.samples() <= most) to = &own;
  }
  to->sent += samples;
  return static_cast<int32_t>(to - states_.data());
}

void Placement::answered(const Move& move) {
  for (const int32_t worker : {move.from, move.to}) {
    state(worker).moves = false;
    state(worker).expected = 0;
  }
  state(move.from).gives_to = kNobody;
}

bool Placement::is_ordered(const Move& move) const { return states_[static_cast<size_t>(move.from)].gives_to == move.to; }

// Who was to give it something still answers.
void Placement::lost(int32_t worker, bool comes_back) {
  State& s = state(worker);
  if (s.gives_to != kNobody) answered({.from = worker, .to = s.gives_to, .count = 0, .running = false});
  s.load = {};
  s.sent = 0;
  s.away = true;
  s.gone = !comes_back;
}

void Placement::emptied(int32_t worker) {
  State& s = state(worker);
  s.load.free_places += s.load.running;
  s.load.samples = s.load.running = s.load.queued = s.load.next_pages = 0;
  s.load.arrived = s.sent;
}

const std::vector<Move>& Placement::rebalance() {
  moves_.clear();
  while (move_queued()) {
  }
  const auto queues = [](const State& s) { return s.load.queued > 0; };
  if (moves_running_ && std::none_of(states_.begin(), states_.end(), queues)) {
    while (move_running()) {
    }
  }
  return moves_;
}

void Placement::order(State* from, State* to, int64_t count, bool running) {
  const auto index = [this](const State* s) { return static_cast<int32_t>(s - states_.data()); };
  moves_.push_back({.from = index(from), .to = index(to), .count = static_cast<int32_t>(count), .running = running});
  from->moves = to->moves = true;
  from->gives_to = moves_.back().to;
  from->expected = -moves_.back().count;
  to->expected = moves_.back().count;
}

// From the most loaded worker with a queue to the least loaded one that can run its next: half of the difference, and no more
// than it can run. A worker without a sample can run anything.
bool Placement::move_queued() {
  State *from = nullptr, *to = nullptr;
  for (State& giver : states_) {
    if (!giver.gives_of_queue() || (from != nullptr && giver.samples() <= from->samples())) continue;
    State* best = nullptr;
    for (State& taker : takers()) {
      const bool fits =
          taker.samples() == 0 || taker.load.free_pages >= giver.load.next_pages + spare_pages(taker.load.running);
      if (taker.has_room() && fits && (best == nullptr || taker.samples() < best->samples())) best = &taker;
    }
    if (best == nullptr) continue;
    from = &giver;
    to = best;
  }
  if (from == nullptr) return false;
  const int64_t fit = to->load.free_pages / std::max(1, from->load.next_pages);
  const int64_t most = std::max<int64_t>(1, std::min<int64_t>(to->load.free_places, fit));
  order(from, to, std::clamp<int64_t>((from->samples() - to->samples()) / 2, 1, most), false);
  return true;
}

bool Placement::move_running() {
  const auto dry = std::find_if(takers().begin(), takers().end(), [](const State& s) { return s.is_dry(); });
  if (dry == takers().end()) return false;
  State* from = nullptr;
  for (State& s : states_) {
    if (!s.moves && s.load.running >= 2 && (from == nullptr || s.load.running > from->load.running)) from = &s;
  }
  if (from == nullptr) return false;
  order(from, &*dry, from->load.running / 2, true);
  return true;
}

}  // namespace otr
