// Pages between two processes' nets, whose ports are ours and whose engine is a NetAccount: what comes, what does not, and that nobody waits
// for ever.
#include "runtime/page_net.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <map>
#include <random>

#include "runtime/device.h"
#include "runtime/net_account.h"
#include "tests/runtime/sanitized.h"
#include "tests/runtime/tiny_model.h"

namespace otr {
namespace {

constexpr int32_t kPatienceMs = kSanitized ? 2000 : 300;

// What goes between the ports, of every generation apart.
struct Switchboard {
  struct Room {
    int32_t joined = 0;
    std::deque<std::vector<std::byte>> moved;  // pages and the word, a move each
  };
  std::mutex mutex;
  std::map<NetId, Room> rooms;
  std::atomic<int32_t> num_hanging = 0;      // sends to come that hang
  std::shared_ptr<const LentPages> read;     // by who hangs, until it has left; guarded by mutex
  std::atomic<int32_t> num_left = 0;         // of those that hung
  std::atomic<bool> may_leave = true;        // else they wait, as an abort may take a while
};

class FakePort final : public PagePort {
 public:
  explicit FakePort(Switchboard* board) : board_(*board) {}

  Status join(const NetId& id, int32_t size, int32_t, const GivenUp& given_up) override {
    {
      const std::lock_guard<std::mutex> lock(board_.mutex);
      room_ = &board_.rooms[id];
      ++room_->joined;
    }
    return wait([&] { return room_->joined == size; }, given_up);
  }
  Status move(PageMove* move, const GivenUp& given_up) override {
    std::vector<std::byte> bytes;
    if (move->sends) {
      if (board_.num_hanging > 0 && board_.num_hanging-- > 0) {
        hangs_ = true;
        return wait([] { return false; }, given_up);
      }
      for (const std::byte* page : move->pages) bytes.insert(bytes.end(), page, page + move->page_bytes);
      const std::byte* const word = reinterpret_cast<const std::byte*>(&move->word);
      bytes.insert(bytes.end(), word, word + sizeof move->word);
      const std::lock_guard<std::mutex> lock(board_.mutex);
      room_->moved.push_back(std::move(bytes));
      return {};
    }
    OTR_RETURN_IF_ERROR(wait([&] {
      if (room_->moved.empty()) return false;
      bytes = std::move(room_->moved.front());
      room_->moved.pop_front();
      return true;
    }, given_up));
    for (size_t i = 0; i < move->pages.size(); ++i) std::memcpy(move->pages[i], bytes.data() + i * move->page_bytes, move->page_bytes);
    std::memcpy(&move->word, bytes.data() + move->pages.size() * move->page_bytes, sizeof move->word);
    return {};
  }
  void leave() override {
    room_ = nullptr;
    if (!std::exchange(hangs_, false)) return;
    for (int i = 0; i < 10'000 && !board_.may_leave; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    const std::lock_guard<std::mutex> lock(board_.mutex);
    EXPECT_TRUE(board_.read == nullptr || !board_.read->over());
    ++board_.num_left;
  }

 private:
  Status wait(const std::function<bool()>& done, const GivenUp& given_up) {
    const auto limit = std::chrono::steady_clock::now() + std::chrono::milliseconds(kPatienceMs);
    while (std::chrono::steady_clock::now() < limit) {
      {
        const std::lock_guard<std::mutex> lock(board_.mutex);
        if (done()) return {};
      }
      if (given_up()) return Status(StatusCode::kLost, "given up");
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    return Status(StatusCode::kTimeout, "nobody came");
  }
  Switchboard& board_;
  Switchboard::Room* room_ = nullptr;
  bool hangs_ = false;  // a move that it has not left yet
};

class PageNets : public testing::Test {
 protected:
  static constexpr int32_t kPages = 6;

  struct Host final : NetHost {
    PageNets* test;
    int32_t worker;
    void tell(const NetNews& news) override {
      const std::lock_guard<std::mutex> lock(test->mutex_);
      EXPECT_TRUE(test->account_.news(worker, news).ok());
    }
  };

  void SetUp() override {
    for (int32_t i = 0; i < 2; ++i) {
      DeviceOptions o;
      o.num_threads = 1;
      o.target = {.path = model_.path(), .num_pages = kPages, .bucket = {.max_rows = 8, .max_logit_rows = 1}};
      devices_.push_back(std::move(Device::create(o).value()));
      hosts_[i].test = this, hosts_[i].worker = i;
      nets_.push_back(std::make_unique<PageNet>(std::make_unique<FakePort>(&board_), &devices_.back()->target(), &hosts_[i], kPatienceMs));
    }
    contents_.resize(static_cast<size_t>(kPages * model_.layout().page_elements()));
    std::mt19937 random(3);
    for (Element& x : contents_) x = to_element(static_cast<float>(random() % 1000) / 100.0f);
    const std::vector<PageId> all = {0, 1, 2, 3, 4, 5};
    ASSERT_TRUE(target(0).write_pages(all, contents_.data()).ok());
    const std::lock_guard<std::mutex> lock(mutex_);
    account_.ready(0);
    account_.ready(1);
  }
  void TearDown() override {
    for (const auto& net : nets_) net->stop();
  }

  ModelRunner& target(size_t i) { return devices_[i]->target(); }
  void wait_until_up(uint64_t generation) {
    const auto is_up = [&] { return nets_[0]->generation() == generation && nets_[1]->generation() == generation; };
    for (int i = 0; i < 10'000 && !is_up(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    ASSERT_TRUE(is_up());
    for (int i = 0; i < 10'000; ++i) {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (account_.is_up()) return;
      std::this_thread::yield();
    }
  }
  std::shared_ptr<LentPages> lend(const std::vector<PageId>& pages) {
    return std::make_shared<LentPages>(target(0), &mailbox_, pages, static_cast<int32_t>(pages.size()) * kPageTokens, TickSpeed{});
  }
  std::shared_ptr<RemotePages> remote(uint64_t parcel, int32_t num_pages) {
    return std::make_shared<RemotePages>(nets_[1].get(), RemotePages(0, nets_[1]->generation(), parcel, num_pages * kPageTokens));
  }
  void watch(const std::shared_ptr<LentPages>& lent) {
    const std::lock_guard<std::mutex> lock(board_.mutex);
    board_.read = lent;
  }
  static bool comes_over(const LentPages& lent) {
    for (int i = 0; i < 10'000 && !lent.over(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return lent.over();
  }
  void leave(size_t i, uint64_t generation) { nets_[i]->follow({.kind = NetOrder::Kind::kLeave, .generation = generation, .pull = {}}); }
  std::vector<Element> read(const std::vector<PageId>& pages) {
    std::vector<Element> found(pages.size() * static_cast<size_t>(model_.layout().page_elements()));
    EXPECT_TRUE(target(1).read_pages(pages, found.data()).ok());
    return found;
  }
  bool holds(PageId here, PageId there) {
    const size_t size = static_cast<size_t>(model_.layout().page_elements());
    return std::memcmp(read({here}).data(), contents_.data() + static_cast<size_t>(there) * size, size * sizeof(Element)) == 0;
  }

  const TinyModel model_;
  std::mutex mutex_;  // the engine's
  Switchboard board_;
  WorkerMailbox mailbox_;
  Host hosts_[2];
  std::vector<std::unique_ptr<Device>> devices_;
  std::vector<std::unique_ptr<PageNet>> nets_;
  std::vector<Element> contents_;
  NetId last_id_ = {};
  NetAccount account_{2, {.make_id = [this] {
                        last_id_[0] = static_cast<std::byte>(static_cast<int>(last_id_[0]) + 1);
                        return Result<NetId>(last_id_);
                      }}, [this](int32_t worker, const NetOrder& order) {
                        nets_[static_cast<size_t>(worker)]->follow(order);
                      }};
};

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
    std::this_thread::sleep_for(std::chrono::milliseconds(kPatienceMs / 10));
    const std::lock_guard<std::mutex> lock(mutex_);
    account_.lost(0, false);
  });
  EXPECT_FALSE(pages->copy(0, std::vector<PageId>{0}, &target(1)));
  killer.join();
  EXPECT_EQ(nets_[1]->generation(), 0u);
  EXPECT_EQ(nets_[1]->offer(lend({1})).number, 0u);
}

TEST_F(PageNets, WhoWaitsIsLetGoAtTheEnd) {
  wait_until_up(1);
  const auto pages = remote(nets_[0]->offer(lend({0})).number, 1);
  board_.num_hanging = 1;
  std::thread ender([this] {
    std::this_thread::sleep_for(std::chrono::milliseconds(kPatienceMs / 10));
    nets_[1]->stop();
  });
  EXPECT_FALSE(pages->copy(0, std::vector<PageId>{0}, &target(1)));
  ender.join();
}

}  // namespace
}  // namespace otr
