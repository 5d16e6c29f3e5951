// FakeWorkers: workers of pure numbers that play the runtime's part before Placement, and keep count of every sample.
//
// A sample waits for the group's prompt, in a queue, or runs; on its way it lies in an inbox. tick() is one worker's: it takes
// in what has come, answers the order it has, lets join who fits, and reports. A worker with nothing to do does not tick, as in
// the runtime.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <optional>
#include <random>
#include <vector>

#include "sched/placement.h"

namespace otr {

class FakeWorkers {
 public:
  struct Sample {
    int32_t id = 0;
    int32_t pages = 1;
    std::vector<Sample> blocked = {};  // samples that wait for its prompt
    int32_t count() const { return 1 + static_cast<int32_t>(blocked.size()); }
  };

  FakeWorkers(int32_t num_workers, int32_t places, int32_t pages)
      : placement_(num_workers), workers_(static_cast<size_t>(num_workers)) {
    for (int32_t w = 0; w < num_workers; ++w) {
      at(w).places = places;
      at(w).pages = pages;
      placement_.report(w, load(w));
    }
  }

  int32_t submit(int32_t n, int32_t pages) {
    Sample leader{.id = next_id_++, .pages = pages};
    for (int32_t i = 1; i < n; ++i) leader.blocked.push_back({.id = next_id_++, .pages = pages});
    const int32_t to = placement_.place(n);
    at(to).inbox.push_back(std::move(leader));
    return to;
  }

  bool has_work(int32_t w) { return at(w).order || !at(w).inbox.empty() || !at(w).queue.empty() || !at(w).running.empty(); }

  // Each running sample ends with this probability.
  void tick(int32_t w, double ends, std::mt19937* random) {
    if (!has_work(w)) return;
    Worker& me = at(w);
    for (; !me.inbox.empty(); me.inbox.pop_front()) {
      me.arrived += me.inbox.front().count();
      me.queue.push_back(std::move(me.inbox.front()));
    }
    std::optional<Move> answered;
    std::swap(answered, me.order);
    std::vector<Sample> given;
    if (answered) given = give(&me, *answered);
    // The oldest joins an empty batch whatever it takes; prompts run at once and let the others of their group follow.
    std::vector<Sample> unblocked;
    while (!me.queue.empty() && me.num_running() < me.places &&
           (me.running.empty() || me.free_pages() >= me.queue.front().pages)) {
      for (Sample& s : me.queue.front().blocked) unblocked.push_back(std::move(s));
      me.queue.front().blocked.clear();
      me.running.push_back(std::move(me.queue.front()));
      me.queue.pop_front();
    }
    for (Sample& s : unblocked) me.queue.push_back(std::move(s));
    std::uniform_real_distribution<double> chance(0, 1);
    std::erase_if(me.running, [&](const Sample& s) {
      const bool ended = chance(*random) < ends;
      if (ended) ended_.push_back(s.id);
      return ended;
    });
    report(w, answered, std::move(given));
  }

  int32_t num_samples() const { return next_id_; }
  int64_t num_moves() const { return num_moves_; }
  const std::vector<int32_t>& ended() const { return ended_; }
  // All samples that have not ended, wherever they are.
  std::vector<int32_t> unfinished() const {
    std::vector<int32_t> ids;
    const auto add = [&ids](const Sample& s) {
      ids.push_back(s.id);
      for (const Sample& b : s.blocked) ids.push_back(b.id);
    };
    for (const Worker& w : workers_) {
      std::for_each(w.inbox.begin(), w.inbox.end(), add);
      std::for_each(w.queue.begin(), w.queue.end(), add);
      std::for_each(w.running.begin(), w.running.end(), add);
    }
    return ids;
  }
  int32_t size() const { return static_cast<int32_t>(workers_.size()); }
  int32_t running(int32_t w) { return at(w).num_running(); }
  int32_t queued(int32_t w) { return static_cast<int32_t>(at(w).queue.size()); }
  // Whether it could run the oldest of the other's queue now.
  bool could_run_for(int32_t w, int32_t other) {
    const Worker &me = at(w), &from = at(other);
    if (from.queue.empty() || !me.queue.empty()) return false;
    return me.running.empty() ||
           (me.num_running() < me.places && me.free_pages() >= from.queue.front().pages + me.num_running() / 8);
  }

 private:
  struct Worker {
    int32_t places = 0, pages = 0;
    std::deque<Sample> inbox, queue;
    std::vector<Sample> running;
    std::optional<Move> order;
    int64_t arrived = 0;

    int32_t num_running() const { return static_cast<int32_t>(running.size()); }
    int32_t free_pages() const {
      int32_t free = pages;
      for (const Sample& s : running) free -= s.pages;
      return std::max(0, free);
    }
  };
  Worker& at(int32_t w) { return workers_[static_cast<size_t>(w)]; }

  static std::vector<Sample> give(Worker* me, const Move& move) {
    std::vector<Sample> given;
    for (int32_t count = 0; count < move.count;) {
      if (move.running ? me->num_running() < 2 : me->queue.empty()) break;
      if (move.running) {
        given.push_back(std::move(me->running.back()));
        me->running.pop_back();
      } else {
        given.push_back(std::move(me->queue.front()));
        me->queue.pop_front();
      }
      count += given.back().count();
    }
    return given;
  }

  WorkerLoad load(int32_t w) {
    const Worker& me = at(w);
    WorkerLoad load{.arrived = me.arrived,
                    .running = me.num_running(),
                    .queued = queued(w),
                    .free_places = me.places - me.num_running(),
                    .free_pages = me.free_pages(),
                    .next_pages = me.queue.empty() ? 0 : me.queue.front().pages};
    load.samples = load.running;
    for (const Sample& s : me.queue) load.samples += s.count();
    return load;
  }

  void report(int32_t w, const std::optional<Move>& answered, std::vector<Sample> given) {
    for (Sample& s : given) {
      placement_.sent(answered->to, s.count());
      at(answered->to).inbox.push_back(std::move(s));
    }
    if (answered) placement_.answered(*answered);
    placement_.report(w, load(w));
    for (const Move& move : placement_.rebalance()) {
      EXPECT_NE(move.from, move.to);
      EXPECT_GT(move.count, 0);
      EXPECT_FALSE(at(move.from).order) << "an order before the last one was answered";
      for (const Worker& other : workers_)
        EXPECT_TRUE(!other.order || (other.order->to != move.from && other.order->to != move.to));
      at(move.from).order = move;
      ++num_moves_;
    }
  }

  Placement placement_;
  std::vector<Worker> workers_;
  std::vector<int32_t> ended_;
  int32_t next_id_ = 0;
  int64_t num_moves_ = 0;
};

}  // namespace otr
