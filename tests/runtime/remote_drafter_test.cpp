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
    add();
    link_.server = link_.verifier = &bell_;
  }

  void add() {
    auto s = std::make_unique<Sequence>();
    s->group = std::make_shared<Group>();
    s->group->num_prompt = kPrompt;
    s->tokens.assign(kPrompt, kRight);
    s->slot = static_cast<int32_t>(live_.size());
    s->max_tokens = kMaxTokens;
    live_.push_back(std::move(s));
    verdicts_.emplace_back();
  }
  void make(bool gives_up) {
    drafter_ = std::make_unique<RemoteDrafter>(0, &link_, live_, &pace_, gives_up);
    drafter_->set_open(true);
    for (size_t slot = 0; slot < live_.size(); ++slot) ASSERT_TRUE(join(slot));
  }
  // Whether the drafting worker is told of it.
  bool join(size_t slot) {
    drafter_->join(view(slot));
    return open(slot);
  }
  bool open(size_t slot) {
    propose(slot);
    drafter_->exchange();
    if (link_.opened.empty()) return false;
    EXPECT_EQ(link_.opened.size(), 1u);
    verdicts_[slot] = {};
    verdicts_[slot].request = (*link_.opened.front())->age;
    link_.opened.pop();
    return true;
  }
  DraftSequence view(size_t slot = 0) const {
    const Sequence& s = *live_[slot];
    return {.slot = s.slot, .group = 0, .tokens = s.tokens, .num_prompt = kPrompt, .noise = s.noise};
  }
  void propose(size_t slot = 0) {
    forest_.clear();
    const DraftRow row{.sequence = view(slot), .max_depth = kMaxDraftDepth, .forest = &forest_};
    drafter_->propose({&row, 1}, {.max_nodes = kMaxDraftNodes});
  }
  // One that fits what the drafting worker has been told.
  void send(std::initializer_list<int32_t> tokens, bool closes, size_t slot = 0) {
    DraftMessage m;
    m.request = verdicts_[slot].request;
    m.epoch = verdicts_[slot].epoch;
    m.begin = live_[slot]->num_tokens();
    for (const int32_t token : tokens) m.tokens[static_cast<size_t>(m.num_tokens++)] = token;
    m.closes = closes;
    link_.drafts.push(m);
    drafter_->exchange();
  }
  // A tick: what was drafted is judged, and the drafting worker hears of it.
  void decode(size_t slot = 0) {
    propose(slot);
    int32_t num_new = 1;
    while (num_new <= forest_.size() && forest_[num_new - 1].token == kRight) ++num_new;
    for (int32_t i = 0; i < num_new; ++i) live_[slot]->tokens.push_back(kRight);
    drafter_->observe({.sequence = view(slot), .num_new = num_new, .forest = &forest_, .accepted = {}});
    hear();
  }
  void hear() {
    drafter_->exchange();
    for (const VerdictMessage* v; (v = link_.verdicts.front()) != nullptr; link_.verdicts.pop(), ++num_verdicts_) {
      for (VerdictMessage& known : verdicts_) {
        if (known.request == v->request) known = *v;
      }
    }
  }
  // While the worker finds tokens. `slot` has joined, or joins.
  int64_t open_in_a_while(size_t slot) {
    constexpr int64_t kLong = 10'000;
    drafter_->join(view(slot));
    for (int64_t found = 1; found < kLong; ++found) {
      const std::vector<int32_t> one = {kRight};
      const DraftSequence other{
          .slot = static_cast<int32_t>(live_.size()), .group = 0, .tokens = one, .num_prompt = 0, .noise = {}};
      drafter_->observe({.sequence = other, .num_new = 1, .forest = &forest_, .accepted = {}});
      if (open(slot)) return found;
    }
    return 0;
  }
  bool waits(size_t slot = 0) const { return drafter_->waits(static_cast<int32_t>(slot)); }
  bool is_given_up(size_t slot) const { return verdicts_[slot].ended; }

  struct SilentBell final : LinkBell {
    void ring() override {}
  };
  SilentBell bell_;
  DraftLink link_{16, 0};
  std::vector<std::unique_ptr<Sequence>> live_;
  PaceClock clock_{0, 1};
  Pace pace_{&clock_};  // time stands still, so that nobody waits in vain
  std::unique_ptr<RemoteDrafter> drafter_;
  Forest forest_;
  std::vector<VerdictMessage> verdicts_;  // the last ones, by slot
  int num_verdicts_ = 0;
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

