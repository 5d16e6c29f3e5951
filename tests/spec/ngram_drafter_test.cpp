#include "spec/ngram_drafter.h"

#include <gtest/gtest.h>

#include <vector>

namespace otr {
namespace {

// One group's sequences, decoded by hand.
class NgramDrafterTest : public testing::Test {
 protected:
  DraftSequence view(int32_t slot) {
    return {.slot = slot, .group = 1, .tokens = tokens_[static_cast<size_t>(slot)], .num_prompt = num_prompt_, .noise = {}};
  }
  void join(int32_t slot, std::vector<int32_t> prompt) {
    tokens_.resize(std::max(tokens_.size(), static_cast<size_t>(slot) + 1));
    num_prompt_ = static_cast<int32_t>(prompt.size());
    tokens_[static_cast<size_t>(slot)] = std::move(prompt);
    drafter_.join(view(slot));
  }
  std::vector<int32_t> propose(int32_t slot, int32_t depth) {
    forest_.clear();
    const DraftRow row = {view(slot), depth, &forest_};
    drafter_.propose({&row, 1}, {.top_k = 1, .max_nodes = 64});
    std::vector<int32_t> chain;
    for (const DraftNode& node : forest_.nodes()) chain.push_back(node.token);
    return chain;
  }
  void commit(int32_t slot, std::vector<int32_t> new_tokens, std::vector<int32_t> accepted = {}) {
    std::vector<int32_t>& all = tokens_[static_cast<size_t>(slot)];
    all.insert(all.end(), new_tokens.begin(), new_tokens.end());
    drafter_.observe({view(slot), static_cast<int32_t>(new_tokens.size()), &forest_, accepted});
    forest_.clear();
  }

