// Pages between two processes' nets: what comes, what does not, and that nobody waits for ever.
#include "runtime/page_net.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <new>
#include <thread>
#include <utility>
#include <vector>

#include "tests/runtime/page_nets.h"

namespace otr {
namespace {

TEST_F(PageNets, PagesComeAsTheyAre) {
  wait_until_up(1);
  const auto lent = lend({4, 2, 5});
  const uint64_t parcel = nets_[0]->offer(lent).number;
  ASSERT_NE(parcel, 0u);
  const auto pages = remote(parcel, 3);
  EXPECT_TRUE(pages->copy(1, std::vector<PageId>{0, 3}, &target(1)));
  EXPECT_TRUE(holds(0, 2));
  EXPECT_TRUE(holds(3, 5));
  EXPECT_FALSE(pages->copy(2, std::vector<PageId>{1, 4}, &target(1)));  // it has three
  EXPECT_FALSE(lent->over());
  pages->end();
  EXPECT_TRUE(comes_over(*lent));
}

// Whether who ends it is joined or not: who keeps it may be.
TEST_F(PageNets, AnEndIsToldByWhoHasLeft) {
  wait_until_up(1);
  const auto lent = lend({0});
  const PageNet::Parcel parcel = nets_[0]->offer(lent);
  EXPECT_EQ(parcel.generation, 1u);
  const auto pages = remote(parcel.number, 1);
  leave(1, 1);
  EXPECT_EQ(nets_[1]->generation(), 0u);
  pages->end();
  EXPECT_TRUE(comes_over(*lent));
  EXPECT_EQ(nets_[0]->generation(), 1u);
}

TEST_F(PageNets, PagesAreKeptUntilThePortHasLeft) {
  wait_until_up(1);
  const auto slow = lend({0, 1});
  watch(slow);
  const auto pages = remote(nets_[0]->offer(slow).number, 2);
  board_.num_hanging = 1;
  EXPECT_FALSE(pages->copy(0, std::vector<PageId>{0, 1}, &target(1)));
  wait_until_up(2);
  EXPECT_TRUE(comes_over(*slow));
  EXPECT_EQ(board_.num_left, 1);

  const auto ordered = lend({0}), idle = lend({1});  // the engine has it leave, while one of them is read
  watch(ordered);
  const auto again = remote(nets_[0]->offer(ordered).number, 1);
  EXPECT_NE(nets_[0]->offer(idle).number, 0u);
  board_.may_leave = false;
  board_.num_hanging = 1;
  std::thread orderer([this, &ordered, &idle] {
    while (board_.num_hanging > 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    leave(0, 2);
    EXPECT_FALSE(ordered->over() || idle->over());  // nor did it wait
    board_.may_leave = true;
  });
  EXPECT_FALSE(again->copy(0, std::vector<PageId>{0}, &target(1)));
  orderer.join();
  EXPECT_TRUE(comes_over(*ordered));
  EXPECT_TRUE(comes_over(*idle));
  EXPECT_EQ(board_.num_left, 2);
}

// Neither whoever lent them nor whoever pulls has the pages of a port that leaves in vain, before its process ends.
TEST_F(PageNets, PagesOfAPortThatClingsAreNobodysAgain) {
  wait_until_up(1);
  const auto lent = lend({0, 1}), idle = lend({2});
  const auto pages = remote(nets_[0]->offer(lent).number, 2);
  EXPECT_NE(nets_[0]->offer(idle).number, 0u);
  board_.clings = true;
  board_.num_hanging = 1;
  std::atomic<int> ended = 0;
  on_end_process_ = [&](int32_t worker, const Status& why) {
    EXPECT_EQ(worker, 0);
    EXPECT_EQ(why.code(), StatusCode::kTimeout);
    EXPECT_FALSE(lent->over() || idle->over());
    ++ended;
  };
  EXPECT_FALSE(pages->copy(0, std::vector<PageId>{0, 1}, &target(1)));
  EXPECT_TRUE(comes_over(*lent));
  EXPECT_EQ(ended, 1);
}

// The rule of kv_lease.h: to ask waits for nobody, and pages that are read are not over.
TEST_F(PageNets, PagesAreNotOverWhileTheyAreRead) {
  const auto lent = lend({0});
  std::atomic<bool> reads = false, ends = false;
  std::thread reader([&] {
    EXPECT_TRUE(lent->hold([&] {
      reads = true;
      while (!ends) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      EXPECT_FALSE(lent->over());
    }));
  });
  while (!reads) std::this_thread::yield();
  std::atomic<bool> is_back = false;
  std::thread lender([&] {
    lent->revoke();
    is_back = true;
    EXPECT_TRUE(lent->over());
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_FALSE(lent->over() || is_back);
  ends = true;
  reader.join();
  lender.join();
  EXPECT_FALSE(lent->hold([] { ADD_FAILURE() << "it is over"; }));
}

// A parcel's end that comes while it is read is the net's thread's business.
TEST_F(PageNets, AnEndDoesNotWaitForAMove) {
  wait_until_up(1);
  const auto lent = lend({0});
  watch(lent);
  const uint64_t parcel = nets_[0]->offer(lent).number;
  const auto pages = remote(parcel, 1);
  board_.may_leave = false;
  board_.num_hanging = 1;
  std::thread ender([&] {
    while (board_.num_hanging > 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    nets_[0]->follow({.kind = NetOrder::Kind::kEndParcel, .generation = 1, .pull = {.number = 0, .parcel = parcel}});
    EXPECT_EQ(board_.num_left, 0);
    EXPECT_FALSE(lent->over());
    board_.may_leave = true;
  });
  EXPECT_FALSE(pages->copy(0, std::vector<PageId>{0}, &target(1)));
  ender.join();
  EXPECT_TRUE(comes_over(*lent));
}

TEST_F(PageNets, WhatTheLenderTookBackDoesNotCount) {
  wait_until_up(1);
  const auto lent = lend({0, 1});
  const auto pages = remote(nets_[0]->offer(lent).number, 2);
  lent->revoke();
  EXPECT_FALSE(pages->copy(0, std::vector<PageId>{0, 1}, &target(1)));
  EXPECT_EQ(nets_[0]->generation(), 1u);  // nothing has failed
}

TEST_F(PageNets, AHangEndsTheGenerationAndTheNextOneServes) {
  wait_until_up(1);
  const auto lent = lend({0, 1});
  const auto pages = remote(nets_[0]->offer(lent).number, 2);
  board_.num_hanging = 1;
  EXPECT_FALSE(pages->copy(0, std::vector<PageId>{0, 1}, &target(1)));
  wait_until_up(2);
  EXPECT_TRUE(comes_over(*lent));
  EXPECT_TRUE(pages->over());
  EXPECT_FALSE(pages->copy(0, std::vector<PageId>{0, 1}, &target(1)));  // of the generation before
  const auto again = remote(nets_[0]->offer(lend({3})).number, 1);
  EXPECT_TRUE(again->copy(0, std::vector<PageId>{2}, &target(1)));
  EXPECT_TRUE(holds(2, 3));
}

TEST_F(PageNets, NobodyWaitsForTheDead) {
  wait_until_up(1);
  const auto pages = remote(nets_[0]->offer(lend({0})).number, 1);
  board_.num_hanging = 1;
  std::thread killer([this] {
    std::this_thread::sleep_for(std::chrono::milliseconds(kPortPatienceMs / 10));
    const std::lock_guard<std::mutex> lock(mutex_);
    account_.lost(0, false);
  });
  EXPECT_FALSE(pages->copy(0, std::vector<PageId>{0}, &target(1)));
  killer.join();
  EXPECT_EQ(nets_[1]->generation(), 0u);
  EXPECT_EQ(nets_[1]->offer(lend({1})).number, 0u);
}

// What a process ends itself by: an abort that does not come back.
TEST_F(PageNets, HowLongTheThreadIsBusyIsSeen) {
  const auto busy = [this](int64_t least_ms, int64_t most_ms) {
    const auto is_so = [&] { return nets_[0]->busy_ms() >= least_ms && nets_[0]->busy_ms() <= most_ms; };
    for (int i = 0; i < 10'000 && !is_so(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return is_so();
  };
  wait_until_up(1);
  EXPECT_TRUE(busy(0, 0));
  const auto lent = lend({0});
  watch(lent);
  const auto pages = remote(nets_[0]->offer(lent).number, 1);
  board_.may_leave = false;
  board_.num_hanging = 1;
  EXPECT_FALSE(pages->copy(0, std::vector<PageId>{0}, &target(1)));  // who waits for them does not wait for the abort
  EXPECT_TRUE(busy(2 * kPortPatienceMs, INT64_MAX));
  EXPECT_FALSE(lent->over());
  board_.may_leave = true;
  EXPECT_TRUE(comes_over(*lent));
  EXPECT_TRUE(busy(0, 0));
}

class ThreePageNets : public PageNets {
 protected:
  ThreePageNets() : PageNets(3) {}
};

// Whoever has no part in a move ends it all the same by dying; the two others go on without.
TEST_F(ThreePageNets, AThirdsDeathEndsAMove) {
  wait_until_up(1, 3);
  const auto lent = lend({0, 1});
  watch(lent);
  const auto pages = remote(nets_[0]->offer(lent).number, 2);
  board_.num_hanging = 1;
  std::thread killer([this] {
    while (board_.num_hanging > 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    nets_[2]->stop();
    const std::lock_guard<std::mutex> lock(mutex_);
    account_.lost(2, false);
  });
  EXPECT_FALSE(pages->copy(0, std::vector<PageId>{0, 1}, &target(1)));
  killer.join();
  EXPECT_TRUE(comes_over(*lent));
  wait_until_up(2);
  const auto again = remote(nets_[0]->offer(lend({3})).number, 1);
  EXPECT_TRUE(again->copy(0, std::vector<PageId>{2}, &target(1)));
  EXPECT_TRUE(holds(2, 3));
}

class PatientPageNets : public PageNets {
 protected:
  PatientPageNets() : PageNets(2, 60'000) {}
};

// Whoever is told to join is through with what came before, though he may not have heard of its end.
TEST_F(PatientPageNets, TheNextJoiningEndsTheOneBefore) {
  wait_until_up(1);
  const auto pages = remote(nets_[0]->offer(lend({0})).number, 1);
  board_.num_hanging = 1;
  std::thread engine([this] {
    while (board_.num_hanging > 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    const std::lock_guard<std::mutex> lock(mutex_);
    account_.lost(1, true);  // net 1 lives, and has heard nothing
    account_.ready(1);
  });
  const auto began = std::chrono::steady_clock::now();
  EXPECT_FALSE(pages->copy(0, std::vector<PageId>{0}, &target(1)));
  engine.join();
  wait_until_up(2);
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(20));
}

class ForgetfulPageNets : public PageNets {
 protected:
  void pass(ProtocolStep step) override {
    if (step != ProtocolStep::kNetLeave) return;
    ++num_thrown_;
    throw std::bad_alloc();
  }
  std::atomic<int> num_thrown_ = 0;
};

TEST_F(ForgetfulPageNets, LeavingNeedsNoMemory) {
  wait_until_up(1);
  const auto lent = lend({0});
  const auto pages = remote(nets_[0]->offer(lent).number, 1);
  board_.num_hanging = 1;
  EXPECT_FALSE(pages->copy(0, std::vector<PageId>{0}, &target(1)));
  EXPECT_TRUE(comes_over(*lent));
  wait_until_up(2);
  EXPECT_GT(num_thrown_, 0);
  EXPECT_EQ(board_.num_left, 1);
  const auto again = remote(nets_[0]->offer(lend({3})).number, 1);
  EXPECT_TRUE(again->copy(0, std::vector<PageId>{2}, &target(1)));
  EXPECT_TRUE(holds(2, 3));
}

// Its moves take all their patience, and the abort of one as long again.
class SlowPort final : public PagePort {
 public:
  explicit SlowPort(std::chrono::milliseconds patience) : patience_(patience) {}
  Status join(const NetId&, int32_t, int32_t, const GivenUp&) override { return {}; }
  Status move(PageMove*, const GivenUp&) override {
    std::this_thread::sleep_for(patience_);
    moved_ = true;
    return Status(StatusCode::kTimeout, "nobody came");
  }
  Status leave() override {
    if (std::exchange(moved_, false)) std::this_thread::sleep_for(patience_);
    return {};
  }

 private:
  const std::chrono::milliseconds patience_;
  bool moved_ = false;
};

// A move is ordered when the others are done that may come before it.
class LateEngine final : public NetHost {
 public:
  explicit LateEngine(std::chrono::milliseconds late) : late_(late) {}
  void tell(const NetNews& news) override {
    if (news.kind != NetNews::Kind::kPull) return;
    order_ = std::thread([this, news] {
      std::this_thread::sleep_for(late_);
      net->follow({.kind = NetOrder::Kind::kMove, .generation = news.generation, .pull = news.pull});
    });
  }
  void end_process(const Status& why) override { ADD_FAILURE() << why.message(); }
  void join() { order_.join(); }
  PageNet* net = nullptr;

 private:
  const std::chrono::milliseconds late_;
  std::thread order_;
};

// Whoever pulls is not held for hung meanwhile: an engine's patience is kTimeoutShare of a move's at least, of which the next
// heartbeat may take one.
TEST_F(PageNets, NoPullOutlastsTheEnginesPatience) {
  constexpr std::chrono::milliseconds kPatience(kSanitized ? 1000 : 300);
  LateEngine engine(kPatience * PageNet::kMovesBefore - kPatience / 2);
  PageNet net(std::make_unique<SlowPort>(kPatience), &target(1), &engine, static_cast<int32_t>(kPatience.count()));
  engine.net = &net;
  net.follow({.kind = NetOrder::Kind::kJoin, .generation = 1, .pull = {}});
  for (int i = 0; i < 10'000 && net.generation() == 0; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  const auto began = std::chrono::steady_clock::now();
  EXPECT_FALSE(net.pull(1, 0, 1, 0, std::vector<PageId>{0}));
  const auto lasted = std::chrono::steady_clock::now() - began;
  engine.join();
  EXPECT_LT(lasted, kPatience * (PageNet::kTimeoutShare - 1));
  EXPECT_GT(lasted, kPatience * (PageNet::kMovesBefore + 1));  // the abort is waited for, since it may write to the pages
}

TEST_F(PageNets, WhoWaitsIsLetGoAtTheEnd) {
  wait_until_up(1);
  const auto pages = remote(nets_[0]->offer(lend({0})).number, 1);
  board_.num_hanging = 1;
  std::thread ender([this] {
    std::this_thread::sleep_for(std::chrono::milliseconds(kPortPatienceMs / 10));
    nets_[1]->stop();
  });
  EXPECT_FALSE(pages->copy(0, std::vector<PageId>{0}, &target(1)));
  ender.join();
}

}  // namespace
}  // namespace otr
