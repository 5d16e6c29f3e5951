// What is posted is taken once, in order, and not while the worker is paused.

#include "runtime/worker_mailbox.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

namespace otr {
namespace {

std::unique_ptr<Sequence> sequence(uint64_t age) {
  auto s = std::make_unique<Sequence>();
  s->group = std::make_shared<Group>();
  s->age = age;
  return s;
}

std::vector<uint64_t> ages(const SequenceQueue& queue) {
  std::vector<uint64_t> found;
  queue.for_each([&found](const Sequence& s) { found.push_back(s.age); });
  return found;
}

TEST(SequenceQueue, IsFirstInFirstOut) {
  SequenceQueue a, b;
  EXPECT_EQ(a.pop(), nullptr);
  a.append(&b);
  EXPECT_TRUE(a.empty());
  for (uint64_t age = 0; age < 3; ++age) a.push(sequence(age));
  for (uint64_t age = 3; age < 5; ++age) b.push(sequence(age));
  EXPECT_EQ(a.pop()->age, 0u);
  a.append(&b);
  EXPECT_TRUE(b.empty());
  b.push(sequence(9));
  a.append(&b);
  EXPECT_EQ(ages(a), (std::vector<uint64_t>{1, 2, 3, 4, 9}));
  for (const uint64_t age : {1u, 2u, 3u, 4u, 9u}) EXPECT_EQ(a.pop()->age, age);
  a.push(sequence(7));
  EXPECT_EQ(ages(a), std::vector<uint64_t>{7});
}  // what is left is freed (run under the address sanitizer)

TEST(SequenceQueue, FreesSamplesThatWaitForOneAnother) {
  SequenceQueue queue;
  auto leader = sequence(0), second = sequence(1);
  const std::weak_ptr<Group> group = leader->group;
  second->group = leader->group;
  leader->group->blocked.push_back(std::move(second));
  {
    SequenceQueue inner;
    inner.push(std::move(leader));
  }
  EXPECT_TRUE(group.expired());
}

TEST(WorkerMailbox, OrdersAreTakenOnce) {
  WorkerMailbox mailbox;
  const auto nothing = [] {};
  mailbox.start(sequence(1));
  mailbox.start(sequence(2));
  mailbox.cancel(1);
  mailbox.end_step();
  mailbox.give({.from = 0, .to = 3, .count = 5, .running = true});
  WorkerOrders orders;
  orders.arrived.push(sequence(0));  // not followed yet
  ASSERT_TRUE(mailbox.take(false, &orders, nothing));
  EXPECT_EQ(ages(orders.arrived), (std::vector<uint64_t>{0, 1, 2}));
  EXPECT_TRUE(orders.cancelled && orders.end_step && orders.move && orders.move->to == 3);
  WorkerOrders again;
  ASSERT_TRUE(mailbox.take(true, &again, nothing));
  EXPECT_FALSE(again.pending());
  mailbox.stop();
  EXPECT_FALSE(mailbox.take(true, &again, nothing));
}

TEST(WorkerMailbox, APausedWorkerRests) {
  for (const bool busy : {false, true}) {
    WorkerMailbox mailbox;
    mailbox.pause();
    mailbox.start(sequence(1));
    EXPECT_FALSE(mailbox.at_rest());  // it has not said so
    WorkerOrders orders;
    std::atomic<bool> resumed = false, rested = false;
    std::thread worker([&] {
      EXPECT_TRUE(mailbox.take(busy, &orders, [&] {
        EXPECT_TRUE(mailbox.at_rest());
        rested = true;
      }));
      EXPECT_TRUE(resumed);
    });
    while (!rested || !mailbox.at_rest()) std::this_thread::yield();
    resumed = true;
    mailbox.resume();
    worker.join();
    EXPECT_EQ(ages(orders.arrived), std::vector<uint64_t>{1});
    EXPECT_FALSE(mailbox.at_rest());
  }
}

// Whoever asks between the post and the worker's waking is not told that it rests.
TEST(WorkerMailbox, AWorkerWithOrdersDoesNotRest) {
  WorkerMailbox mailbox;
  WorkerOrders orders;
  std::atomic<bool> rested = false;
  std::thread worker([&] { EXPECT_TRUE(mailbox.take(false, &orders, [&] { rested = true; })); });
  while (!rested) std::this_thread::yield();
  EXPECT_TRUE(mailbox.at_rest());
  mailbox.end_step();
  EXPECT_FALSE(mailbox.at_rest());
  worker.join();
  EXPECT_TRUE(orders.end_step);
}

}  // namespace
}  // namespace otr
