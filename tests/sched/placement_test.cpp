// Where samples run: groups are spread, none is lost or doubled by moves, and no worker is idle while another has a queue.

#include "sched/placement.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "tests/sched/fake_workers.h"

namespace otr {
namespace {

WorkerLoad idle(int32_t places = 8, int32_t pages = 100) { return {.free_places = places, .free_pages = pages}; }

// Of samples that it has taken in.
WorkerLoad loaded(int32_t running, int32_t queued, int32_t places = 8, int32_t pages = 100) {
  return {.arrived = running + queued,
          .samples = running + queued,
          .running = running,
          .queued = queued,
          .free_places = places - running,
          .free_pages = pages,
          .next_pages = queued > 0 ? 1 : 0};
}

// Workers with these loads, all of whose samples are seen.
Placement placement_of(const std::vector<WorkerLoad>& loads) {
  Placement p(static_cast<int32_t>(loads.size()));
  for (size_t w = 0; w < loads.size(); ++w) {
    p.sent(static_cast<int32_t>(w), static_cast<int32_t>(loads[w].arrived));
    p.report(static_cast<int32_t>(w), loads[w]);
  }
  return p;
}

std::string text_of(const std::vector<Move>& moves) {
  std::string text;
  for (const Move& m : moves) {
    text += std::to_string(m.from) + ">" + std::to_string(m.to) + ":" + std::to_string(m.count) + (m.running ? "r " : "q ");
  }
  return text;
}

std::string rebalanced(const std::vector<WorkerLoad>& loads) { return text_of(placement_of(loads).rebalance()); }

TEST(Placement, ANewGroupGoesWhereTheFewestSamplesAre) {
  Placement p = placement_of({idle(), idle(), idle()});
  EXPECT_EQ(p.place(5), 0);  // none has any: the first
  EXPECT_EQ(p.place(2), 1);
  EXPECT_EQ(p.place(2), 2);
  EXPECT_EQ(p.place(1), 1);
  EXPECT_EQ(p.place(4), 2);  // 5, 3, 2
  EXPECT_EQ(p.place(1), 1);
  p.report(0, {.arrived = 5, .samples = 1, .running = 1, .free_places = 7, .free_pages = 9});  // four have ended
  EXPECT_EQ(p.place(1), 0);
}

TEST(Placement, WhoGoesOnGoesHomeUnlessTooManyAreThere) {
  Placement p = placement_of({loaded(8, 0, 20), loaded(10, 0, 20), loaded(13, 0, 20)});
  EXPECT_EQ(p.place(1, 1), 1);
  EXPECT_EQ(p.num_samples(1), 11);
  EXPECT_EQ(p.place(1, 1), 1) << "a quarter more than 8, and one";
  EXPECT_EQ(p.place(1, 1), 0) << "that would be 12";
  EXPECT_EQ(p.place(1, 2), 0);
  EXPECT_EQ(p.place(1, Placement::kNobody), 0);
  Placement dry = placement_of({loaded(1, 0), loaded(0, 0), loaded(0, 0)});
  EXPECT_EQ(dry.place(1, 0), 1) << "who is idle has more need of it";
  EXPECT_EQ(dry.place(1, 2), 2);
  p.lost(1, true);
  EXPECT_EQ(p.place(1, 1), 0) << "nothing goes to who is not back yet";
  p.set_first(1);
  EXPECT_EQ(p.place(1, 0), 2) << "nor to who drafts";
}

TEST(Placement, AQueueIsSharedWithWhoeverHasRoom) {
  EXPECT_EQ(rebalanced({loaded(8, 10), idle()}), "0>1:8q ");  // half of 18, and no more than it has places
  EXPECT_EQ(rebalanced({loaded(8, 2), idle()}), "0>1:5q ");
  EXPECT_EQ(rebalanced({loaded(8, 1), loaded(7, 0)}), "0>1:1q ");
  EXPECT_EQ(rebalanced({loaded(2, 1), loaded(7, 0)}), "0>1:1q ");  // though it runs more: its pages are free
  EXPECT_EQ(rebalanced({loaded(8, 5), loaded(8, 0)}), "");         // no place
  EXPECT_EQ(rebalanced({loaded(8, 5), loaded(7, 1)}), "");         // it has a queue of its own
  EXPECT_EQ(rebalanced({loaded(8, 5), loaded(3, 0, 8, 0)}), "");   // no page
  EXPECT_EQ(rebalanced({loaded(8, 5), idle(8, 0)}), "0>1:1q ");    // alone it fits: what its pages hold can be evicted
  EXPECT_EQ(rebalanced({loaded(8, 9), loaded(8, 20), idle(), idle()}), "1>2:8q 0>3:8q ");  // each takes part in one move
}

TEST(Placement, TheLongestQueueIsSharedFirst) {
  EXPECT_EQ(rebalanced({loaded(8, 20), loaded(8, 9), idle()}), "0>2:8q ");
  EXPECT_EQ(rebalanced({loaded(8, 9), loaded(8, 20), loaded(8, 5), idle()}), "1>3:8q ");
}

// A page for each eight that run is not for who comes.
TEST(Placement, WhoRunsManyKeepsAPageToSpare) {
  EXPECT_EQ(rebalanced({loaded(16, 5, 16), loaded(8, 0, 16, 1)}), "");
  EXPECT_EQ(rebalanced({loaded(16, 5, 16), loaded(8, 0, 16, 2)}), "0>1:2q ");
  EXPECT_EQ(rebalanced({loaded(16, 5, 16), loaded(7, 0, 16, 1)}), "0>1:1q ");
}

TEST(Placement, WhoHasRunDryGetsHalfOfWhatTheBusiestRuns) {
  EXPECT_EQ(rebalanced({loaded(5, 0), idle()}), "0>1:2r ");
  EXPECT_EQ(rebalanced({loaded(2, 0), loaded(4, 0), idle()}), "1>2:2r ");
  EXPECT_EQ(rebalanced({loaded(1, 0), idle()}), "");                       // alone it stays
  EXPECT_EQ(rebalanced({loaded(5, 0), loaded(1, 0)}), "");                 // it has something to do
  EXPECT_EQ(rebalanced({loaded(5, 0), loaded(8, 3), idle()}), "1>2:5q ");  // a queue comes first
}

// What was ordered counts as done until the answer comes: for whom to ask next, and for whom to send a new group to.
TEST(Placement, WhatIsOrderedCounts) {
  Placement p = placement_of({loaded(8, 10), idle(), loaded(8, 2)});
  const Move move = p.rebalance().at(0);
  EXPECT_EQ(text_of({move}), "0>1:8q ");
  EXPECT_EQ(p.num_samples(0), 10);
  EXPECT_EQ(p.num_samples(1), 8);
  EXPECT_EQ(p.place(1), 1);
  EXPECT_EQ(p.place(1), 1);
  EXPECT_EQ(p.place(1), 0);  // 10, 10, 10
  p.answered(move);
  EXPECT_EQ(p.num_samples(0), 19);
  EXPECT_EQ(p.num_samples(1), 2);
}

TEST(Placement, RunningSamplesStayWhileAnybodyHasAQueue) {
  EXPECT_EQ(rebalanced({loaded(8, 1), loaded(6, 0), idle(), idle()}), "0>2:4q ");
  EXPECT_EQ(rebalanced({loaded(8, 3), idle(0)}), "");
}

TEST(Placement, WhatIsOnTheWayCounts) {
  Placement p = placement_of({loaded(8, 6), idle(), idle()});
  EXPECT_EQ(text_of(p.rebalance()), "0>1:7q ");
  EXPECT_EQ(text_of(p.rebalance()), "") << "the order is not answered";
  p.sent(1, 4);  // it gave four
  p.answered({.from = 0, .to = 1, .count = 7, .running = false});
  p.report(0, {.arrived = 14, .samples = 10, .running = 8, .queued = 2, .free_places = 0, .free_pages = 9, .next_pages = 1});
  EXPECT_EQ(text_of(p.rebalance()), "0>2:5q ") << "worker 1 has four samples that it has not seen yet";
  Placement q = placement_of({loaded(8, 6), idle()});
  q.sent(1, 2);
  EXPECT_EQ(text_of(q.rebalance()), "") << "worker 1 does not know yet what it has";
}

// Until a successor reports, others get what there is; if there are no others, it waits for one of them.
TEST(Placement, NothingGoesToWhoIsNotBackYet) {
  Placement p = placement_of({loaded(3, 0), loaded(8, 4), loaded(8, 0)});
  p.lost(0, true);
  EXPECT_FALSE(p.is_there(0));
  EXPECT_FALSE(p.is_gone(0));
  EXPECT_FALSE(p.is_idle(0));
  EXPECT_EQ(p.place(1), 2) << "worker 0 has nothing, and is not there";
  EXPECT_EQ(text_of(p.rebalance()), "");
  p.report(0, idle());
  EXPECT_TRUE(p.is_there(0) && p.is_idle(0));
  EXPECT_EQ(text_of(p.rebalance()), "1>0:6q ");
  for (const int32_t w : {0, 1, 2}) p.lost(w, w != 0);
  EXPECT_EQ(p.place(3), 1);
  EXPECT_EQ(p.place(1), 2);
  p.report(2, idle());
  EXPECT_EQ(p.place(1), 2);
  EXPECT_EQ(p.place(5), 2) << "it has more than worker 1, but is there";
}

// ---- Random lives --------------------------------------------------------------------------------------------------------

void expect_all_there(const FakeWorkers& workers) {
  std::vector<int32_t> all = workers.unfinished();
  all.insert(all.end(), workers.ended().begin(), workers.ended().end());
  std::sort(all.begin(), all.end());
  std::vector<int32_t> expected(static_cast<size_t>(workers.num_samples()));
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(all, expected) << "a sample is lost or doubled";
}

// Ticks in random order till nothing changes but the ticks themselves.
void settle(FakeWorkers* workers, std::mt19937* random) {
  int64_t moves = -1;
  for (int round = 0; round < 200 && moves != workers->num_moves(); ++round) {
    moves = workers->num_moves();
    for (int pass = 0; pass < 4; ++pass) {
      for (int32_t i = 0; i < 2 * workers->size(); ++i)
        workers->tick(static_cast<int32_t>((*random)() % static_cast<uint32_t>(workers->size())), 0, random);
      for (int32_t w = 0; w < workers->size(); ++w) workers->tick(w, 0, random);
    }
  }
  EXPECT_EQ(moves, workers->num_moves()) << "samples move for ever";
}

void expect_no_idle_worker(FakeWorkers* workers) {
  bool queues = false;
  for (int32_t w = 0; w < workers->size(); ++w) queues |= workers->queued(w) > 0;
  for (int32_t w = 0; w < workers->size(); ++w) {
    for (int32_t other = 0; other < workers->size(); ++other) {
      EXPECT_FALSE(workers->could_run_for(w, other)) << "worker " << w << " has room, worker " << other << " a queue";
      EXPECT_FALSE(!queues && workers->running(w) == 0 && workers->running(other) > 1) << "worker " << w << " is dry";
    }
  }
}

TEST(Placement, WhoIsEmptiedHasOnlyWhatIsSentAgain) {
  Placement p = placement_of({loaded(8, 6), loaded(2, 0)});
  p.sent(0, 3);  // on the way
  p.emptied(0);
  EXPECT_EQ(p.num_samples(0), 0);
  EXPECT_TRUE(p.is_idle(0));
  EXPECT_EQ(text_of(p.rebalance()), "1>0:1r ");  // it has run dry
  Placement q = placement_of({loaded(8, 6), loaded(2, 0)});
  q.sent(0, 3);
  q.emptied(0);
  q.sent(0, 17);
  EXPECT_EQ(q.num_samples(0), 17);
  q.report(0, {.arrived = 17, .free_places = 8, .free_pages = 100});  // it has heard; what was sent again is on the way
  EXPECT_EQ(q.num_samples(0), 17);
  q.report(0, {.arrived = 34, .samples = 17, .running = 8, .queued = 9, .free_pages = 100});
  EXPECT_EQ(q.num_samples(0), 17);
}

TEST(Placement, WhoIsLostHasNothing) {
  Placement p = placement_of({loaded(8, 6), idle(), idle()});
  const Move move = p.rebalance().at(0);
  EXPECT_EQ(move.from, 0);
  EXPECT_TRUE(p.is_ordered(move));
  EXPECT_FALSE(p.is_ordered({.from = 2, .to = 1, .count = 1, .running = false}));
  p.lost(0, true);  // it will never answer
  EXPECT_FALSE(p.is_ordered(move));
  EXPECT_EQ(p.rebalance().size(), 0u);  // an empty one is in its place
  p.sent(0, 14);
  p.report(0, loaded(8, 6));
  EXPECT_NE(text_of(p.rebalance()), "");  // and whoever was to take something is free again
}

TEST(Placement, WhoIsLostRunsNothing) {
  Placement p = placement_of({loaded(8, 6), loaded(3, 0)});
  p.sent(0, 2);
  p.lost(0, true);
  EXPECT_EQ(p.num_samples(0), 0);
  EXPECT_EQ(p.busiest([](int32_t) { return true; }), 1);
}

TEST(Placement, WhoWasToTakeFromOneThatIsThereHearsOfIt) {
  Placement p = placement_of({loaded(8, 6), idle()});
  const Move move = p.rebalance().at(0);
  p.lost(move.to, true);
  EXPECT_TRUE(p.is_ordered(move));
  EXPECT_EQ(p.rebalance().size(), 0u);  // one order at a time
  p.answered(move);
  p.report(move.to, idle());
  EXPECT_EQ(p.rebalance().size(), 1u);
}

TEST(Placement, NothingGoesToWhoIsGone) {
  Placement p = placement_of({loaded(2, 0), loaded(8, 6), idle()});
  p.lost(2, false);
  EXPECT_TRUE(p.is_gone(2));
  EXPECT_EQ(text_of(p.rebalance()).find(">2"), std::string::npos);
  for (int i = 0; i < 30; ++i) EXPECT_NE(p.place(1), 2);
  p.lost(0, false);
  EXPECT_EQ(p.place(5), 1);
  EXPECT_EQ(p.rebalance().size(), 0u);
  p.lost(1, false);
  EXPECT_EQ(p.place(5), Placement::kNobody);
}

TEST(Placement, WhoDraftsGetsNothingAndGivesWhatItHas) {
  Placement p = placement_of({loaded(6, 3), loaded(1, 0), idle()});
  EXPECT_EQ(p.place(1), 2);
  p.report(2, idle());
  p.set_first(1);
  for (int i = 0; i < 20; ++i) EXPECT_NE(p.place(1), 0);
  EXPECT_FALSE(p.is_idle(0));

  Placement queued = placement_of({loaded(6, 3), loaded(8, 0), idle()}), running = placement_of({loaded(6, 0), idle(), idle()});
  queued.set_first(1);
  running.set_first(1);
  EXPECT_EQ(text_of(queued.rebalance()), "0>2:4q ");
  EXPECT_EQ(text_of(running.rebalance()), "0>1:3r ");

  Placement dry = placement_of({idle(), loaded(6, 0)});
  EXPECT_TRUE(dry.is_idle(0));
  dry.set_first(1);
  EXPECT_FALSE(dry.is_idle(0));  // it has something to do
  EXPECT_EQ(text_of(dry.rebalance()), "");
  dry.set_first(0);  // coupled again
  EXPECT_EQ(text_of(dry.rebalance()), "1>0:3r ");
}

TEST(Placement, WhoGivesItsLastSampleIsNotIdleYet) {
  Placement p = placement_of({loaded(0, 1, 0), idle()});
  EXPECT_EQ(text_of(p.rebalance()), "0>1:1q ");
  EXPECT_EQ(p.num_samples(0), 0);
  EXPECT_FALSE(p.is_idle(0) || p.is_idle(1));
}

TEST(Placement, AllAreGoneWhenTheLastIs) {
  Placement p = placement_of({idle(), idle()});
  p.lost(0, false);
  EXPECT_FALSE(p.all_gone());
  p.lost(1, true);
  EXPECT_FALSE(p.all_gone());
  p.lost(1, false);
  EXPECT_TRUE(p.all_gone());
}

TEST(Placement, WhatRunsMayBeKept) {
  Placement running = placement_of({loaded(6, 0), idle()}), queued = placement_of({loaded(6, 3), idle()});
  running.keep_running();
  queued.keep_running();
  EXPECT_EQ(text_of(running.rebalance()), "");
  EXPECT_EQ(text_of(queued.rebalance()), "0>1:4q ");
  EXPECT_EQ(running.num_samples(0), 6);
}

TEST(Placement, TheBusiestRunsTheMostAndTakesPartInNoMove) {
  const auto anybody = [](int32_t) { return true; };
  EXPECT_EQ(placement_of({idle(), idle()}).busiest(anybody), -1);
  EXPECT_EQ(placement_of({idle(), loaded(0, 3)}).busiest(anybody), -1);  // what waits does not run
  EXPECT_EQ(placement_of({loaded(2, 0), loaded(5, 0), loaded(5, 0)}).busiest(anybody), 1);
  EXPECT_EQ(placement_of({loaded(2, 9), loaded(5, 0)}).busiest(anybody), 1);
  Placement p = placement_of({loaded(6, 0), loaded(2, 0), idle()});
  EXPECT_EQ(p.busiest(anybody), 0);
  const Move move = p.rebalance().at(0);
  EXPECT_EQ(move.from, 0);
  EXPECT_EQ(p.busiest(anybody), 1);
  p.answered(move);
  EXPECT_EQ(p.busiest(anybody), 0);
  EXPECT_EQ(p.busiest([](int32_t w) { return w != 0; }), 1);
  EXPECT_EQ(p.busiest([](int32_t w) { return w == 2; }), -1);
}

TEST(Placement, NothingIsLostAndNobodyIdlesBesideAQueue) {
  int64_t moves = 0;
  for (uint32_t seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    const auto below = [&random](int32_t n) { return static_cast<int32_t>(random() % static_cast<uint32_t>(n)); };
    const int32_t pages = 8 + below(40);
    FakeWorkers workers(1 + below(6), 1 + below(12), pages);
    for (int event = 0; event < 300; ++event) {
      const int what = below(20);
      if (what < 3) workers.submit(1 + below(below(4) == 0 ? 40 : 4), 1 + below(std::min(8, pages)));
      else workers.tick(below(workers.size()), 0.02 * below(10), &random);
      if (event % 100 == 99) {
        settle(&workers, &random);
        expect_no_idle_worker(&workers);
        expect_all_there(workers);
        if (testing::Test::HasFailure()) FAIL() << "seed " << seed << ", event " << event;
      }
    }
    for (int round = 0; !workers.unfinished().empty() && round < 10'000; ++round)
      workers.tick(below(workers.size()), 0.3, &random);
    EXPECT_TRUE(workers.unfinished().empty()) << "seed " << seed;
    expect_all_there(workers);
    moves += workers.num_moves();
  }
  EXPECT_GT(moves, 3000);
}

}  // namespace
}  // namespace otr
