#include "sched/batcher.h"

#include <gtest/gtest.h>

#include <array>
#include <random>
#include <utility>
#include <vector>

#include "tests/runtime/sanitized.h"
#include "tests/sched/fake_host.h"

namespace otr {
namespace {

using Slots = std::vector<int32_t>;

BatchLimits limits(int32_t max_batch, int32_t chunk, int32_t logit_rows = 1000) {
  return {.max_batch = max_batch, .prefill_chunk = chunk, .max_logit_rows = logit_rows};
}

FakeSequence prompt(int32_t num_prompt, int32_t response = 10) {
  return {.num_prompt = num_prompt, .max_tokens = num_prompt + response};
}

FakeSequence score(int32_t num_prompt, int32_t num_tokens) {
  return {.num_prompt = num_prompt, .max_tokens = num_prompt + num_tokens, .is_score = true};
}

TEST(Batcher, NothingToDoIsAnEmptyPlan) {
  FakeHost host(limits(4, 16), 10);
  EXPECT_TRUE(host.batcher().empty());
  EXPECT_FALSE(host.tick());
}

TEST(Batcher, TheOldestTakesTheChunkFirst) {
  FakeHost host(limits(4, 100), 10);
  const int32_t a = host.add(prompt(150)), b = host.add(prompt(30)), c = host.add(prompt(40));
  host.tick();
  ASSERT_EQ(host.planned_slots(), (Slots{a}));
  EXPECT_EQ(host.plan()[0].end, 100);
  EXPECT_EQ(host.batcher().num_running(), 3);
  host.tick();
  ASSERT_EQ(host.planned_slots(), (Slots{a, b, c}));
  EXPECT_EQ(host.plan()[0].end, 150);
  EXPECT_EQ(host.plan()[1].end, 30);
  EXPECT_EQ(host.plan()[2].end, 20);
}

TEST(Batcher, DecodingCostsNoChunk) {
  FakeHost host(limits(4, 8), 10);
  const int32_t a = host.add(prompt(1)), b = host.add(prompt(1)), c = host.add(prompt(50));
  host.tick();
  ASSERT_EQ(host.planned_slots(), (Slots{a, b, c}));
  EXPECT_EQ(host.plan()[2].end, 8);
  host.tick();
  ASSERT_EQ(host.planned_slots(), (Slots{a, b, c}));
  EXPECT_EQ(host.plan()[2].end, 16);
}

TEST(Batcher, AgeGoesBeforeOrderOfArrival) {
  class Host final : public BatchHost {
   public:
    SequenceView view(int32_t) const override { return {.num_target = 1, .num_computed = 0, .remaining = 1, .logits_from = 0}; }
    int32_t pages_available() const override { return 100; }
    int32_t pages_held(int32_t) const override { return 0; }
    int32_t pages_private(int32_t) const override { return 0; }
    int32_t pages_to_write(int32_t, int32_t, int32_t) const override { return 1; }
    void attach_prefix(int32_t) override {}
    void drop_pages(int32_t, bool) override {}
    void take_pages(int32_t, int32_t, int32_t) override {}
  } host;
  Batcher batcher(limits(3, 8));
  for (const int32_t slot : {4, 1, 3, 0, 2}) batcher.add(slot, static_cast<uint64_t>(slot) + 10);
  Slots slots;
  for (const RowRun& run : batcher.schedule(&host)) slots.push_back(run.slot);
  EXPECT_EQ(slots, (Slots{0, 1, 2}));
}

TEST(Batcher, LogitRowsAreLimited) {
  FakeHost host(limits(8, 1000, 10), 100);
  const int32_t a = host.add(score(30, 25)), b = host.add(prompt(40)), c = host.add(prompt(5));
  host.tick();  // a runs up to its tenth row of logits: 29 … 38; the others run what needs none
  ASSERT_EQ(host.planned_slots(), (Slots{a, b, c}));
  EXPECT_EQ(host.plan()[0].end, 39);
  EXPECT_EQ(host.plan()[1].end, 39);
  EXPECT_EQ(host.plan()[2].end, 4);
  host.tick();
  ASSERT_EQ(host.planned_slots(), (Slots{a}));
  EXPECT_EQ(host.plan()[0].end, 49);
  host.tick();  // its last five rows leave five to the others
  ASSERT_EQ(host.planned_slots(), (Slots{a, b, c}));
  EXPECT_EQ(host.plan()[1].end, 40);
}

TEST(Batcher, TheBatchIsLimitedAndTheOldestWaitingJoins) {
  FakeHost host(limits(2, 100), 100);
  const int32_t a = host.add(prompt(5, 2)), b = host.add(prompt(5, 4)), c = host.add(prompt(5, 4)), d = host.add(prompt(5, 4));
  host.tick();
  EXPECT_EQ(host.planned_slots(), (Slots{a, b}));
  host.tick();  // a's last
  EXPECT_EQ(host.planned_slots(), (Slots{a, b}));
  host.tick();
  EXPECT_EQ(host.planned_slots(), (Slots{b, c}));
  EXPECT_TRUE(host.sequence(d).alive);
}

TEST(Batcher, JoiningLeavesThePagesThatRunningSequencesWantNow) {
  FakeHost host(limits(16, 1000), 10);
  const int32_t a = host.add(prompt(64 * 7));
  const int32_t b = host.add(prompt(64 * 4));  // 7 + 4 > 10
  host.tick();
  EXPECT_EQ(host.planned_slots(), (Slots{a}));
  EXPECT_EQ(host.pages_held(b), 0);
  const int32_t c = host.add(prompt(64));  // would fit, but b is older
  host.tick();
  EXPECT_EQ(host.planned_slots(), (Slots{a}));
  EXPECT_TRUE(host.sequence(c).alive);
}

TEST(Batcher, JoiningLeavesASparePageForEightThatRun) {
  for (const int32_t running : {7, 8}) {
    FakeHost host(limits(32, 1000), 10);
    for (int32_t i = 0; i < running; ++i) host.add(prompt(32, 16));
    host.tick();
    host.reserve(9 - running);  // one page is left
    const int32_t joining = host.add(prompt(32, 16));
    host.tick();
    EXPECT_EQ(host.plan().size() == static_cast<size_t>(running) + 1, running == 7) << running;
    EXPECT_EQ(host.pages_held(joining), running == 7 ? 1 : 0);
  }
}

// Four sequences at the end of a page each, one page left.
struct Crowded {
  Crowded() : host(limits(8, 1000), 5) {
    for (const int32_t response : {500, 90, 200, 100}) slots.push_back(host.add(prompt(63, response)));
    host.tick();
    host.tick();
    for (const int32_t slot : slots) EXPECT_EQ(host.sequence(slot).num_computed, 64);
  }
  FakeHost host;
  Slots slots;
};

TEST(Batcher, TheVictimHasTheMostLeftAndTheOldestIsImmune) {
  Crowded c;
  c.host.tick();
  // Four pages are wanted. The oldest has the most left and stays; then 200 (2 pages for 3), then 100 (3 for 2) give way.
  EXPECT_EQ(c.host.preempted(), (Slots{c.slots[2], c.slots[3]}));
  EXPECT_EQ(c.host.planned_slots(), (Slots{c.slots[0], c.slots[1]}));
  EXPECT_EQ(c.host.sequence(c.slots[2]).num_tokens, 65);  // tokens are kept
  EXPECT_EQ(c.host.sequence(c.slots[2]).num_computed, 0);
}

TEST(Batcher, APreemptedSequenceResumesByAgeAndRecomputes) {
  Crowded c;
  c.host.tick();
  c.host.cancel(c.slots[0]);
  c.host.cancel(c.slots[1]);
  c.host.tick();
  EXPECT_EQ(c.host.planned_slots(), (Slots{c.slots[2], c.slots[3]}));
  EXPECT_EQ(c.host.plan()[0].begin, 0);
  EXPECT_EQ(c.host.plan()[0].end, 65);
}

TEST(Batcher, AVictimThatFreesAPageGoesFirst) {
  FakeHost host(limits(8, 1000), 4);
  FakeSequence shared = prompt(64, 300);
  shared.num_siblings = 1;
  const int32_t a = host.add(prompt(64, 10));
  const int32_t leader = host.add(shared);  // and its sibling: 300 left, but its only page is the leader's too
  const int32_t b = host.add(prompt(64, 20));
  host.tick();
  EXPECT_EQ(host.planned_slots(), (Slots{a, leader, b}));
  const int32_t sibling = host.num_slots() - 1;
  host.tick();  // all want a page, one is left
  ASSERT_FALSE(host.preempted().empty());
  EXPECT_EQ(host.preempted()[0], b);
  EXPECT_TRUE(host.sequence(sibling).alive);
}

// a, the oldest, wants a page; b runs but got no turn yet and holds nothing: only c and d, which wait with a shared page, can
// help.
TEST(Batcher, WhoHoldsNoPageCannotHelp) {
  FakeHost host(limits(2, 64), 4);
  const int32_t a = host.add(prompt(256, 10));
  const int32_t b = host.add(prompt(64, 1000));
  host.tick();
  EXPECT_EQ(host.planned_slots(), (Slots{a}));
  EXPECT_EQ(host.batcher().num_running(), 2);
  const int32_t c = host.add(prompt(200, 10)), d = host.add(prompt(200, 10));
  host.give(c, 192);
  host.share(c, d);
  host.tick();
  EXPECT_EQ(host.planned_slots(), (Slots{a}));
  EXPECT_TRUE(host.preempted().empty());
  EXPECT_EQ(host.pages_held(c) + host.pages_held(d), 0);
  EXPECT_EQ(host.batcher().num_running(), 2);
  EXPECT_TRUE(host.sequence(b).alive);
}

// Two groups' first samples end at once and leave siblings that wait with all pages: the first to go on needs one of them.
TEST(Batcher, AnIdleBatchTakesPagesFromThoseWhoWait) {
  FakeHost host(limits(2, 1000), 4);
  FakeSequence group = prompt(65, 30);
  group.num_siblings = 2;
  group.stops_at_once = true;
  host.add(group);
  host.add(group);
  EXPECT_TRUE(host.tick());
  EXPECT_EQ(host.pages_available(), 0);
  EXPECT_TRUE(host.tick()) << "live sequences and an empty plan";
  for (int i = 0; i < 200 && !host.all_done(); ++i) host.tick();
  EXPECT_TRUE(host.all_done());
}

TEST(Batcher, RemovesRunningAndWaiting) {
  FakeHost host(limits(2, 100), 100);
  Slots slots;
  for (int i = 0; i < 5; ++i) slots.push_back(host.add(prompt(5, 50)));
  host.tick();
  host.cancel(slots[3]);  // waiting
  host.cancel(slots[0]);  // running
  host.tick();
  EXPECT_EQ(host.planned_slots(), (Slots{slots[1], slots[2]}));
  host.cancel(slots[2]);
  host.cancel(slots[4]);
  host.tick();
  EXPECT_EQ(host.planned_slots(), (Slots{slots[1]}));
  host.cancel(slots[1]);
  EXPECT_TRUE(host.batcher().empty());
  EXPECT_FALSE(host.tick());
  EXPECT_EQ(host.pages_in_use(), 0);
}

// Sequences whose keys and values come from elsewhere, and pages that are lent.
class RebuildingHost final : public BatchHost {
 public:
  struct Entry {
    int32_t num_target = 100, num_computed = 0, runs_to = INT32_MAX, remaining = 10;
    int32_t pages = 0;
    bool shares = false;  // all of its pages
    bool waits = false;
    int32_t logits_from = -1;  // -1: of the newest
  };
  std::vector<Entry> entries;
  int32_t free_pages = 100, lent_pages = 0;
  Slots dropped;
  int reclaims = 0;

