#include "spec/history_drafter.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "tests/runtime/sanitized.h"

namespace otr {
namespace {

const std::vector<int32_t> kPrompt = {1, 2, 3};

// One sequence of kPrompt, decoded by hand against a history.
class HistoryDrafterTest : public testing::Test {
 protected:
  void start(std::vector<HistoryResponse> responses, NoiseStream noise = {}, float temperature = 1.0f) {
    auto index = std::make_shared<HistoryIndex>();
    index->put(kPrompt, std::make_shared<const PromptHistory>(kPrompt, responses));
    index_ = std::move(index);
    tokens_ = kPrompt;
    noise_ = noise;
    temperature_ = temperature;
    drafter_.join(view());
  }
  DraftSequence view() const {
    return {.slot = 0,
            .group = 1,
            .tokens = tokens_,
            .num_prompt = static_cast<int32_t>(kPrompt.size()),
            .noise = noise_,
            .temperature = temperature_};
  }
  std::vector<int32_t> propose(int32_t depth = kMaxDraftDepth, int32_t top_k = 1, int32_t max_nodes = 64) {
    forest_.clear();
    const DraftRow row = {view(), depth, &forest_};
    drafter_.propose({&row, 1}, {.top_k = top_k, .max_nodes = max_nodes});
    std::vector<int32_t> drafted;
    for (const DraftNode& node : forest_.nodes()) drafted.push_back(node.token);
    return drafted;
  }
  // The target says these tokens; what was drafted of them is kept.
  void commit(std::vector<int32_t> new_tokens) {
    std::vector<int32_t> accepted;
    int32_t parent = Forest::kRoot;
    for (size_t i = 0; i + 1 < new_tokens.size(); ++i) {
      parent = forest_.child(parent, new_tokens[i]);
      ASSERT_NE(parent, Forest::kNone);
      accepted.push_back(parent);
    }
    tokens_.insert(tokens_.end(), new_tokens.begin(), new_tokens.end());
    drafter_.observe({view(), static_cast<int32_t>(new_tokens.size()), &forest_, accepted});
    forest_.clear();
  }

