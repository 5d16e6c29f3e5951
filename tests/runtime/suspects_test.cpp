// Who is suspected of breaking processes, who stands trial, and who is guilty.

#include "runtime/suspects.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "sched/placement.h"

namespace otr {
namespace {

constexpr int32_t kMostRunning = 4, kVocab = 100, kNobody = Placement::kNobody;
enum class Verdict { kCancelled, kTrial, kGuilty };

class SuspectsTest : public testing::Test {
 protected:
  // Group `id` of n samples, from 0 on.
  void open(uint64_t id, int32_t n, int32_t worker) {
    const int32_t prompt[] = {1, 2, 3};
    otr_group_request r;
    otr_group_request_init(&r, sizeof r);
    r.prompt_token_ids = prompt;
    r.num_prompt_tokens = 3;
    r.n = n;
    auto made = make_group(r, {.vocab_size = kVocab, .context_limit = 256, .num_pages = 8, .eos_ids = {}});
    ASSERT_TRUE(made.ok()) << made.status().message();
    for (auto& s : made.value()) s->group->id = id, s->age = next_age_++;
    ledger_.open(made.value(), worker);
    for (auto& s : made.value()) s->group->disband();
  }
  void accept(uint64_t id, uint32_t sample) {
    const LedgerSample& s = find(id, sample);
    Progress p;
    p.segments.push_back({.group = id, .sample = sample, .first = s.num_accepted(), .count = 1});
    p.tokens = {7};
    p.logprobs = p.raw_logprobs = {-1.0f};
    ASSERT_TRUE(ledger_.append(s.worker, p, kVocab).ok());
  }
  const LedgerSample& find(uint64_t id, uint32_t sample) const { return *ledger_.find(id)->find(sample); }
  // A worker's process breaks, or is killed, and what was there goes to worker `to`.
  void lose(int32_t worker, bool broke, int32_t to) {
    if (broke) suspects_.broke(worker, kMostRunning, ledger_);
    suspects_.hold(worker, &ledger_);
    for (const auto& [id, group] : ledger_.groups()) {
      for (const LedgerSample& s : group.samples) {
        if (!s.is_over() && s.worker == worker) ledger_.move(id, s.sample, worker, to);
      }
    }
  }
  // As the engine does. Empty: nobody leaves.
  struct Left {
    uint64_t group = 0;
    uint32_t sample = 0;
    Verdict verdict = Verdict::kTrial;
    bool operator==(const Left&) const = default;
  };
  std::vector<Left> send(int32_t to) {
    std::vector<Left> left;
    while (const auto next = suspects_.next(ledger_)) {
      const auto [group, sample] = next->name;
      const bool is_cancelled = ledger_.find(group)->group->cancelled;
      left.push_back({group, sample,
                      is_cancelled      ? Verdict::kCancelled
                      : next->is_guilty ? Verdict::kGuilty
                                        : Verdict::kTrial});
      if (is_cancelled) {
        EXPECT_TRUE(ledger_.finish(kNobody, group, sample, OTR_FINISH_ABORT, "").ok());
      } else if (next->is_guilty) {
        EXPECT_TRUE(ledger_.fail(kNobody, group, sample).ok());
      } else {
        ledger_.move(group, sample, kNobody, to);
      }
      suspects_.left(next->name, ledger_);
    }
    return left;
  }

