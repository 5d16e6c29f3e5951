// Who joins whom, and when: as the engine sees it.
#include "runtime/net_account.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace otr {
namespace {

class NetAccounts : public testing::Test {
 protected:
  using Kind = NetOrder::Kind;

  void make(int32_t num_workers, NetOptions options = {}) {
    options.make_id = [this]() -> Result<NetId> {
      if (!has_ids_) return unsupported("no library");
      NetId id = {};
      id[0] = static_cast<std::byte>(++num_ids_);
      return id;
    };
    account_ = std::make_unique<NetAccount>(num_workers, std::move(options), [this](int32_t worker, const NetOrder& order) {
      orders_.emplace_back(worker, order);
    });
  }
  std::vector<std::pair<int32_t, NetOrder>> take() { return std::exchange(orders_, {}); }
  // Who was told what.
  std::string told() {
    std::string text;
    for (const auto& [worker, order] : take()) text += "JLMRE"[static_cast<int>(order.kind)] + std::to_string(worker);
    return text;
  }
  void up(std::initializer_list<int32_t> workers, uint64_t generation) {
    for (const int32_t worker : workers)
      EXPECT_TRUE(account_->news(worker, {.kind = NetNews::Kind::kUp, .generation = generation, .why = {}, .pull = {}}).ok());
  }
  Status pull(int32_t worker, int32_t from, uint64_t generation, int32_t count = 2) {
    return account_->news(worker, {.kind = NetNews::Kind::kPull,
                                   .generation = generation,
                                   .why = {},
                                   .pull = {.number = 9, .parcel = 4, .from = from, .first = 0, .count = count}});
  }
  void failed(int32_t worker, uint64_t generation) {
    EXPECT_TRUE(
        account_->news(worker, {.kind = NetNews::Kind::kFailed, .generation = generation, .why = "broken", .pull = {}}).ok());
  }

  int32_t failures() const {
    const std::string text = account_->json(), key = "\"failures\":";
    return std::stoi(text.substr(text.find(key) + key.size()));
  }