  std::shared_ptr<const HistoryIndex> index_;
  HistoryDrafter drafter_{3, [this] { return index_; }};
  std::vector<int32_t> tokens_;
  NoiseStream noise_ = {};
  float temperature_ = 1.0f;
  Forest forest_;
};

// 100, 101, … : every token once.
std::vector<int32_t> count_up(int32_t first, int32_t count) {
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < count; ++i) tokens.push_back(first + i);
  return tokens;
}

TEST_F(HistoryDrafterTest, TheWindowGrowsWithSuccessAndFallsBackAtAMistake) {
  start({{count_up(100, 900), {}, kUnknownReward}});
  size_t at = 0;
  for (const size_t window : {2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30, 32, 32}) {
    const std::vector<int32_t> chain = propose();
    ASSERT_EQ(chain, count_up(100 + static_cast<int32_t>(at), static_cast<int32_t>(window)));
    EXPECT_EQ(forest_[0].drafters, 1 << 3);
    std::vector<int32_t> said = chain;
    said.push_back(100 + static_cast<int32_t>(at + window));
    commit(said);
    at += said.size();
  }
  propose();
  commit({100 + static_cast<int32_t>(at), 5000});  // one kept, then something new
  EXPECT_EQ(propose().size(), 2u);
  EXPECT_EQ(propose(1).size(), 1u);  // never above what the policy allows
}

TEST_F(HistoryDrafterTest, AfterSomethingNewItGoesOnBesideTheOldResponse) {
  start({{count_up(100, 20), {}, kUnknownReward}});
  propose();
  commit({100, 101, 102});
  propose();
  commit({77});
  EXPECT_EQ(propose(), count_up(104, 2));
  commit({104, 105, 106});
  EXPECT_EQ(propose(2), count_up(107, 2));
}

TEST_F(HistoryDrafterTest, TheBranchOfTheGreaterRewardGoesFirst) {
  const std::vector<int32_t> a = {10, 11, 12}, b = {10, 21, 22};
  start({{a, {}, 0.0f}, {b, {}, 1.0f}});
  EXPECT_EQ(propose(2), (std::vector<int32_t>{10, 21}));
  start({{a, {}, 1.0f}, {b, {}, 0.0f}});
  EXPECT_EQ(propose(2), (std::vector<int32_t>{10, 11}));
  start({{a, {}, kUnknownReward}, {b, {}, kUnknownReward}, {b, {}, kUnknownReward}});
  EXPECT_EQ(propose(2), (std::vector<int32_t>{10, 21}));
  start({{a, {}, 1.0f}, {b, {}, 0.0f}, {b, {}, 0.1f}});  // one that was right against two that were not: 1.0 and 0.1 + 0.19
  EXPECT_EQ(propose(2), (std::vector<int32_t>{10, 11}));
}

TEST_F(HistoryDrafterTest, ATreeHasTheBranches) {
  start({{{10, 11, 12}, {}, 0.0f}, {{10, 21, 22}, {}, 1.0f}});
  propose(2, 2);
  ASSERT_EQ(forest_.size(), 3);
  const int32_t root = forest_.child(Forest::kRoot, 10);
  EXPECT_EQ(forest_[forest_.child(root, 21)].rank, 0);
  EXPECT_EQ(forest_[forest_.child(root, 11)].rank, 1);
  EXPECT_EQ(propose(2, 2, 2), (std::vector<int32_t>{10, 21}));
}

TEST_F(HistoryDrafterTest, NothingIsKnownOfANewPrompt) {
  start({{{10, 11, 12}, {}, 0.0f}});
  index_ = std::make_shared<HistoryIndex>();
  EXPECT_FALSE(propose().empty());  // the sequence keeps the history it began with
  drafter_.leave(0);
  drafter_.join(view());
  EXPECT_TRUE(propose().empty());
  index_ = nullptr;
  drafter_.leave(0);
  drafter_.join(view());
  EXPECT_TRUE(propose().empty());
}

// A process has its first samples before it has read its history.
TEST_F(HistoryDrafterTest, AnIndexThatComesLaterIsFound) {
  start({{{10, 11, 12}, {}, 0.0f}});
  const std::shared_ptr<const HistoryIndex> late = index_;
  for (const auto& first : {std::shared_ptr<const HistoryIndex>(), std::make_shared<const HistoryIndex>()}) {
    index_ = first;
    drafter_.leave(0);
    drafter_.join(view());
    EXPECT_TRUE(propose().empty());
    index_ = late;
    EXPECT_EQ(propose(), (std::vector<int32_t>{10, 11}));
    index_ = first;
    EXPECT_EQ(propose(), (std::vector<int32_t>{10, 11}));  // what it has found it keeps
  }
}

TEST_F(HistoryDrafterTest, WithoutNoiseLogprobsOfDrawsSayNothing) {
  start({{{10, 11}, {-5.0f, -5.0f}, kUnknownReward}}, {}, 0.0f);
  EXPECT_EQ(propose(2), (std::vector<int32_t>{10, 11}));  // at temperature 1 these would mostly be dropped
}

TEST_F(HistoryDrafterTest, ToldToItDoesWithoutLogprobs) {
  // Tokens of probability e^-9: dropped where log-probs count, else a window of them is drafted.
  start({{count_up(100, 20), std::vector<float>(20, -9.0f), kUnknownReward}});
  EXPECT_TRUE(propose().empty());
  HistoryDrafter plain(
      3, [this] { return index_; }, /*use_logprobs=*/false);
  plain.join(view());
  const DraftRow row = {view(), 64, &forest_};
  plain.propose({&row, 1}, {.top_k = 1, .max_nodes = 64});
  EXPECT_EQ(forest_.size(), HistoryDrafter::kFirstWindow);
}

// With log-probs there is no window: what is certain is drafted to the depth that is allowed, and to the response's end.
TEST_F(HistoryDrafterTest, WithLogprobsThereIsNoWindow) {
  start({{count_up(100, 20), std::vector<float>(20, 0.0f), kUnknownReward}});
  EXPECT_EQ(propose(10), count_up(100, 10));
  EXPECT_EQ(propose(64), count_up(100, 20));
}

TEST_F(HistoryDrafterTest, NothingIsDraftedPastAResponsesEnd) {
  start({{{10}, {}, 1.0f}, {{10}, {}, 1.0f}, {{10, 11}, {}, 0.0f}});
  EXPECT_EQ(propose(8, 4), (std::vector<int32_t>{10, 11}));
  start({{{10}, {}, 1.0f}});
  EXPECT_EQ(propose(8), std::vector<int32_t>{10});
  commit({10, 20});
  EXPECT_TRUE(propose(8).empty());
}

// What was kept is told by length of the match: 6 tokens here, which says nothing of 7.
TEST_F(HistoryDrafterTest, EachLengthOfMatchHasARateOfItsOwn) {
  start({{count_up(100, 20), {}, kUnknownReward}});
  const auto acceptance_behind = [&](int32_t match) {
    tokens_ = kPrompt;
    tokens_.push_back(999);
    for (const int32_t token : count_up(100, match)) tokens_.push_back(token);
    EXPECT_EQ(propose(1), std::vector<int32_t>{100 + match});
    return forest_[0].acceptance;
  };
  EXPECT_EQ(acceptance_behind(6), 0.5f);
  commit({5000});
  EXPECT_FLOAT_EQ(acceptance_behind(6), 1.0f / 3);
  EXPECT_EQ(acceptance_behind(7), 0.5f);
  EXPECT_EQ(acceptance_behind(5), 0.5f);
  // Behind one of 5 the second node's match is one of 6.
  ASSERT_EQ(acceptance_behind(5), 0.5f);
  propose(2);
  ASSERT_EQ(forest_.size(), 2);
  EXPECT_FLOAT_EQ(forest_[1].acceptance, 0.5f / 3);
}

// The first was kept, the second was not; then the first of two, with which the response ended: of the second nothing is known.
TEST_F(HistoryDrafterTest, CountsWhatWasJudged) {
  const std::vector<HistoryResponse> responses = {{count_up(100, 20), {}, kUnknownReward}};
  const auto acceptance = [&] {
    start(responses);
    propose(2);
    EXPECT_EQ(forest_.size(), 2);
    return std::pair(forest_[0].acceptance, forest_[1].acceptance / forest_[0].acceptance);
  };
  EXPECT_EQ(acceptance(), std::pair(0.5f, 0.5f));
  commit({100, 5000});
  EXPECT_FLOAT_EQ(acceptance().first, 2.0f / 3);
  EXPECT_FLOAT_EQ(acceptance().second, 1.0f / 3);
  tokens_.push_back(100);
  drafter_.observe({view(), 1, &forest_, std::vector<int32_t>{0}});
  EXPECT_FLOAT_EQ(acceptance().first, 3.0f / 4);
  EXPECT_FLOAT_EQ(acceptance().second, 1.0f / 3);
  forest_.add(Forest::kRoot, 100, 0.1f, 5, 0);  // another's as well: rank and acceptance may be its
  forest_.truncate(1);
  commit({6000});
  EXPECT_FLOAT_EQ(acceptance().first, 3.0f / 4);
}

// A draft of which nothing was verified says nothing of the window; who never joined may leave.
TEST_F(HistoryDrafterTest, WhatWasNotVerifiedDoesNotWidenTheWindow) {
  start({{count_up(100, 20), {}, kUnknownReward}});
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(propose().size(), 2u);
    forest_.clear();
    commit({100 + i});
  }
  drafter_.leave(1000);
}

