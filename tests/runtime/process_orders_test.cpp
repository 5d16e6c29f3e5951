// What a process is to be told comes out whole, each once, and those first that others rely on.
#include "runtime/process_orders.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <vector>

namespace otr {
namespace {

std::vector<WireType> take_orders(ProcessOrders* orders) {
  std::vector<WireType> types;
  for (;;) {
    WireBytes bytes;
    std::unique_ptr<Sequence> s;
    const std::optional<WireType> type = orders->take(&bytes, &s);
    if (!type) return types;
    EXPECT_EQ(s != nullptr, *type == WireType::kStart);
    types.push_back(*type);
  }
}

void give_one_of_each(ProcessOrders* orders) {
  ProcessOrders& o = *orders;
  for (int i = 0; i < 2; ++i) {
    auto s = std::make_unique<Sequence>();
    s->group = std::make_shared<Group>();
    o.starts.push(std::move(s));
  }
  o.cancels = {7};
  o.move = Move{.from = 0, .to = 1, .count = 2, .running = false};
  o.roles = DraftRoles{};
  o.lend = Lend{};
  o.relinks = {{.link = 1, .generation = 2}};
  o.handed_on.emplace_back(WireType::kDrop, WireBytes(3));
  o.handed_on.emplace_back(WireType::kLeap, WireBytes(4));
  o.end_step = o.weights = o.withdraw = true;
}

TEST(ProcessOrders, ComeInTheOrderInWhichTheyCount) {
  ProcessOrders o;
  give_one_of_each(&o);
  EXPECT_FALSE(o.empty());
  const std::vector<WireType> wanted = {WireType::kWithdraw, WireType::kWeights, WireType::kEndStep, WireType::kRoles,
                                        WireType::kRelink,   WireType::kStart,   WireType::kStart,   WireType::kCancel,
                                        WireType::kGive,     WireType::kLend,    WireType::kDrop,    WireType::kLeap};
  EXPECT_EQ(take_orders(&o), wanted);
  EXPECT_TRUE(o.empty());
  EXPECT_TRUE(take_orders(&o).empty());
}

TEST(ProcessOrders, WhatIsHandedOnKeepsItsBytes) {
  ProcessOrders o;
  o.handed_on.emplace_back(WireType::kLinked, WireBytes(5, std::byte{9}));
  WireBytes bytes;
  std::unique_ptr<Sequence> s;
  EXPECT_EQ(o.take(&bytes, &s), WireType::kLinked);
  EXPECT_EQ(bytes, WireBytes(5, std::byte{9}));
}

TEST(ProcessOrders, NoneIsLeftOnceAllAreDiscarded) {
  ProcessOrders o;
  give_one_of_each(&o);
  o.discard();
  EXPECT_TRUE(o.empty());
  EXPECT_TRUE(take_orders(&o).empty());
}

}  // namespace
}  // namespace otr