  bool has_ids_ = true;
  int num_ids_ = 0;
  std::unique_ptr<NetAccount> account_;
  std::vector<std::pair<int32_t, NetOrder>> orders_;
};

TEST_F(NetAccounts, AllJoinOnceTheLastOneIsThere) {
  make(3);
  account_->ready(0);
  account_->ready(2);
  EXPECT_EQ(told(), "");
  account_->ready(1);
  const auto orders = take();
  ASSERT_EQ(orders.size(), 3u);
  for (int32_t i = 0; i < 3; ++i) {
    const NetOrder& o = orders[static_cast<size_t>(i)].second;
    EXPECT_EQ(std::tuple(o.kind, o.generation, o.size, o.rank, o.id[0]), std::tuple(Kind::kJoin, 1u, 3, i, std::byte{1}));
  }
  up({0, 1}, 1);
  EXPECT_FALSE(account_->is_up());
  up({2}, 1);
  EXPECT_TRUE(account_->is_up());
}

TEST_F(NetAccounts, PagesMoveBetweenThoseThatHaveJoined) {
  make(2);
  account_->ready(0);
  account_->ready(1);
  take();
  up({0}, 1);
  EXPECT_TRUE(pull(0, 1, 1).ok());
  EXPECT_EQ(told(), "R0");
  up({1}, 1);
  EXPECT_TRUE(pull(0, 1, 1).ok());
  const auto orders = take();
  ASSERT_EQ(orders.size(), 2u);
  EXPECT_EQ(std::tuple(orders[0].first, orders[0].second.kind, orders[0].second.peer, orders[0].second.sends),
            std::tuple(0, Kind::kMove, 1, false));
  EXPECT_EQ(std::tuple(orders[1].first, orders[1].second.kind, orders[1].second.peer, orders[1].second.sends),
            std::tuple(1, Kind::kMove, 0, true));
  EXPECT_EQ(pull(0, 0, 1).code(), StatusCode::kBadInput);
  EXPECT_EQ(pull(0, 1, 1, 1 << 20).code(), StatusCode::kBadInput);
  EXPECT_EQ(pull(0, 1, 2).code(), StatusCode::kBadInput);  // nobody was told to join that
  account_->end_parcel(1, 1, 4);
  EXPECT_EQ(told(), "E1");
}

TEST_F(NetAccounts, ADeathEndsItForAllUntilTheSuccessorIsThere) {
  make(3);
  for (const int32_t worker : {0, 1, 2}) account_->ready(worker);
  up({0, 1, 2}, 1);
  take();
  account_->lost(1, true);
  EXPECT_EQ(told(), "L0L2");
  EXPECT_TRUE(pull(0, 2, 1).ok());
  EXPECT_EQ(told(), "R0");
  failed(0, 1);  // it has heard no sooner
  EXPECT_EQ(told(), "");
  account_->ready(1);
  EXPECT_EQ(told(), "J0J1J2");
  account_->lost(2, false);
  EXPECT_EQ(told(), "L0L1J0J1");  // the others go on without
  failed(0, 3);
  EXPECT_EQ(told(), "L0L1J0J1");
  EXPECT_EQ(failures(), 1);
  account_->lost(1, false);
  EXPECT_EQ(told(), "L0");
  EXPECT_FALSE(account_->is_up());
  EXPECT_EQ(failures(), 1);  // a death takes none back
}

TEST_F(NetAccounts, ADeathBeginsTheRowOfFailuresAnew) {
  make(2);
  account_->ready(0);
  account_->ready(1);
  uint64_t generation = 1;
  for (int32_t deaths = 0; deaths < 3; ++deaths) {
    for (int32_t i = 0; i + 1 < NetAccount::kMostFailures; ++i) failed(0, generation++);
    account_->lost(1, true);
    take();
    account_->ready(1);
    EXPECT_EQ(told(), "J0J1") << deaths;
    ++generation;
  }
  EXPECT_EQ(failures(), 3 * (NetAccount::kMostFailures - 1));
}

// Failures that are far apart have causes of their own; those that a few moves part have one.
TEST_F(NetAccounts, GoodMovesBeginTheRowOfFailuresAnew) {
  for (const bool far_apart : {true, false}) {
    make(2);
    account_->ready(0);
    account_->ready(1);
    int generation = 1;
    for (; generation <= 3 * NetAccount::kMostFailures; ++generation) {
      const uint64_t g = static_cast<uint64_t>(generation);
      up({0, 1}, g);
      take();
      // The first of a worker in a generation says nothing of one before.
      for (int32_t move = 0; move < (far_apart ? NetAccount::kGoodMoves + 1 : 3); ++move) EXPECT_TRUE(pull(0, 1, g).ok());
      take();
      failed(1, g);
      if (told() == "L0L1") break;
    }
    EXPECT_EQ(generation, far_apart ? 3 * NetAccount::kMostFailures + 1 : NetAccount::kMostFailures);
  }
}

TEST(SpareIds, AreMadeBeforeTheyAreTaken) {
  struct Library {
    std::atomic<int> made = 0, refusals = 0;
  };
  const auto library = std::make_shared<Library>();  // the last id's thread may be there when this test is over
  SpareId spare(
      [library]() -> Result<NetId> {
        if (library->refusals > 0 && library->refusals-- > 0) return unsupported("no library");
        NetId id = {};
        id[0] = static_cast<std::byte>(++library->made);
        return id;
      },
      std::chrono::minutes(1));
  const auto wait_for = [&](int count) {
    for (int i = 0; i < 10'000 && library->made < count; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return library->made == count;
  };
  EXPECT_TRUE(wait_for(1));  // nobody has asked
  EXPECT_EQ(spare.take().value()[0], std::byte{1});
  EXPECT_TRUE(wait_for(2));
  library->refusals = 1;
  EXPECT_EQ(spare.take().value()[0], std::byte{2});
  EXPECT_EQ(spare.take().status().code(), StatusCode::kUnsupported);
  EXPECT_EQ(spare.take().value()[0], std::byte{3});  // that of the attempt after it
}

// A library that does not come back holds nobody up: neither who asks for an id nor who has no use for it any more.
TEST(SpareIds, AreWaitedForNoLongerThanThePatience) {
  struct Gate {
    std::mutex mutex;
    std::condition_variable changed;
    bool open = false, passed = false;
  };
  const auto gate = std::make_shared<Gate>();
  const auto make = [gate]() -> Result<NetId> {
    std::unique_lock<std::mutex> lock(gate->mutex);
    gate->changed.wait(lock, [&gate] { return gate->open; });
    gate->passed = true;
    gate->changed.notify_all();
    return NetId{};
  };
  {
    SpareId spare(make, std::chrono::milliseconds(5));
    EXPECT_EQ(spare.take().status().code(), StatusCode::kTimeout);
    EXPECT_EQ(spare.take().status().code(), StatusCode::kTimeout);
  }
  std::unique_lock<std::mutex> lock(gate->mutex);
  EXPECT_FALSE(gate->passed);
  gate->open = true;
  gate->changed.notify_all();
  EXPECT_TRUE(gate->changed.wait_for(lock, std::chrono::minutes(1), [&gate] { return gate->passed; }));
}

// One that comes late after all is the next one's.
TEST(SpareIds, ALateOneIsKept) {
  std::promise<void> open;
  const auto begun = std::make_shared<std::atomic<int>>(0);  // the last one's thread may be there when this test is over
  SpareId spare(
      [begun, opened = open.get_future().share()]() -> Result<NetId> {
        NetId id = {};
        id[0] = static_cast<std::byte>(++*begun);
        opened.wait();
        return id;
      },
      std::chrono::milliseconds(20));
  EXPECT_EQ(spare.take().status().code(), StatusCode::kTimeout);
  open.set_value();
  Result<NetId> taken = spare.take();
  for (int i = 0; i < 1000 && !taken.ok(); ++i) taken = spare.take();  // it comes when its thread does
  ASSERT_TRUE(taken.ok()) << taken.status().message();
  EXPECT_EQ(taken.value()[0], std::byte{1});
}

TEST_F(NetAccounts, WhatFailsAgainAndAgainIsGivenUp) {
  make(2);
  account_->ready(0);
  account_->ready(1);
  take();
  for (uint64_t generation = 1; generation < NetAccount::kMostFailures; ++generation) {
    failed(1, generation);
    EXPECT_EQ(told(), "L0L1J0J1");
    failed(0, generation);  // the other end, of the same
    EXPECT_EQ(told(), "");
  }
  failed(0, NetAccount::kMostFailures);
  EXPECT_EQ(told(), "L0L1");
  account_->lost(0, true);
  account_->ready(0);
  EXPECT_EQ(told(), "");
  EXPECT_NE(account_->json().find("\"failures\":3,\"last_failure\":\"broken\""), std::string::npos) << account_->json();
}

TEST_F(NetAccounts, TheTrainersIdServesOnce) {
  NetId id = {};
  id[0] = std::byte{99};
  make(2, {.make_id = {}, .first_id = id, .num_ranks = 5, .first_rank = 2});
  account_->ready(0);
  account_->ready(1);
  auto orders = take();
  ASSERT_EQ(orders.size(), 2u);
  EXPECT_EQ(std::tuple(orders[1].second.id[0], orders[1].second.size, orders[1].second.rank), std::tuple(std::byte{99}, 5, 3));
  has_ids_ = false;
  failed(0, 1);
  EXPECT_EQ(told(), "L0L1");
  EXPECT_NE(account_->json().find("no library"), std::string::npos) << account_->json();
}

}  // namespace
}  // namespace otr