// The second branch came: the first was wrong, what is behind the first nobody judged, and the second goes first from then on.
TEST_F(HistoryDrafterTest, BranchesCountByTheirRank) {
  const std::vector<HistoryResponse> responses = {{{20, 21}, {}, 0.0f}, {{10, 11}, {}, 1.0f}};
  start(responses);
  ASSERT_EQ(propose(2, 2).size(), 4u);
  commit({20, 21, 5000});
  start(responses);
  propose(2, 2);
  const int32_t first = forest_.child(Forest::kRoot, 10), second = forest_.child(Forest::kRoot, 20);
  EXPECT_FLOAT_EQ(forest_[first].acceptance, 1.0f / 3);
  EXPECT_FLOAT_EQ(forest_[second].acceptance, 2.0f / 3);
  EXPECT_FLOAT_EQ(forest_[forest_.child(second, 21)].acceptance, 2.0f / 3 * 2 / 3);
  EXPECT_FLOAT_EQ(forest_[forest_.child(first, 11)].acceptance, 1.0f / 3 * 2 / 3);
  EXPECT_EQ(propose(2, 2, 2), (std::vector<int32_t>{20, 21}));
  start({{{11}, {}, kUnknownReward}, {{10}, {}, kUnknownReward}});
  EXPECT_EQ(propose(1), std::vector<int32_t>{10});  // of equals the smaller one
}

