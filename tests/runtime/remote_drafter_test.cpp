// Whom a verifying worker waits for, and whom it does not: against a drafting worker that the test plays.
#include "runtime/remote_drafter.h"

#include <gtest/gtest.h>

#include <initializer_list>
#include <memory>
#include <vector>

namespace otr {
namespace {

class RemoteDrafts : public testing::Test {
 protected:
  static constexpr int32_t kPrompt = 3, kMaxTokens = 400, kRight = 1, kWrong = 2;

  RemoteDrafts() {
    auto s = std::make_unique<Sequence>();
    s->group = std::make_shared<Group>();
    s->group->num_prompt = kPrompt;
    s->tokens.assign(kPrompt, kRight);
    s->slot = 0;
    s->max_tokens = kMaxTokens;
    live_.push_back(std::move(s));
    link_.server = link_.verifier = &bell_;
  }

  void make(bool gives_up) {
    drafter_ = std::make_unique<RemoteDrafter>(0, &link_, live_, nullptr, gives_up);
    drafter_->set_open(true);
    drafter_->join(view());
    propose();
    drafter_->exchange();
    ASSERT_EQ(link_.opened.size(), 1u);
    verdict_.request = (*link_.opened.front())->age;
    link_.opened.pop();
  }
  DraftSequence view() const {
    const Sequence& s = *live_[0];
    return {.slot = 0, .group = 0, .tokens = s.tokens, .num_prompt = kPrompt, .noise = s.noise};
  }
  void propose() {
    forest_.clear();
    const DraftRow row{.sequence = view(), .max_depth = kMaxDraftDepth, .forest = &forest_};
    drafter_->propose({&row, 1}, {.max_nodes = kMaxDraftNodes});
  }
  // One that fits what the drafting worker has been told.
  void send(std::initializer_list<int32_t> tokens, bool closes) {
    DraftMessage m;
    m.request = verdict_.request;
    m.epoch = verdict_.epoch;
    m.begin = live_[0]->num_tokens();
    for (const int32_t token : tokens) m.tokens[static_cast<size_t>(m.num_tokens++)] = token;
    m.closes = closes;
    link_.drafts.push(m);
    drafter_->exchange();
  }
  // A tick: what was drafted is judged, and the drafting worker hears of it.
  void decode() {
    propose();
    int32_t num_new = 1;
    while (num_new <= forest_.size() && forest_[num_new - 1].token == kRight) ++num_new;
    for (int32_t i = 0; i < num_new; ++i) live_[0]->tokens.push_back(kRight);
    drafter_->observe({.sequence = view(), .num_new = num_new, .forest = &forest_, .accepted = {}});
    drafter_->exchange();
    for (const VerdictMessage* v; (v = link_.verdicts.front()) != nullptr; link_.verdicts.pop()) verdict_ = *v;
  }
  bool waits() const { return drafter_->waits(0); }

  struct SilentBell final : LinkBell {
    void ring() override {}
  };
  SilentBell bell_;
  DraftLink link_{16, 0};
  std::vector<std::unique_ptr<Sequence>> live_;
  std::unique_ptr<RemoteDrafter> drafter_;
  Forest forest_;
  VerdictMessage verdict_;  // the last one
};

TEST_F(RemoteDrafts, AWindowIsWaitedFor) {
  make(false);
  EXPECT_FALSE(waits());  // its drafter has to catch up first
  send({kRight, kRight}, true);
  EXPECT_FALSE(waits());
  decode();
  EXPECT_EQ(live_[0]->num_tokens(), kPrompt + 3);
  EXPECT_TRUE(waits());
}

// Else every token would come as late as a message that says that there is none.
TEST_F(RemoteDrafts, WhoseDrafterFindsNothingDoesNotWait) {
  make(false);
  send({kRight}, true);
  decode();
  EXPECT_TRUE(waits());
  for (int i = 0; i < 20; ++i) {
    send({}, true);
    EXPECT_FALSE(waits());
    for (int token = 0; token < 3; ++token) {
      decode();
      EXPECT_FALSE(waits()) << i;
    }
  }
  send({kRight}, true);  // it does again
  decode();
  EXPECT_TRUE(waits());
  EXPECT_EQ(drafter_->num_impatient(), 0);
}

TEST_F(RemoteDrafts, AUselessDrafterIsGivenUp) {
  make(true);
  int windows = 0;
  do {
    send({kWrong, kWrong}, false);
    decode();
  } while (++windows < 100 && waits());
  EXPECT_EQ(windows, 32);
  EXPECT_TRUE(verdict_.ended);
  for (int token = 0; token < 20; ++token) {
    decode();
    EXPECT_FALSE(waits());
  }
  EXPECT_TRUE(link_.opened.empty());
  EXPECT_FALSE(drafter_->owes());
  // Its entry is free for the next sequence.
  drafter_->leave(0);
  drafter_->join(view());
  propose();
  ASSERT_EQ(link_.opened.size(), 1u);
  EXPECT_EQ(static_cast<uint32_t>((*link_.opened.front())->age), static_cast<uint32_t>(verdict_.request));
}

// Where one in 7 is right, or the drafter was asked for, it is kept; one that was right once is given up too.
TEST_F(RemoteDrafts, OthersAreNot) {
  for (const bool gives_up : {true, false}) {
    live_[0]->tokens.resize(kPrompt);
    make(gives_up);
    for (int window = 0; window < 60; ++window) {
      if (gives_up && window % 6 == 0) send({kRight, kWrong}, false);
      else send({kWrong}, false);
      decode();
      EXPECT_TRUE(waits()) << window;
    }
  }
  live_[0]->tokens.resize(kPrompt);
  make(true);
  int windows = 0;
  do {
    if (windows < 40) send({kRight, kRight}, true);
    else send({kWrong}, false);
    decode();
  } while (++windows < 300 && waits());
  EXPECT_GT(windows, 70);
  EXPECT_LT(windows, 160);
}

}  // namespace
}  // namespace otr
