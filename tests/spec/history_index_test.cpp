#include "spec/history_index.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <utility>

namespace otr {
namespace {

std::vector<int32_t> random_ids(std::mt19937* random, size_t size, uint32_t alphabet) {
  std::vector<int32_t> ids(size);
  for (int32_t& id : ids) id = static_cast<int32_t>(static_cast<uint32_t>((*random)()) % alphabet);
  return ids;
}

// The longest match by trying every place: its length, and the tokens that follow, as a sorted list.
std::pair<int32_t, std::vector<int32_t>> brute_force(std::span<const int32_t> prompt,
                                                     std::span<const HistoryResponse> responses,
                                                     std::span<const int32_t> tokens) {
  int32_t longest = 0;
  std::vector<int32_t> next;
  const size_t context = std::min(prompt.size(), size_t{PromptHistory::kMaxMatch});
  for (const HistoryResponse& r : responses) {
    std::vector<int32_t> text(prompt.end() - static_cast<std::ptrdiff_t>(context), prompt.end());
    text.insert(text.end(), r.tokens.begin(), r.tokens.end());
    for (size_t at = context; at < text.size(); ++at) {
      int32_t length = 0;
      while (length < PromptHistory::kMaxMatch && static_cast<size_t>(length) < std::min(at, tokens.size()) &&
             text[at - 1 - static_cast<size_t>(length)] == tokens[tokens.size() - 1 - static_cast<size_t>(length)]) {
        ++length;
      }
      if (length < PromptHistory::kMinMatch || length < longest) continue;
      if (length > longest) next.clear();
      longest = length;
      next.push_back(text[at]);
    }
  }
  std::sort(next.begin(), next.end());
  return {longest, next};
}

TEST(HistoryIndex, FindsWhatBruteForceFinds) {
  std::mt19937 random(3);
  std::set<int32_t> lengths;
  for (int round = 0; round < 400; ++round) {
    const uint32_t alphabet = 2 + static_cast<uint32_t>(random()) % 9;
    const std::vector<int32_t> prompt = random_ids(&random, 1 + random() % 10, alphabet);
    std::vector<HistoryResponse> responses;
    for (uint32_t i = 0; i < 1 + random() % 5; ++i)
      responses.push_back({random_ids(&random, random() % 40, alphabet), {}, kUnknownReward});
    const PromptHistory history(prompt, responses);
    for (int query = 0; query < 20; ++query) {
      std::vector<int32_t> tokens = prompt;
      const std::vector<int32_t> more = random_ids(&random, random() % 9, alphabet);
      tokens.insert(tokens.end(), more.begin(), more.end());
      std::vector<PromptHistory::Place> places;
      const int32_t length = history.find(tokens, &places);
      const auto [expected_length, expected_next] = brute_force(prompt, responses, tokens);
      ASSERT_EQ(length, expected_length);
      lengths.insert(length);
      std::vector<int32_t> next;
      for (const PromptHistory::Place& p : places) next.push_back(history.token_at(p.position));
      std::sort(next.begin(), next.end());
      if (expected_next.size() <= static_cast<size_t>(PromptHistory::kMaxPlaces)) ASSERT_EQ(next, expected_next);
      else ASSERT_EQ(next.size(), static_cast<size_t>(PromptHistory::kMaxPlaces));
    }
  }
  EXPECT_EQ(lengths, (std::set<int32_t>{0, 3, 4, 5, 6, 7}));
}

TEST(HistoryIndex, TheFirstTokenOfAResponseIsFoundBehindThePrompt) {
  const std::vector<int32_t> prompt = {1, 2, 3, 4};
  const PromptHistory history(prompt, std::vector<HistoryResponse>{{{50, 51}, {}, kUnknownReward}});
  std::vector<PromptHistory::Place> places;
  EXPECT_EQ(history.find(prompt, &places), 4);
  ASSERT_EQ(places.size(), 1u);
  EXPECT_EQ(history.token_at(places[0].position), 50);
  EXPECT_TRUE(history.advance(&places[0], 1));
  EXPECT_EQ(history.token_at(places[0].position), 51);
  EXPECT_FALSE(history.advance(&places[0], 1));
}

TEST(HistoryIndex, KeepsResponsesAsTheyWere) {
  const std::vector<HistoryResponse> responses = {
      {{5, 6, 7}, {-0.5f, -1.0f, -2.0f}, 0.25f}, {{}, {}, 3.0f}, {{8}, {-0.125f}, kUnknownReward}};
  const PromptHistory history(std::vector<int32_t>{1, 2}, responses);
  ASSERT_EQ(history.num_responses(), 3u);
  EXPECT_EQ(history.num_tokens(), 4);
  for (size_t i = 0; i < responses.size(); ++i) {
    const HistoryResponse r = history.response(i);
    EXPECT_EQ(r.tokens, responses[i].tokens);
    EXPECT_EQ(r.logprobs, responses[i].logprobs);
    EXPECT_TRUE(r.reward == responses[i].reward || (std::isnan(r.reward) && std::isnan(responses[i].reward)));
  }
}

TEST(HistoryIndex, WeightsFollowRewards) {
  const auto weights = [](std::vector<float> rewards) {
    std::vector<HistoryResponse> responses;
    for (const float reward : rewards) responses.push_back({{1}, {}, reward});
    const PromptHistory history(std::vector<int32_t>{1}, responses);
    std::vector<float> w;
    for (size_t i = 0; i < rewards.size(); ++i) w.push_back(history.weight(i));
    return w;
  };
  EXPECT_EQ(weights({0.0f, 1.0f}), (std::vector<float>{0.1f, 1.0f}));
  EXPECT_EQ(weights({-4.0f, 0.0f, 4.0f, kUnknownReward}), (std::vector<float>{0.1f, 0.55f, 1.0f, 0.55f}));
  EXPECT_EQ(weights({-3e38f, 3e38f, 0.0f}), (std::vector<float>{0.1f, 1.0f, 0.55f}));
  EXPECT_EQ(weights({2.0f, 2.0f, kUnknownReward}), (std::vector<float>{0.55f, 0.55f, 0.55f}));
}

TEST(HistoryIndex, PromptsAreTheirTokens) {
  HistoryIndex index;
  const auto history = [](int32_t token) {
    return std::make_shared<const PromptHistory>(std::vector<int32_t>{1},
                                                 std::vector<HistoryResponse>{{{token, token}, {}, kUnknownReward}});
  };
  index.put({1, 2}, history(7));
  index.put({1, 3}, history(8));
  const HistoryIndex before = index;
  index.put({1, 2}, history(9));
  const auto first_token = [](const HistoryIndex& i, std::vector<int32_t> prompt) {
    return i.find(prompt)->response(0).tokens[0];
  };
  EXPECT_EQ(first_token(index, {1, 2}), 9);
  EXPECT_EQ(first_token(before, {1, 2}), 7);
  EXPECT_EQ(first_token(index, {1, 3}), 8);
  EXPECT_EQ(index.find(std::vector<int32_t>{1}), nullptr);
  EXPECT_EQ(index.num_tokens(), 4);
  EXPECT_EQ(index.bytes(), before.bytes());
}

TEST(HistoryIndex, StaysWithinItsMemory) {
  std::mt19937 random(1);
  std::vector<HistoryResponse> responses(8);
  for (HistoryResponse& r : responses) r.tokens = random_ids(&random, 1000, 1000);
  const std::vector<int32_t> prompt = random_ids(&random, 50, 1000);
  EXPECT_LT(PromptHistory(prompt, responses).bytes(), 9u * 8000u);
  for (HistoryResponse& r : responses) r.logprobs.assign(r.tokens.size(), -1.0f);
  EXPECT_LT(PromptHistory(prompt, responses).bytes(), 13u * 8000u);
}

// Where a match has more places than may be followed, those that are taken come from all of them.
TEST(HistoryIndex, ManyPlacesAreSpread) {
  std::vector<HistoryResponse> responses;
  for (int32_t i = 0; i < 4 * PromptHistory::kMaxPlaces; ++i) responses.push_back({{100 + i}, {}, kUnknownReward});
  const std::vector<int32_t> prompt = {1, 2, 3};
  const PromptHistory history(prompt, responses);
  EXPECT_FALSE(history.has_logprobs());
  std::vector<PromptHistory::Place> places;
  ASSERT_EQ(history.find(prompt, &places), 3);
  ASSERT_EQ(places.size(), size_t{PromptHistory::kMaxPlaces});
  for (size_t i = 0; i < places.size(); ++i)
    EXPECT_NEAR(history.token_at(places[i].position), 100 + 4 * static_cast<int32_t>(i), 2);
  EXPECT_GE(history.bytes(), responses.size() * (sizeof(HistoryResponse::reward) +
                                                 5 * sizeof(int32_t)));  // a text of 5, and what is known of it
  EXPECT_FALSE(PromptHistory(prompt, {}).has_logprobs());
}

// The hash only finds prompts; bytes are those of the prompts and of their histories.
TEST(HistoryIndex, ComparesPromptsAndCountsThem) {
  const std::vector<int32_t> a = {1, 2}, b = {1, 3}, c = {1, 2, 3};
  EXPECT_TRUE(PromptEqual()(a, a));
  EXPECT_FALSE(PromptEqual()(a, b));
  EXPECT_FALSE(PromptEqual()(a, c));
  HistoryIndex index;
  const auto history = std::make_shared<const PromptHistory>(a, std::vector<HistoryResponse>{{{5, 6}, {}, kUnknownReward}});
  index.put(a, history);
  index.put(c, history);
  EXPECT_EQ(index.bytes(), 2 * history->bytes() + (a.size() + c.size()) * sizeof(int32_t));
}

}  // namespace
}  // namespace otr