// What was kept long ago counts less.
TEST_F(HistoryDrafterTest, RatesFollowWhatHasChanged) {
  start({{count_up(100, 20), {}, kUnknownReward}});
  for (int i = 0; i < 25'000; ++i) {
    tokens_ = kPrompt;
    propose(1);
    commit(i < 17'000 ? std::vector<int32_t>{100, 101} : std::vector<int32_t>{5000});
  }
  tokens_ = kPrompt;
  propose(1);
  EXPECT_NEAR(forest_[0].acceptance, 0.52f, 0.03f);  // 0.68 of all
}

// Each node has the noise of its own position, and A is the product along the path; below kMinAcceptance nothing is drafted.
TEST_F(HistoryDrafterTest, WithLogprobsEachNodeIsDrawnAtItsPosition) {
  constexpr int32_t kLength = 6;
  int deep = 0, cut = 0;
  for (uint64_t stream = 0; stream < 100; ++stream) {
    HistoryDrafter fresh(3, [this] { return index_; });
    start({{count_up(100, kLength), std::vector<float>(kLength, -0.3f), kUnknownReward}},
          noise_stream({.seed = 5, .stream = stream, .sample = 0}));
    fresh.join(view());
    forest_.clear();
    const DraftRow row = {view(), kLength, &forest_};
    fresh.propose({&row, 1}, {.top_k = 1, .max_nodes = 64});
    float acceptance = 1.0f;
    int32_t depth = 0;
    for (; depth < kLength; ++depth) {
      const float score = -0.3f + gumbel(noise_, static_cast<uint32_t>(100 + depth),
                                         static_cast<uint32_t>(kPrompt.size()) + static_cast<uint32_t>(depth));
      acceptance *= std::exp(-(1.0f - std::exp(-0.3f)) * std::exp(-score));
      if (acceptance < HistoryDrafter::kMinAcceptance) break;
      ASSERT_LT(depth, forest_.size());
      ASSERT_NEAR(forest_[depth].acceptance, acceptance, 1e-5f);
    }
    ASSERT_EQ(forest_.size(), depth);
    deep += depth == kLength;
    cut += depth > 0 && depth < kLength;
  }
  EXPECT_GT(deep, 5);
  EXPECT_GT(cut, 5);
}

// Rounding may leave a probability above 1: nothing becomes more than certain for it, and nothing less than impossible.
TEST_F(HistoryDrafterTest, ProbabilitiesMayBeRounded) {
  start({{{11}, {-4.0f}, kUnknownReward}, {{10}, {0.1f}, kUnknownReward}});
  EXPECT_EQ(propose(1), std::vector<int32_t>{10});
  start({{{10}, {0.1f}, kUnknownReward}});
  EXPECT_EQ(propose(1), std::vector<int32_t>{10});
  EXPECT_EQ(forest_[0].acceptance, 1.0f);
}

// What log-probs hold for certain and is not kept: A is as often right from then on, by length of the match. What is dropped
// for that is tried again after a while; what would be dropped anyway has no part in it.
TEST_F(HistoryDrafterTest, TrustIsWhatWasKeptOfWhatWasExpected) {
  const std::vector<HistoryResponse> certain = {{{100, 101}, {0.0f, 0.0f}, kUnknownReward}},
                                     hopeless = {{{100}, {-9.0f}, kUnknownReward}};
  constexpr double kKeep = 1 - 1.0 / 4096;
  double kept = 4, expected = 4;
  int wrong = 0;
  for (start(certain); !propose(1).empty(); ++wrong) {
    ASSERT_LT(wrong, 20);
    ASSERT_NEAR(forest_[0].acceptance, kept / expected, 1e-5);
    commit({5000});
    kept = kKeep * kept, expected = kKeep * expected + 1;
    start(certain);
  }
  EXPECT_EQ(wrong, 16);  // 4 / 20 is less than kMinAcceptance by then
  start(hopeless);
  for (int i = 0; i < 1000; ++i) ASSERT_TRUE(propose(1).empty());
  start(certain);
  ASSERT_TRUE(propose(1).empty());
  int dropped = 0;
  while (propose(1).empty()) ASSERT_LT(++dropped, 1000);
  EXPECT_GT(forest_[0].acceptance, HistoryDrafter::kMinAcceptance);

  // The second of two nodes is judged behind the first, which nobody was sure of.
  HistoryDrafter other(3, [this] { return index_; });
  const auto propose_two = [&] {
    start(certain);
    other.join(view());
    forest_.clear();
    const DraftRow row = {view(), 2, &forest_};
    other.propose({&row, 1}, {.top_k = 1, .max_nodes = 2});
  };
  const auto say = [&](std::vector<int32_t> tokens, std::vector<int32_t> accepted) {
    tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
    other.observe({view(), static_cast<int32_t>(tokens.size()), &forest_, accepted});
  };
  propose_two();
  for (int i = 0; i < 4; ++i) say({5000}, {}), propose_two();
  ASSERT_EQ(forest_.size(), 2);
  ASSERT_NEAR(forest_[0].acceptance, 0.5f, 1e-3f);
  ASSERT_NEAR(forest_[1].acceptance, 0.5f, 1e-3f);
  say({100, 5000}, {0});
  propose_two();
  EXPECT_NEAR(forest_[1].acceptance / forest_[0].acceptance, 0.8f, 1e-3f);
}

// Only the best candidate is what log-probs expect: the second has a rate of its own.
TEST_F(HistoryDrafterTest, TrustIsOfTheBestCandidate) {
  const std::vector<HistoryResponse> responses = {{{10}, {std::log(0.5f)}, kUnknownReward},
                                                  {{11}, {std::log(0.5f)}, kUnknownReward}};
  start(responses);
  ASSERT_EQ(propose(1, 2).size(), 2u);
  EXPECT_EQ(forest_[0].acceptance, 1.0f);
  EXPECT_EQ(forest_[1].acceptance, 0.5f);
  commit({5000});
  start(responses);
  propose(1, 2);
  EXPECT_NEAR(forest_[0].acceptance, 0.8f, 1e-3f);
  EXPECT_FLOAT_EQ(forest_[1].acceptance, 1.0f / 3);
}

// A place whose old tokens had the probabilities p, while the target may say anything: what is proposed is the known token with
// the greatest score, A is how often the target draws it, and what is dropped is what A says to be below kMinAcceptance: with
// known tokens of mass 0.7 a share of kMinAcceptance^(0.7 / 0.3). Whatever is counted is within 4.5 standard errors.
TEST_F(HistoryDrafterTest, AcceptanceFollowsTheClosedForm) {
  const std::vector<float> p = {0.45f, 0.2f, 0.05f};
  const float rest = 0.3f;  // over kUnknown tokens, alike
  constexpr int kUnknown = 300, kRounds = kSanitized ? 50 : 20000, kBins = 8;
  constexpr double kErrors = 4.5;
  std::vector<HistoryResponse> responses;
  for (int i = 0; i < 3; ++i) responses.push_back({{10 + i}, {std::log(p[static_cast<size_t>(i)])}, kUnknownReward});
  double expected[kBins] = {}, kept[kBins] = {}, count[kBins] = {};
  double dropped = 0, dropped_right = 0, dropped_expected = 0, dropped_variance = 0;
  for (int round = 0; round < kRounds; ++round) {
    start(responses, noise_stream({.seed = 5, .stream = static_cast<uint64_t>(round), .sample = 0}));
    const uint32_t position = static_cast<uint32_t>(kPrompt.size());
    int32_t best_known = -1, drawn = -1;
    float best_known_score = -1e9f, best_score = -1e9f;
    const auto consider = [&](int32_t token, float mass, bool known) {
      const float score = std::log(mass) + gumbel(noise_, static_cast<uint32_t>(token), position);
      if (known && score > best_known_score) best_known_score = score, best_known = token;
      if (score > best_score) best_score = score, drawn = token;
    };
    for (int i = 0; i < 3; ++i) consider(10 + i, p[static_cast<size_t>(i)], true);
    for (int i = 0; i < kUnknown; ++i) consider(1000 + i, rest / kUnknown, false);
    HistoryDrafter fresh(3, [this] { return index_; });
    fresh.join(view());
    forest_.clear();
    const DraftRow row = {view(), 1, &forest_};
    fresh.propose({&row, 1}, {.top_k = 1, .max_nodes = 8});
    const double a = std::exp(-rest * std::exp(-best_known_score));
    ASSERT_EQ(forest_.empty(), a < HistoryDrafter::kMinAcceptance) << a;
    if (forest_.empty()) {
      ++dropped;
      dropped_right += best_known == drawn;
      dropped_expected += a;
      dropped_variance += a * (1 - a);
      continue;
    }
    ASSERT_EQ(forest_[0].token, best_known);
    ASSERT_NEAR(forest_[0].acceptance, a, 1e-4);
    const int bin = std::min(kBins - 1, static_cast<int>(a * kBins));
    ++count[bin];
    expected[bin] += a;
    kept[bin] += best_known == drawn;
  }
  for (int bin = 0; bin < kBins; ++bin) {
    if (count[bin] == 0) continue;
    EXPECT_NEAR(kept[bin] / count[bin], expected[bin] / count[bin], kErrors * std::sqrt(0.25 / count[bin])) << bin;
  }
  const double share = std::pow(static_cast<double>(HistoryDrafter::kMinAcceptance), 0.7 / 0.3);
  EXPECT_NEAR(dropped, kRounds * share, kErrors * std::sqrt(kRounds * share * (1 - share)));
  EXPECT_NEAR(dropped_right, dropped_expected, kErrors * std::sqrt(dropped_variance));
  if (kSanitized) return;  // too few for a share
  EXPECT_GT(dropped, 200);
  EXPECT_LT(dropped_right / dropped, HistoryDrafter::kMinAcceptance);
}

}  // namespace
}  // namespace otr
