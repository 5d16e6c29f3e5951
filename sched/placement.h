// Placement: which worker gets a new group, and who gives samples to whom once their loads have drifted apart.
//
// A group goes to the worker with the fewest samples and stays together: its samples share the prompt's pages. One that goes on
// where another has ended goes to the worker that has those pages, unless too many others are there. Workers report their
// loads. Of a queue, whoever could run more than he has gets some, up to an even share. Where no queue is left, a worker that
// has run dry gets half of what the busiest one runs, if that is two samples or more. A sample that has moved gets its keys and
// values where it arrives, computed or copied: nothing decided here can change a result, only when it comes.
//
// A move is ordered by rebalance() and over with answered(), whatever was given; meanwhile neither worker takes part in
// another. A worker that is lost has nothing, and answers nothing. Until the one that takes its place reports for the first
// time, nothing is sent there while anybody else could take it; if none takes its place, never again.
//
// Pure: sees workers through WorkerLoad only. Single-threaded. Allocates in the constructor only.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace otr {

// A worker as placement sees it: what it last said of itself.
struct WorkerLoad {
  int64_t arrived = 0;      // samples that it has taken in so far, of all that were ever sent to it
  int32_t samples = 0;      // that it has
  int32_t running = 0;      // of them, in its batch
  int32_t queued = 0;       // that wait to join the batch; a group whose prompt waits is one
  int32_t free_places = 0;  // of its batch
  int32_t free_pages = 0;
  int32_t next_pages = 0;  // that the next of the queue takes; 0 without a queue
};

// Worker `from` is to give worker `to` about so many samples: of its queue, or else of what it runs.
struct Move {
  int32_t from, to;
  int32_t count;
  bool running;
};

class Placement {
 public:
  explicit Placement(int32_t num_workers);

  static constexpr int32_t kNobody = -1;

  // The workers before this one draft for the others: they get nothing, and give what they have. REQUIRES: fewer than all.
  void set_first(int32_t first) { first_ = static_cast<size_t>(first); }

  // What runs stays where it is: only queues are shared.
  void keep_running() { moves_running_ = false; }

  // The worker that a new group of so many samples is sent to; kNobody if all are lost. That is `home`, which has pages of its
  // prompt (kNobody: no worker has), unless somebody else is idle, or has over a quarter fewer samples, and one.
  int32_t place(int32_t samples, int32_t home = kNobody);
  // Samples that another worker gave are sent to this one.
  void sent(int32_t worker, int32_t samples) { state(worker).sent += samples; }
  void report(int32_t worker, const WorkerLoad& load) {
    state(worker).load = load;
    state(worker).away = false;
  }
  void answered(const Move& move);
  // Whether such a move was ordered and is not over.
  bool is_ordered(const Move& move) const;
  // What was sent to it is no longer there, come or not.
  void emptied(int32_t worker);
  // `comes_back`: an empty one takes its place, and reports when it is there.
  void lost(int32_t worker, bool comes_back);
  bool is_there(int32_t worker) const { return !states_[static_cast<size_t>(worker)].away; }
  int64_t num_samples(int32_t worker) const {
    return states_[static_cast<size_t>(worker)].samples();
  }  // that it has, or will have
  bool is_gone(int32_t worker) const { return states_[static_cast<size_t>(worker)].gone; }
  bool all_gone() const {
    return std::all_of(states_.begin(), states_.end(), [](const State& s) { return s.gone; });
  }

  // The worker has no sample, and none is to come. REQUIRES: it may get some
  bool is_idle(int32_t worker) const {
    return static_cast<size_t>(worker) >= first_ && states_[static_cast<size_t>(worker)].is_dry();
  }
  // Of those that `may` be, the worker that runs the most, and takes part in no move; kNobody: none runs anything.
  template <typename May>
  int32_t busiest(const May& may) const {
    int32_t most = kNobody;
    for (size_t w = 0; w < states_.size(); ++w) {
      const int32_t runs = states_[w].load.running;
      if (states_[w].moves || runs <= (most == kNobody ? 0 : states_[static_cast<size_t>(most)].load.running)) continue;
      if (may(static_cast<int32_t>(w))) most = static_cast<int32_t>(w);
    }
    return most;
  }

  // The moves to order now. Valid until the next call.
  const std::vector<Move>& rebalance();

 private:
  struct State {
    WorkerLoad load;
    int64_t sent = 0;
    int32_t expected = 0;  // samples that a move will bring, or take if negative
    bool moves = false;    // takes part in one
    bool away = false;     // lost, and none in its place has reported yet
    bool gone = false;     // none will
    int32_t gives_to = kNobody;

    int64_t unseen() const { return sent - load.arrived; }  // on the way to it
    int64_t samples() const { return load.samples + unseen() + expected; }
    bool gives_of_queue() const { return !moves && !away && load.queued > 0; }
    bool has_room() const { return !moves && !away && unseen() == 0 && load.queued == 0 && load.free_places > 0; }
    bool is_dry() const { return !moves && !away && samples() == 0; }
  };
  std::span<State> takers() { return std::span(states_).subspan(first_); }
  State& state(int32_t worker) { return states_[static_cast<size_t>(worker)]; }
  bool move_queued();
  bool move_running();
  void order(State* from, State* to, int64_t count, bool running);

  std::vector<State> states_;
  size_t first_ = 0;
  bool moves_running_ = true;
  std::vector<Move> moves_;
};

}  // namespace otr