// Nor is it told of every token: in a while there may be room.
TEST_F(RemoteDrafts, WhoseDrafterFindsNothingTellsItSeldom) {
  make(false);
  send({kRight}, true);
  decode();
  for (int round = 0; round < 4; ++round) {
    send({}, true);
    num_verdicts_ = 0;
    for (int token = 1; token < kQuietTokens; ++token) decode();
    EXPECT_EQ(num_verdicts_, 0);
    decode();
    EXPECT_EQ(num_verdicts_, 1);
    EXPECT_EQ(verdicts_[0].end(), live_[0]->num_tokens());
  }
  decode();
  send({kRight}, false);  // it has room again, and drafts for what it knew last
  hear();
  EXPECT_EQ(verdicts_[0].end(), live_[0]->num_tokens());
  EXPECT_TRUE(waits());
  send({}, true);
  decode();
  drafter_->leave(0);
  hear();
  EXPECT_TRUE(verdicts_[0].ended);
}

TEST_F(RemoteDrafts, AUselessDrafterIsGivenUp) {
  make(true);
  int windows = 0;
  do {
    send({kWrong, kWrong}, false);
    decode();
  } while (++windows < 100 && waits());
  EXPECT_EQ(windows, 32);
  EXPECT_TRUE(is_given_up(0));
  for (int token = 0; token < 20; ++token) {
    decode();
    EXPECT_FALSE(waits());
  }
  EXPECT_TRUE(link_.opened.empty());
  EXPECT_FALSE(drafter_->owes());
  // Its entry is free for the next sequence.
  drafter_->leave(0);
  const uint64_t before = verdicts_[0].request;
  ASSERT_TRUE(open_in_a_while(0));
  EXPECT_EQ(static_cast<uint32_t>(verdicts_[0].request), static_cast<uint32_t>(before));
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

// Whoever has found better itself goes on; whoever comes later is held back, then one tries for all.
TEST_F(RemoteDrafts, OneFindingIsEnoughForAWhile) {
  constexpr size_t kGood = 1, kPoor = 2, kFresh = 3, kLater = 4, kLast = 5;
  for (size_t slot = kGood; slot <= kFresh; ++slot) add();
  make(true);
  for (int window = 0; window < 3; ++window) send({kRight, kWrong}, false, kGood), decode(kGood);
  for (int window = 0; window < 5; ++window) send({kWrong}, false, kPoor), decode(kPoor);
  for (int window = 0; window < 31; ++window) send({kWrong}, false), decode();
  EXPECT_FALSE(is_given_up(0) || is_given_up(kPoor) || is_given_up(kFresh));
  send({kWrong}, false), decode();
  hear();
  EXPECT_TRUE(is_given_up(0) && is_given_up(kPoor) && is_given_up(kFresh));
  EXPECT_FALSE(is_given_up(kGood));
  for (int window = 0; window < 20; ++window) send({kRight, kWrong}, false, kGood), decode(kGood);
  EXPECT_TRUE(waits(kGood));

  add();
  const int64_t rest = open_in_a_while(kLater);
  EXPECT_GT(rest, 3000);
  add();
  EXPECT_FALSE(join(kLast));  // one is enough
  for (int window = 0; window < 32; ++window) send({kWrong}, false, kLater), decode(kLater);
  hear();
  EXPECT_TRUE(is_given_up(kLater));
  drafter_->leave(kLast);
  const int64_t again = open_in_a_while(kLast);
  EXPECT_GT(again, 3000);
  drafter_->join(view(kLater));
  EXPECT_FALSE(open(kLater));
  for (int window = 0; window < 16; ++window) send({kRight, kRight}, true, kLast), decode(kLast);
  EXPECT_TRUE(open(kLater));
}

// What one finds is nobody's business where all together find better.
TEST_F(RemoteDrafts, OneOddSampleIsGivenUpAlone) {
  add();
  add();
  make(true);
  for (int window = 0; window < 16; ++window) send({kRight, kRight}, true, 1), decode(1);
  for (int window = 0; window < 32; ++window) send({kWrong}, false), decode();
  hear();
  EXPECT_TRUE(is_given_up(0));
  EXPECT_FALSE(is_given_up(1) || is_given_up(2));
  add();
  EXPECT_TRUE(join(3));
}

}  // namespace
}  // namespace otr