  Ledger ledger_;
  Suspects suspects_;
  uint64_t next_age_ = 0;
};

TEST_F(SuspectsTest, WhoComesNoFurtherStandsTrialAlone) {
  open(1, 1, 0);
  open(2, 1, 0);
  for (const uint64_t id : {1, 2}) accept(id, 0);
  lose(0, true, 1);
  EXPECT_EQ(send(1), std::vector<Left>());
  EXPECT_EQ(find(1, 0).worker, 1);
  lose(1, true, 0);
  EXPECT_EQ(find(1, 0).worker, kNobody);
  EXPECT_EQ(find(2, 0).worker, kNobody);
  EXPECT_EQ(send(0), (std::vector<Left>{{1, 0, Verdict::kTrial}}));
  EXPECT_EQ(send(0), std::vector<Left>());
  suspects_.tries(0, {1, 0}, ledger_);
  EXPECT_TRUE(suspects_.has_begun_at(0, ledger_));
  accept(1, 0);
  EXPECT_EQ(send(0), std::vector<Left>()) << "it may break yet";
  EXPECT_TRUE(suspects_.has_begun_at(0, ledger_));
  suspects_.tries(0, {}, ledger_);
  EXPECT_FALSE(suspects_.has_begun_at(0, ledger_));
  EXPECT_EQ(send(0), (std::vector<Left>{{2, 0, Verdict::kTrial}}));
  suspects_.tries(0, {2, 0}, ledger_);
  lose(0, true, 1);
  EXPECT_EQ(find(1, 0).worker, 1) << "it had come through, and was beside the guilty one";
  EXPECT_EQ(send(1), (std::vector<Left>{{2, 0, Verdict::kGuilty}}));
  EXPECT_TRUE(find(2, 0).has_failed);
  lose(1, true, 0);
  EXPECT_EQ(find(1, 0).worker, 0) << "once is no suspicion";
}

TEST_F(SuspectsTest, WhoComesFurtherIsNotSuspected) {
  open(1, 1, 0);
  for (int32_t i = 0; i < 5; ++i) {
    lose(i % 2, true, 1 - i % 2);
    EXPECT_EQ(send(0), std::vector<Left>());
    for (int32_t token = 0; token < 16; ++token) accept(1, 0);
  }
  for (int32_t i = 0; i < 15; ++i) accept(1, 0);
  lose(1, true, 0);
  for (int32_t i = 0; i < 15; ++i) accept(1, 0);
  lose(0, true, 1);
  EXPECT_EQ(send(0), (std::vector<Left>{{1, 0, Verdict::kTrial}})) << "it may have broken where it did before";
}

TEST_F(SuspectsTest, WhatIsKilledFromOutsideIsNobodysFault) {
  open(1, 2, 0);
  for (int32_t i = 0; i < 5; ++i) {
    lose(0, false, 0);
    EXPECT_EQ(send(0), std::vector<Left>());
  }
  lose(0, true, 0);
  lose(0, true, 0);
  EXPECT_EQ(send(0), (std::vector<Left>{{1, 0, Verdict::kTrial}}));
  suspects_.tries(0, {1, 0}, ledger_);
  lose(0, false, 0);  // in the trial: it comes again, after the others
  EXPECT_EQ(send(0), (std::vector<Left>{{1, 1, Verdict::kTrial}}));
  suspects_.tries(0, {1, 0}, ledger_);
  EXPECT_FALSE(suspects_.has_begun_at(0, ledger_));
}

// A trial that has not begun when its process breaks was not what broke it.
TEST_F(SuspectsTest, WhoHasNotBegunIsNotGuilty) {
  open(1, 1, 0);
  lose(0, true, 0);
  lose(0, true, 0);
  for (int32_t i = 0; i < 4; ++i) {
    EXPECT_EQ(send(0), (std::vector<Left>{{1, 0, Verdict::kTrial}}));
    suspects_.tries(1, {1, 0}, ledger_);  // another worker's word
    suspects_.tries(0, {2, 0}, ledger_);  // another sample
    lose(0, true, 0);
  }
}

TEST_F(SuspectsTest, APromptIsGuiltyForAllItsSamples) {
  open(1, 3, 0);
  open(2, 1, 0);
  lose(0, true, 0);
  lose(0, true, 0);
  EXPECT_EQ(send(0), (std::vector<Left>{{1, 0, Verdict::kTrial}}));
  suspects_.tries(0, {1, 0}, ledger_);
  lose(0, true, 0);
  EXPECT_EQ(send(0),
            (std::vector<Left>{
                {1, 1, Verdict::kGuilty}, {1, 2, Verdict::kGuilty}, {1, 0, Verdict::kGuilty}, {2, 0, Verdict::kTrial}}));
}

// A sample that has drawn since its trial began does not break on its prompt.
TEST_F(SuspectsTest, ASampleIsGuiltyForItselfAlone) {
  open(1, 3, 0);
  lose(0, true, 0);
  lose(0, true, 0);
  EXPECT_EQ(send(0), (std::vector<Left>{{1, 0, Verdict::kTrial}}));
  suspects_.tries(0, {1, 0}, ledger_);
  accept(1, 0);
  lose(0, true, 0);
  EXPECT_EQ(send(0), (std::vector<Left>{{1, 0, Verdict::kGuilty}, {1, 1, Verdict::kTrial}}));
}

// It gives way to others, which break the process: so it is not to blame.
TEST_F(SuspectsTest, ATrialThatIsInterruptedProvesNothing) {
  open(1, 1, 0);
  lose(0, true, 0);
  lose(0, true, 0);
  EXPECT_EQ(send(0), (std::vector<Left>{{1, 0, Verdict::kTrial}}));
  suspects_.tries(0, {1, 0}, ledger_);
  suspects_.tries(0, {}, ledger_);
  EXPECT_FALSE(suspects_.has_begun_at(0, ledger_));
  lose(0, true, 0);
  EXPECT_EQ(send(0), (std::vector<Left>{{1, 0, Verdict::kTrial}}));
}

// Of those that a worker had, the ones that can have run.
TEST_F(SuspectsTest, WhoWaitedIsNotSuspected) {
  for (uint64_t id = 1; id <= 20; ++id) open(id, 1, 0);
  lose(0, true, 0);
  lose(0, true, 0);
  int32_t held = 0;
  for (uint64_t id = 1; id <= 20; ++id) held += find(id, 0).worker == kNobody;
  EXPECT_EQ(held, 2 * kMostRunning);
  EXPECT_EQ(find(2 * kMostRunning, 0).worker, kNobody);
  EXPECT_EQ(find(2 * kMostRunning + 1, 0).worker, 0);
}

TEST_F(SuspectsTest, SamplesOfOnePromptWaitTogether) {
  open(1, 3, 0);
  ledger_.move(1, 1, 0, 1);
  lose(0, true, 0);
  ledger_.move(1, 1, 1, 0);
  lose(0, true, 0);  // the first time for one of them
  for (const uint32_t sample : {0, 1, 2}) EXPECT_EQ(find(1, sample).worker, kNobody);
}

// One of a group has come through: the others may break on what is their own, and stand trial too.
TEST_F(SuspectsTest, SiblingsStandTrialOneByOne) {
  open(1, 3, 0);
  lose(0, true, 0);
  lose(0, true, 0);
  for (const uint32_t sample : {0, 1}) {
    EXPECT_EQ(send(0), (std::vector<Left>{{1, sample, Verdict::kTrial}}));
    suspects_.tries(0, {1, sample}, ledger_);
    accept(1, sample);
    suspects_.tries(0, {}, ledger_);
  }
  EXPECT_EQ(send(0), (std::vector<Left>{{1, 2, Verdict::kTrial}}));
  suspects_.tries(0, {1, 2}, ledger_);
  lose(0, true, 0);
  EXPECT_EQ(send(0), (std::vector<Left>{{1, 2, Verdict::kGuilty}}));
}

// Before its trial is said to begin a first row of it may draw already.
TEST_F(SuspectsTest, WhoDrawsBeforeItsTrialStandsItYet) {
  open(1, 1, 0);
  lose(0, true, 0);
  lose(0, true, 0);
  EXPECT_EQ(send(0), (std::vector<Left>{{1, 0, Verdict::kTrial}}));
  accept(1, 0);
  EXPECT_EQ(send(0), std::vector<Left>());
  suspects_.tries(0, {1, 0}, ledger_);
  lose(0, true, 0);
  EXPECT_EQ(send(0), (std::vector<Left>{{1, 0, Verdict::kGuilty}}));
}

TEST_F(SuspectsTest, WhoIsOverOrCancelledDoesNotWait) {
  open(1, 2, 0);
  open(2, 2, 0);
  lose(0, true, 0);
  lose(0, true, 0);
  EXPECT_EQ(send(0), (std::vector<Left>{{1, 0, Verdict::kTrial}}));
  ledger_.find(2)->group->cancelled = true;
  EXPECT_EQ(send(0), (std::vector<Left>{{2, 0, Verdict::kCancelled}, {2, 1, Verdict::kCancelled}}));
  ledger_.close(1, 0);  // the one on trial
  EXPECT_EQ(send(0), (std::vector<Left>{{1, 1, Verdict::kTrial}}));
  ledger_.close(1, 1);
  EXPECT_EQ(send(0), std::vector<Left>());
  EXPECT_FALSE(suspects_.has_begun_at(0, ledger_));
  lose(0, true, 1);
  EXPECT_EQ(send(1), std::vector<Left>());
}

TEST_F(SuspectsTest, WhoRacesElsewhereIsNotSuspected) {
  open(1, 1, 0);
  accept(1, 0);
  ASSERT_TRUE(ledger_.lend(1, 0, 1, false));
  for (int32_t i = 0; i < 3; ++i) {
    suspects_.broke(0, kMostRunning, ledger_);
    suspects_.broke(1, kMostRunning, ledger_);
  }
  suspects_.hold(0, &ledger_);
  EXPECT_EQ(send(0), std::vector<Left>());
}

}  // namespace
}  // namespace otr
