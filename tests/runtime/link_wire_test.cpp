// What the ends of a link say to each other is read as it was written, and only what an end may say is passed on.

#include "runtime/link_wire.h"

#include <gtest/gtest.h>

#include "runtime/link_relay.h"
#include "tests/runtime/wire_samples.h"

namespace otr {
namespace {

constexpr LinkLimits kLimits{.start = kSampleLimits, .num_workers = 3, .capacity = 4};

template <typename Message>
Message tokens(uint64_t request, std::vector<int32_t> tokens) {
  Message m{};
  m.request = request;
  m.epoch = 2;
  m.begin = 9;
  m.num_tokens = static_cast<int32_t>(tokens.size());
  std::copy(tokens.begin(), tokens.end(), m.tokens.begin());
  return m;
}

LinkMessage sample_link() {
  LinkMessage m;
  m.link = 2;
  m.generation = 5;
  m.taken = {1, 2, 3};
  m.opened.push_back(sample_sequence(false));
  m.opened.back()->group->cancelled = false;
  m.verdicts = {tokens<VerdictMessage>(7, {1, 2, 3}), tokens<VerdictMessage>(8, {})};
  m.verdicts[1].ended = true;
  m.drafts = {tokens<DraftMessage>(9, {4})};
  m.drafts[0].closes = true;
  return m;
}

TEST(LinkWire, IsReadAsItWasWritten) {
  WireBytes bytes, again;
  const LinkMessage written = sample_link();
  encode_link(written, &bytes);
  const Result<LinkMessage> read = decode_link(bytes, kLimits);
  ASSERT_TRUE(read.ok()) << read.status().message();
  const LinkMessage& m = read.value();
  EXPECT_EQ(m.opened.at(0)->tokens, written.opened[0]->tokens);
  EXPECT_EQ(m.opened[0]->penalties.size(), written.opened[0]->penalties.size());
  EXPECT_EQ(m.verdicts.at(0).view().back(), 3);
  EXPECT_TRUE(m.verdicts.at(1).ended);
  EXPECT_TRUE(m.drafts.at(0).closes);
  encode_link(m, &again);
  EXPECT_EQ(again, bytes);
  for (size_t size = 0; size < bytes.size(); ++size)
    EXPECT_FALSE(decode_link(WireView(bytes).first(size), kLimits).ok()) << size;
  bytes.push_back(std::byte{0});
  EXPECT_FALSE(decode_link(bytes, kLimits).ok());
}

TEST(LinkWire, WhatCannotBeIsRefused) {
  const auto reads = [](const LinkMessage& m, LinkLimits limits) {
    WireBytes bytes;
    encode_link(m, &bytes);
    return decode_link(bytes, limits).ok();
  };
  EXPECT_TRUE(reads(sample_link(), kLimits));
  LinkMessage m = sample_link();
  m.drafts[0].tokens[0] = kSampleLimits.vocab_size;
  EXPECT_FALSE(reads(m, kLimits));
  m = sample_link();
  m.link = 3;
  EXPECT_FALSE(reads(m, kLimits));
  m = sample_link();
  m.verdicts.resize(5, m.verdicts[0]);
  EXPECT_FALSE(reads(m, kLimits));
  m = sample_link();
  m.opened[0] = sample_sequence(true);  // it waits for its prompt
  EXPECT_FALSE(reads(m, kLimits));
  m.opened[0]->group->disband();
  WireBytes bytes;
  encode_relink({.link = 2, .generation = 1}, &bytes);
  EXPECT_TRUE(decode_relink(bytes, 3).ok());
  EXPECT_FALSE(decode_relink(bytes, 2).ok());
}

LinkMessage message(size_t opened, size_t verdicts, size_t drafts, std::array<uint32_t, 3> taken) {
  LinkMessage m;
  m.opened.resize(opened);
  m.verdicts.resize(verdicts);
  m.drafts.resize(drafts);
  m.taken = taken;
  return m;
}

TEST(LinkAccount, EachEndSaysItsOwnAndNoMoreThanThereIsRoomFor) {
  LinkAccount account(4);
  EXPECT_FALSE(account.pass(message(0, 0, 0, {}), false).ok());        // nothing
  EXPECT_FALSE(account.pass(message(0, 0, 1, {}), false).ok());        // a verifier drafts
  EXPECT_FALSE(account.pass(message(1, 0, 0, {}), true).ok());         // a drafter opens
  EXPECT_FALSE(account.pass(message(0, 0, 0, {1, 0, 0}), true).ok());  // what was not sent
  EXPECT_TRUE(account.pass(message(2, 4, 0, {}), false).ok());
  EXPECT_FALSE(account.pass(message(0, 1, 0, {}), false).ok());
  EXPECT_FALSE(account.pass(message(0, 0, 0, {0, 1, 0}), false).ok());  // its own
  EXPECT_TRUE(account.pass(message(0, 0, 4, {0, 3, 0}), true).ok());
  EXPECT_TRUE(account.pass(message(2, 3, 0, {0, 0, 1}), false).ok());
  EXPECT_FALSE(account.pass(message(0, 0, 2, {}), true).ok());
  EXPECT_EQ(account.lose(), 1u);  // nothing is under way then
  EXPECT_FALSE(account.pass(message(0, 0, 0, {1, 0, 0}), true).ok());
  EXPECT_TRUE(account.pass(message(4, 4, 0, {}), false).ok());
}

struct Bell final : LinkBell {
  void ring() override { ++rings; }
  int rings = 0;
};

// Two ends, joined by hand: a drafter's of worker 0, a verifier's of worker 1.
class Relays : public testing::Test {
 protected:
  static std::unique_ptr<LinkRelay> relay(int32_t worker) {
    auto made =
        LinkRelay::create({.worker = worker, .num_workers = 2, .num_draft_workers = 1, .capacity = 4, .limits = kSampleLimits});
    EXPECT_TRUE(made.ok());
    return std::move(made.value());
  }
  // What one says reaches the other, as bytes; how many messages.
  static int pass(LinkRelay* from, LinkRelay* to) {
    int count = 0;
    EXPECT_TRUE(from->pump([&](const LinkMessage& m) -> Status {
                      WireBytes bytes;
                      encode_link(m, &bytes);
                      ++count;
                      return to->receive(bytes);
                    })
                    .ok());
    return count;
  }
  void SetUp() override {
    drafter_->connect(&drafter_bell_);
    verifier_->connect(&verifier_bell_);
    ASSERT_EQ(drafter_->served().size(), 2u);  // its own too
    server_ = drafter_->served()[1];
  }
  const std::unique_ptr<LinkRelay> drafter_ = relay(0), verifier_ = relay(1);
  DraftLink* server_ = nullptr;
  Bell drafter_bell_, verifier_bell_;
};

TEST_F(Relays, CarryAllInOrderAndNoMoreThanIsTaken) {
  DraftLink& own = *verifier_->own();
  uint64_t next = 0, seen = 0;
  for (int round = 0; round < 40; ++round) {
    while (!own.verdicts.full()) own.verdicts.push(tokens<VerdictMessage>(next++, {1}));
    pass(verifier_.get(), drafter_.get());
    pass(drafter_.get(), verifier_.get());
    if (round < 5) continue;               // nobody reads
    EXPECT_TRUE(round > 5 || next <= 16);  // what two queues hold, and as much between them
    for (const VerdictMessage* v; (v = server_->verdicts.front()) != nullptr; server_->verdicts.pop())
      EXPECT_EQ(v->request, seen++);
  }
  EXPECT_GT(seen, 60u);
  EXPECT_GT(drafter_bell_.rings, 0);
  server_->drafts.push(tokens<DraftMessage>(3, {4}));
  EXPECT_EQ(pass(drafter_.get(), verifier_.get()), 1);
  pass(verifier_.get(), drafter_.get());
  ASSERT_NE(own.drafts.front(), nullptr);
  EXPECT_EQ(own.drafts.front()->request, 3u);
}

TEST_F(Relays, WhoFoundNoRoomIsRung) {
  DraftLink& own = *verifier_->own();
  own.verdicts.push(tokens<VerdictMessage>(1, {1}));
  pass(verifier_.get(), drafter_.get());
  EXPECT_EQ(verifier_bell_.rings, 0);  // it has found room
  while (!own.verdicts.full()) own.verdicts.push(tokens<VerdictMessage>(2, {1}));
  pass(verifier_.get(), drafter_.get());
  EXPECT_EQ(verifier_bell_.rings, 1);
  pass(drafter_.get(), verifier_.get());
  const int rings = drafter_bell_.rings;  // for the verdicts
  while (!server_->drafts.full()) server_->drafts.push(tokens<DraftMessage>(3, {4}));
  pass(drafter_.get(), verifier_.get());
  EXPECT_EQ(drafter_bell_.rings, rings + 1);
}

TEST_F(Relays, AfterALossNothingOldArrives) {
  DraftLink& own = *verifier_->own();
  own.opened.push(sample_sequence(false));
  own.verdicts.push(tokens<VerdictMessage>(1, {1}));
  EXPECT_EQ(pass(verifier_.get(), drafter_.get()), 1);
  own.verdicts.push(tokens<VerdictMessage>(2, {1}));
  ASSERT_TRUE(verifier_->follow({.link = 1, .generation = 1}).ok());
  EXPECT_FALSE(own.is_current());
  EXPECT_GT(verifier_bell_.rings, 0);
  EXPECT_EQ(pass(verifier_.get(), drafter_.get()), 0);
  EXPECT_TRUE(own.verdicts.empty());
  own.followed = 1;  // as the worker does
  own.verdicts.push(tokens<VerdictMessage>(3, {1}));
  EXPECT_EQ(pass(verifier_.get(), drafter_.get()), 1);  // but the other end is of an older generation
  pass(drafter_.get(), verifier_.get());
  ASSERT_TRUE(drafter_->follow({.link = 1, .generation = 1}).ok());
  server_->verdicts.clear();
  server_->opened.clear();
  server_->followed = 1;
  own.verdicts.push(tokens<VerdictMessage>(4, {1}));
  EXPECT_EQ(pass(verifier_.get(), drafter_.get()), 1);
  pass(drafter_.get(), verifier_.get());
  ASSERT_NE(server_->verdicts.front(), nullptr);
  EXPECT_EQ(server_->verdicts.front()->request, 4u);
  EXPECT_FALSE(drafter_->follow({.link = 0, .generation = 1}).ok());  // both of its ends are here
}

}  // namespace
}  // namespace otr