  NgramDrafter drafter_{2};
  std::vector<std::vector<int32_t>> tokens_;
  int32_t num_prompt_ = 0;
  Forest forest_;
};

TEST_F(NgramDrafterTest, RepeatsThePrompt) {
  join(0, {1, 2, 3, 4, 5, 6, 1, 2});
  EXPECT_EQ(propose(0, 3), (std::vector<int32_t>{3, 4, 5}));
  EXPECT_EQ(forest_[0].drafters, 1 << 2);
  EXPECT_EQ(forest_[2].depth, 3);
}

TEST_F(NgramDrafterTest, LearnsFromTheOtherSamplesOfTheGroup) {
  join(0, {1, 2, 3});
  join(1, {1, 2, 3});
  EXPECT_TRUE(propose(1, 4).empty());
  commit(0, {7, 8, 9});
  EXPECT_EQ(propose(1, 4), (std::vector<int32_t>{7, 8, 9}));
  drafter_.leave(0);  // what a finished sample has said stays known to its group
  EXPECT_EQ(propose(1, 2), (std::vector<int32_t>{7, 8}));
  drafter_.leave(1);
  join(1, {1, 2, 3});  // a new group of the same number starts from nothing
  EXPECT_TRUE(propose(1, 4).empty());
}

// What was prepared while the draft was verified is proposed if the draft was kept and its source went on: also where a look-up
// now would find something newer, which shows that none was made.
TEST_F(NgramDrafterTest, LooksAheadWhileADraftIsVerified) {
  for (const bool ahead : {false, true}) {
    join(0, {1, 2, 3, 4, 5, 6, 7, 8, 1, 2});
    join(1, {1, 2, 3, 4, 5, 6, 7, 8, 1, 2});
    ASSERT_EQ(propose(0, 2), (std::vector<int32_t>{3, 4}));
    const DraftRow row = {view(0), 2, &forest_};
    if (ahead) drafter_.look_ahead({&row, 1});
    const Forest verified = forest_;
    commit(1, {3, 4, 5, 60, 70});  // a sample of the group says something else behind 3, 4, 5
    forest_ = verified;
    commit(0, {3, 4, 5}, {0, 1});
    EXPECT_EQ(propose(0, 2), (ahead ? std::vector<int32_t>{6, 7} : std::vector<int32_t>{60, 70}));
    drafter_.leave(0);
    drafter_.leave(1);
  }
}

TEST_F(NgramDrafterTest, WhatWasLookedUpForOtherTokensIsNotProposed) {
  join(0, {1, 2, 3, 4, 5, 6, 7, 8, 3, 9, 10, 1, 2});
  for (const std::vector<int32_t>& drawn : std::vector<std::vector<int32_t>>{{3, 4, 6}, {3, 9}, {3, 4, 5, 6}}) {
    const DraftSequence sequence = view(0);
    ASSERT_EQ(propose(0, 2).size(), 2u);
    const DraftRow row = {sequence, 2, &forest_};
    drafter_.look_ahead({&row, 1});
    NgramDrafter fresh(2);
    fresh.join(sequence);
    commit(0, drawn);
    fresh.observe({view(0), static_cast<int32_t>(drawn.size()), &forest_, {}});
    Forest expected;
    const DraftRow again = {view(0), 2, &expected};
    fresh.propose({&again, 1}, {.top_k = 1, .max_nodes = 64});
    const std::vector<int32_t> chain = propose(0, 2);
    ASSERT_EQ(chain.size(), static_cast<size_t>(expected.size()));
    for (size_t i = 0; i < chain.size(); ++i) EXPECT_EQ(chain[i], expected[static_cast<int32_t>(i)].token);
    fresh.leave(0);
    drafter_.leave(0);
    join(0, {1, 2, 3, 4, 5, 6, 7, 8, 3, 9, 10, 1, 2});
  }
}

TEST_F(NgramDrafterTest, ALoopIsFollowedPastItsEnd) {
  join(0, {4, 5, 6, 4, 5, 6, 4, 5});
  commit(0, {6});
  EXPECT_EQ(propose(0, 8), (std::vector<int32_t>{4, 5, 6, 4, 5, 6, 4, 5}));
  join(1, {9, 9, 3});
  commit(1, {3, 3, 3});
  EXPECT_EQ(propose(1, 5), (std::vector<int32_t>{3, 3, 3, 3, 3}));
}

TEST_F(NgramDrafterTest, AcceptanceFollowsWhatWasKept) {
  join(0, {1, 2, 3, 1, 2});
  propose(0, 1);
  const float before = forest_[0].acceptance;
  EXPECT_EQ(before, 0.5f);
  commit(0, {3, 4}, {0});
  for (int i = 0; i < 50; ++i) {
    commit(0, {1, 2});
    propose(0, 1);
    commit(0, {3}, {0});
  }
  commit(0, {1, 2});
  propose(0, 1);
  EXPECT_GT(forest_[0].acceptance, 0.9f);
}

// A step may go otherwise than the ones before: what they showed fades.
TEST_F(NgramDrafterTest, WhatWasKeptLongAgoFades) {
  const std::vector<int32_t> lead = {1, 2, 3, 4, 5, 6, 7, 8};  // as long as a match gets
  join(0, lead);
  for (int i = 0; i < 40'000; ++i) {
    const bool changed = i >= 30'000;
    commit(0, {changed ? 100 + i : 50}, changed || i == 0 ? std::vector<int32_t>() : std::vector<int32_t>{0});
    commit(0, lead);
    ASSERT_EQ(propose(0, 1).size(), 1u) << i;
  }
  EXPECT_LT(forest_[0].acceptance, 0.5f);  // 3 of 4 of all that there were
}

// The first of three was kept, and with it the response ended: nobody has judged the others.
TEST_F(NgramDrafterTest, WhatAnEndCutsOffIsNotWrong) {
  join(0, {1, 2, 3, 4, 5, 1, 2});
  propose(0, 3);
  ASSERT_EQ(forest_.size(), 3);
  commit(0, {3}, {0});
  join(1, {8, 1, 2, 6, 7, 1, 2});  // as long a match
  propose(1, 1);
  EXPECT_FLOAT_EQ(forest_[0].acceptance, 2.0f / 3);
}

// A sequence that comes from another worker has said something already.
TEST_F(NgramDrafterTest, WhatWasSaidElsewhereIsKnown) {
  tokens_ = {{1, 2, 3, 7, 8, 9}};
  num_prompt_ = 3;
  drafter_.join(view(0));
  join(1, {1, 2, 3});
  EXPECT_EQ(propose(1, 3), (std::vector<int32_t>{7, 8, 9}));
  const DraftRow row = {view(1), 3, &forest_};
  forest_.clear();
  drafter_.propose({&row, 1}, {.top_k = 1, .max_nodes = 2});
  EXPECT_EQ(forest_.size(), 2);
  drafter_.leave(1000);  // who never joined may leave
}

// What was looked up for the tokens that should have come is not taken up where the like of them comes later.
TEST_F(NgramDrafterTest, WhatWasLookedUpIsForOneLengthOnly) {
  join(0, {1, 2, 3, 4, 5, 6, 7, 8, 1, 2});
  join(1, {1, 2, 3, 4, 5, 6, 7, 8, 1, 2});
  ASSERT_EQ(propose(0, 2), (std::vector<int32_t>{3, 4}));
  const DraftRow row = {view(0), 2, &forest_};
  drafter_.look_ahead({&row, 1});  // for 3, 4, 5 to come
  commit(0, {9});
  commit(0, {6, 7, 8, 1, 2, 3, 4, 5});
  forest_.clear();
  commit(1, {3, 4, 5, 60, 70});
  EXPECT_EQ(propose(0, 2), (std::vector<int32_t>{60, 70}));
}

TEST_F(NgramDrafterTest, AcceptanceIsOfTheWholePath) {
  join(0, {1, 2, 3, 4, 5, 6, 1, 2});
  ASSERT_EQ(propose(0, 3).size(), 3u);
  EXPECT_EQ(forest_[1].acceptance, 0.25f);
  EXPECT_EQ(forest_[2].acceptance, 0.125f);
  const int32_t others = forest_.add(Forest::kRoot, 50, 0.5f, 5, 0);  // another drafter's came: none of its own was kept
  commit(0, {50, 51}, {others});
  commit(0, {7, 1, 2});
  ASSERT_EQ(propose(0, 1), std::vector<int32_t>{50});
  EXPECT_FLOAT_EQ(forest_[0].acceptance, 1.0f / 3);
  forest_.add(Forest::kRoot, 77, 0.5f, 5, 0);  // not its own: of one node one was kept
  commit(0, {50, 60}, {0});
  commit(0, {1, 2});
  ASSERT_EQ(propose(0, 1), std::vector<int32_t>{50});
  EXPECT_FLOAT_EQ(forest_[0].acceptance, 2.0f / 4);
}

// The path that is prepared for is the first one, whatever others have drafted beside it, and if it is one node.
TEST_F(NgramDrafterTest, LooksAheadBehindTheFirstPath) {
  for (const bool ahead : {false, true}) {
    join(0, {1, 2, 3, 4, 5, 6, 7, 8, 1, 2});
    join(1, {1, 2, 3, 4, 5, 6, 7, 8, 1, 2});
    ASSERT_EQ(propose(0, 1), std::vector<int32_t>{3});
    forest_.add(Forest::kRoot, 77, 0.1f, 5, 0);
    const DraftRow row = {view(0), 1, &forest_};
    if (ahead) drafter_.look_ahead({&row, 1});
    const Forest verified = forest_;
    commit(1, {3, 4, 60, 70});
    forest_ = verified;
    commit(0, {3, 4}, {0});
    EXPECT_EQ(propose(0, 2), (ahead ? std::vector<int32_t>{5, 6} : std::vector<int32_t>{60, 70}));
    drafter_.leave(0);
    drafter_.leave(1);
  }
}

}  // namespace
}  // namespace otr