  SequenceView view(int32_t slot) const override {
    const Entry& e = entries[static_cast<size_t>(slot)];
    return {.num_target = e.num_target,
            .num_computed = e.num_computed,
            .remaining = e.remaining,
            .logits_from = e.logits_from < 0 ? e.num_target - 1 : e.logits_from,
            .runs_to = e.runs_to,
            .waits = e.waits};
  }
  int32_t pages_available() const override { return free_pages; }
  bool reclaim_pages() override {
    ++reclaims;
    free_pages += std::min(lent_pages, 1);
    return lent_pages-- > 0;
  }
  int32_t pages_held(int32_t slot) const override { return entries[static_cast<size_t>(slot)].pages; }
  int32_t pages_private(int32_t slot) const override {
    return entries[static_cast<size_t>(slot)].shares ? 0 : pages_held(slot);
  }
  int32_t pages_to_write(int32_t slot, int32_t begin, int32_t end) const override {
    return begin >= end ? 0 : std::max(0, (end + 63) / 64 - pages_held(slot));
  }
  void attach_prefix(int32_t) override {}
  void drop_pages(int32_t slot, bool) override {
    free_pages += std::exchange(entries[static_cast<size_t>(slot)].pages, 0);
    entries[static_cast<size_t>(slot)].num_computed = 0;
    dropped.push_back(slot);
  }
  void take_pages(int32_t slot, int32_t begin, int32_t end) override {
    const int32_t pages = pages_to_write(slot, begin, end);
    free_pages -= pages;
    entries[static_cast<size_t>(slot)].pages += pages;
  }
};

TEST(Batcher, RunsNoFurtherThanWhatComesFromElsewhere) {
  RebuildingHost host;
  host.entries = {{.num_target = 500, .runs_to = 128}, {.num_target = 500, .runs_to = 0}, {.num_target = 300}};
  Batcher batcher(limits(3, 400));
  for (int32_t slot = 0; slot < 3; ++slot) batcher.add(slot, static_cast<uint64_t>(slot));
  const auto plan = [&] {
    std::vector<std::array<int32_t, 3>> rows;
    for (const RowRun& run : batcher.schedule(&host)) {
      rows.push_back({run.slot, run.begin, run.end});
      host.entries[static_cast<size_t>(run.slot)].num_computed = run.end;
    }
    return rows;
  };
  using Rows = std::vector<std::array<int32_t, 3>>;
  EXPECT_EQ(plan(), (Rows{{0, 0, 128}, {2, 0, 272}}));  // the chunk that the bounded ones do not take is the third's
  EXPECT_EQ(plan(), (Rows{{2, 272, 300}}));             // the first waits at its bound, with its place
  host.entries[0].runs_to = 200;
  host.entries[1].runs_to = INT32_MAX;
  EXPECT_EQ(plan(), (Rows{{0, 128, 200}, {1, 0, 328}}));
  host.entries[0].num_computed = 499;  // the ends have met but for the last token, which is not to run before runs_to says so
  EXPECT_EQ(plan(), (Rows{{1, 328, 500}}));
  host.entries[0].runs_to = INT32_MAX;
  EXPECT_EQ(plan(), (Rows{{0, 499, 500}}));
  EXPECT_EQ(batcher.num_running(), 3);
}

TEST(Batcher, WhatIsLentComesBackBeforeAnyoneGivesWay) {
  RebuildingHost host;
  host.entries = {{.num_target = 64}, {.num_target = 64, .remaining = 50}};
  host.free_pages = 2;
  host.lent_pages = 2;
  Batcher batcher(limits(2, 200));
  batcher.add(0, 0);
  batcher.add(1, 1);
  ASSERT_EQ(batcher.schedule(&host).size(), 2u);
  EXPECT_EQ(host.reclaims, 0);  // there was enough
  for (auto& e : host.entries) e.num_computed = 64, e.num_target = 65;
  ASSERT_EQ(batcher.schedule(&host).size(), 2u);
  EXPECT_EQ(host.reclaims, 2);
  EXPECT_EQ(host.dropped, Slots());
  for (auto& e : host.entries) e.num_computed = 128, e.num_target = 129;
  ASSERT_EQ(batcher.schedule(&host).size(), 1u);  // nothing is lent any more: the younger gives way
  EXPECT_EQ(host.dropped, (Slots{1}));
}

// Slots of the plan; what it runs is computed.
Slots scheduled(Batcher* batcher, RebuildingHost* host) {
  Slots slots;
  for (const RowRun& run : batcher->schedule(host)) {
    slots.push_back(run.slot);
    host->entries[static_cast<size_t>(run.slot)].num_computed = run.end;
  }
  return slots;
}

TEST(Batcher, TheOldestWaitingIsFoundWhoeverLeaves) {
  Batcher batcher(limits(1, 8));
  EXPECT_EQ(batcher.oldest_waiting(), -1);
  for (const int32_t age : {1, 5, 2, 6, 7, 3, 4}) batcher.add(age, static_cast<uint64_t>(age));
  for (int32_t age = 1; age <= 7; ++age) {
    EXPECT_EQ(batcher.oldest_waiting(), age);
    batcher.remove(age);
  }
  EXPECT_TRUE(batcher.empty());
}

// Who waits for its draft keeps its place and its pages, and has no rows.
TEST(Batcher, WhoWaitsForItsDraftRunsNoRows) {
  RebuildingHost host;
  host.entries = {{.num_target = 64}, {.num_target = 64}, {.num_target = 64}};
  Batcher batcher(limits(2, 200));
  for (int32_t slot = 0; slot < 3; ++slot) batcher.add(slot, static_cast<uint64_t>(slot));
  EXPECT_EQ(scheduled(&batcher, &host), (Slots{0, 1}));
  for (auto& e : host.entries) ++e.num_target;
  host.entries[0].waits = true;
  EXPECT_EQ(scheduled(&batcher, &host), (Slots{1}));
  EXPECT_EQ(batcher.num_running(), 2);
  host.entries[1].waits = true;
  host.free_pages = 0;
  EXPECT_EQ(scheduled(&batcher, &host), Slots());
  EXPECT_EQ(host.dropped, Slots());  // it wants no page meanwhile
  host.entries[0].waits = false;
  host.free_pages = 1;
  EXPECT_EQ(scheduled(&batcher, &host), (Slots{0}));
}

// The chunk, or the rows of logits, that the older ones take are not there for the younger: these want no page for what they
// will not run.
TEST(Batcher, NobodyGivesWayForPagesThatNobodyWants) {
  RebuildingHost chunked, of_logits;
  chunked.entries = {{.num_target = 640}, {.num_target = 640}};
  of_logits.entries = {{.num_target = 640, .logits_from = 0}, {.num_target = 640, .logits_from = 0}};
  Batcher by_chunk(limits(2, 64)), by_logits(limits(2, 1000, 64));
  for (auto [host, batcher] : {std::pair(&chunked, &by_chunk), std::pair(&of_logits, &by_logits)}) {
    batcher->add(0, 0);
    batcher->add(1, 1);
    ASSERT_EQ(scheduled(batcher, host), (Slots{0}));
    host->entries[1].pages = 1;
    host->entries[1].num_computed = 64;
    host->free_pages = 1;
    EXPECT_EQ(scheduled(batcher, host), (Slots{0}));
    EXPECT_EQ(host->dropped, Slots());
    EXPECT_EQ(host->free_pages, 0);
  }
}

// One row that may run of a sequence that is further behind is the chunk's all the same.
TEST(Batcher, OneRowOfMoreIsOfTheChunk) {
  RebuildingHost host;
  host.entries = {{.num_target = 500}, {.num_target = 500, .runs_to = 1}};
  Batcher batcher(limits(2, 100));
  batcher.add(0, 0);
  batcher.add(1, 1);
  EXPECT_EQ(scheduled(&batcher, &host), (Slots{0}));
  host.entries[0].num_computed = 450;
  EXPECT_EQ(scheduled(&batcher, &host), (Slots{0, 1}));
}

TEST(Batcher, WhoCannotJoinKeepsASharedBeginning) {
  for (const bool shares : {true, false}) {
    RebuildingHost host;
    host.entries = {{.num_target = 64}, {.num_target = 640, .num_computed = 64, .pages = 1, .shares = shares}};
    host.free_pages = 5;
    Batcher batcher(limits(2, 1000));
    batcher.add(0, 0);
    batcher.add(1, 1);
    EXPECT_EQ(scheduled(&batcher, &host), (Slots{0}));
    EXPECT_EQ(host.dropped, shares ? Slots() : (Slots{1}));
  }
}

// Who joins an empty batch takes what is lent before what others hold who wait.
TEST(Batcher, AnIdleBatchTakesWhatIsLentFirst) {
  for (const int32_t lent : {2, 1}) {
    RebuildingHost host;
    host.entries = {{.num_target = 192}, {.num_target = 640, .num_computed = 64, .pages = 1}};
    host.free_pages = 1;
    host.lent_pages = lent;
    Batcher batcher(limits(1, 1000));
    batcher.add(0, 0);
    batcher.add(1, 1);
    EXPECT_EQ(scheduled(&batcher, &host), (Slots{0}));
    EXPECT_EQ(host.dropped, lent == 2 ? Slots() : (Slots{1}));
  }
}

// The oldest wants more than anybody can give: who is content with less runs meanwhile.
TEST(Batcher, WhoFindsNoPageHoldsNobodyUp) {
  RebuildingHost host;
  host.entries = {{.num_target = 192, .runs_to = 0}, {.num_target = 64, .runs_to = 0}};
  Batcher batcher(limits(2, 1000));
  batcher.add(0, 0);
  batcher.add(1, 1);
  EXPECT_EQ(scheduled(&batcher, &host), Slots());
  ASSERT_EQ(batcher.num_running(), 2);
  for (auto& e : host.entries) e.runs_to = INT32_MAX;
  host.free_pages = 2;
  EXPECT_EQ(scheduled(&batcher, &host), (Slots{1}));
  host.free_pages += 2;
  EXPECT_EQ(scheduled(&batcher, &host), (Slots{0}));
}

// Random sequences in pools from just enough for the largest upwards: every promise of a plan holds (FakeHost), every tick runs
// something, and all of them finish.
TEST(BatcherProperty, EverythingFinishesInEveryPool) {
  const uint32_t rounds = kSanitized ? 150 : 1500;
  int64_t preemptions = 0, full = 0;
  for (uint32_t seed = 0; seed < rounds && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const auto between = [&random](int32_t low, int32_t high) {
      return low + static_cast<int32_t>(random() % static_cast<uint32_t>(high - low + 1));
    };
    const int32_t max_batch = between(1, 12);
    std::vector<FakeSequence> requests;
    int32_t largest = 1;
    int64_t total_tokens = 0;
    for (int32_t i = between(1, 20); i > 0; --i) {
      FakeSequence s = prompt(between(1, between(1, 300)), between(1, between(1, 300)));
      if (between(0, 4) == 0) s = score(between(1, 50), between(1, 300));
      else if (between(0, 1) == 0) s.num_siblings = between(1, 6);
      s.group = between(0, 1) == 0 ? between(0, 3) : -1;
      if (s.group >= 0) s.num_prompt = 64 * s.group + 10, s.max_tokens = s.num_prompt + between(1, 200);
      s.stops_at_once = between(0, 3) == 0;
      largest = std::max(largest, (s.max_tokens + FakeHost::kPage - 1) / FakeHost::kPage);
      total_tokens += int64_t{s.max_tokens} * (1 + s.num_siblings);
      requests.push_back(s);
    }
    const int32_t num_pages = largest + (between(0, 1) == 0 ? 0 : between(0, 12));
    FakeHost host(limits(max_batch, between(1, 200), max_batch + between(0, 5)), num_pages);
    // Progress is one row a tick at least, and a sequence recomputes at most everything once for each time another one makes
    // it.
    const int64_t most_ticks = total_tokens * 20;
    while (!(requests.empty() && host.all_done()) && !testing::Test::HasFailure()) {
      while (!requests.empty() && (host.all_done() || between(0, 9) == 0)) {
        host.add(requests.back());
        requests.pop_back();
      }
      ASSERT_TRUE(host.tick()) << "live sequences and an empty plan";
      if (between(0, 400) == 0) {
        const int32_t slot = between(0, host.num_slots() - 1);
        if (host.sequence(slot).alive) host.cancel(slot);
      }
      ASSERT_LT(host.ticks(), most_ticks);
    }
    EXPECT_TRUE(host.batcher().empty());
    EXPECT_EQ(host.pages_in_use(), 0);
    preemptions += host.preemptions();
    full += host.used_peak() == num_pages;
  }
  EXPECT_GT(preemptions, int64_t{rounds} / 10) << "the pools were never short";
  EXPECT_GT(full, int64_t{rounds} / 4);
}

}  // namespace
}  // namespace otr
