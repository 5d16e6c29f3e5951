#include "spec/verify.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace otr {
namespace {

std::vector<int32_t> kept_nodes(const Forest& forest, const std::vector<int32_t>& drawn) {
  std::vector<int32_t> path(static_cast<size_t>(forest.max_depth()));
  path.resize(static_cast<size_t>(accept(forest, drawn, path)));
  return path;
}

Forest chain(const std::vector<int32_t>& tokens) {
  Forest forest;
  int32_t parent = Forest::kRoot;
  for (const int32_t token : tokens) parent = forest.add(parent, token, 1.0f, 0, 0);
  return forest;
}

TEST(Accept, KeepsTheEqualBeginningOfAChain) {
  struct Case {
    std::vector<int32_t> draft, drawn;
    size_t kept;
  };
  const Case cases[] = {
      {{}, {5}, 0},
      {{1}, {1, 2}, 1},
      {{1}, {2, 1}, 0},
      {{1, 2, 3}, {1, 2, 3, 4}, 3},
      {{1, 2, 3}, {1, 2, 9, 4}, 2},
      {{1, 2, 3}, {9, 2, 3, 4}, 0},  // equal again behind a difference: those rows saw another past
      {{0, 0}, {0, 1, 0}, 1},
  };
  for (const Case& c : cases) EXPECT_EQ(kept_nodes(chain(c.draft), c.drawn).size(), c.kept) << testing::PrintToString(c.draft);
}

TEST(Accept, FollowsTheBranchThatWasDrawn) {
  Forest forest;
  const int32_t a = forest.add(Forest::kRoot, 7, 1, 0, 0), b = forest.add(Forest::kRoot, 8, 1, 0, 1);
  const int32_t aa = forest.add(a, 1, 1, 0, 0), ba = forest.add(b, 1, 1, 0, 0), bb = forest.add(b, 2, 1, 0, 1);
  EXPECT_EQ(kept_nodes(forest, {7, 1, 0, 5, 5, 5}), (std::vector<int32_t>{a, aa}));
  EXPECT_EQ(kept_nodes(forest, {8, 1, 2, 5, 5, 5}), (std::vector<int32_t>{b, bb}));
  EXPECT_EQ(kept_nodes(forest, {8, 1, 1, 5, 5, 5}), (std::vector<int32_t>{b, ba}));
  EXPECT_EQ(kept_nodes(forest, {8, 1, 9, 5, 5, 5}), (std::vector<int32_t>{b}));
  EXPECT_EQ(kept_nodes(forest, {9, 1, 1, 5, 5, 5}), (std::vector<int32_t>{}));
}

// Whatever is drafted, what is committed is what the target alone would draw: its draws are a function of the tokens before.
TEST(Accept, AnyForestGivesTheTargetsTokens) {
  std::mt19937 random(1);
  const auto target = [](const std::vector<int32_t>& past) {
    uint32_t h = 17;
    for (const int32_t t : past) h = h * 31 + static_cast<uint32_t>(t);
    return static_cast<int32_t>(h >> 7 & 3);
  };
  std::vector<int32_t> plain;
  while (plain.size() < 500) plain.push_back(target(plain));

  std::vector<int32_t> tokens;
  size_t kept_in_all = 0;
  Forest forest;
  while (tokens.size() < plain.size()) {
    forest.clear();
    for (int32_t n = static_cast<int32_t>(random() % 12); n > 0; --n) {
      const int32_t parent = static_cast<int32_t>(random() % static_cast<uint32_t>(forest.size() + 1)) - 1;
      forest.add(parent, static_cast<int32_t>(random() & 3), 1.0f, 0, 0);
    }
    if (random() % 2 == 0) forest.order_by_path();
    std::vector<int32_t> drawn = {target(tokens)};
    for (int32_t node = 0; node < forest.size(); ++node) {
      std::vector<int32_t> past(static_cast<size_t>(forest[node].depth));
      for (int32_t at = node; at != Forest::kRoot; at = forest[at].parent)
        past[static_cast<size_t>(forest[at].depth - 1)] = forest[at].token;
      past.insert(past.begin(), tokens.begin(), tokens.end());
      drawn.push_back(target(past));
    }
    const std::vector<int32_t> kept = kept_nodes(forest, drawn);
    kept_in_all += kept.size();
    tokens.push_back(drawn[0]);
    for (const int32_t node : kept) tokens.push_back(drawn[static_cast<size_t>(1 + node)]);
  }
  tokens.resize(plain.size());
  EXPECT_EQ(tokens, plain);
  EXPECT_GT(kept_in_all, 100u);
}

}  // namespace
}  // namespace otr
