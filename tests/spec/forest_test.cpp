#include "spec/forest.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>
#include <vector>

namespace otr {
namespace {

// The tokens on the way to each node: what a forest means, however its nodes are ordered.
std::set<std::vector<int32_t>> paths_of(const Forest& forest) {
  std::set<std::vector<int32_t>> paths;
  for (int32_t node = 0; node < forest.size(); ++node) {
    std::vector<int32_t> path;
    for (int32_t at = node; at != Forest::kRoot; at = forest[at].parent) path.insert(path.begin(), forest[at].token);
    EXPECT_EQ(path.size(), static_cast<size_t>(forest[node].depth));
    EXPECT_TRUE(paths.insert(path).second) << "twice in the forest";
  }
  return paths;
}

TEST(Forest, MergesWhatSeveralDraftersPropose) {
  Forest forest;
  const int32_t a = forest.add(Forest::kRoot, 5, 0.5f, 0, 0);
  EXPECT_EQ(forest.add(Forest::kRoot, 5, 0.75f, 3, 2), a);
  EXPECT_EQ(forest.size(), 1);
  EXPECT_EQ(forest[a].drafters, 0b1001);
  EXPECT_EQ(forest[a].acceptance, 0.75f);
  EXPECT_EQ(forest[a].rank, 0);
  const int32_t b = forest.add(a, 5, 0.25f, 1, 1);
  EXPECT_NE(b, a);  // the same token one deeper is another node
  EXPECT_EQ(forest[b].depth, 2);
  EXPECT_EQ(forest.child(a, 5), b);
  EXPECT_EQ(forest.child(b, 5), Forest::kNone);
  EXPECT_EQ(forest.max_depth(), 2);
}

TEST(Forest, RandomForestsAreOrderedByPath) {
  std::mt19937 random(7);
  for (int round = 0; round < 500; ++round) {
    Forest forest;
    for (int n = static_cast<int>(random() % 40); n > 0; --n) {
      const int32_t parent = static_cast<int32_t>(random() % static_cast<uint32_t>(forest.size() + 1)) - 1;
      forest.add(parent, static_cast<int32_t>(random() % 5), 1.0f / static_cast<float>(n), 0, static_cast<int>(random() % 3));
    }
    const auto before = paths_of(forest);
    forest.order_by_path();
    ASSERT_EQ(paths_of(forest), before);
    int32_t runs = 0;
    for (int32_t begin = 0; begin < forest.size(); begin = forest.run_end(begin), ++runs) {
      ASSERT_LT(forest[begin].parent, begin);
      const int32_t end = forest.run_end(begin);
      for (int32_t i = begin; i < end; ++i) {
        ASSERT_EQ(forest.run_of(i), runs);
        ASSERT_TRUE(i == begin || forest[i].parent == i - 1);
      }
      // A run ends in a leaf: so each run but the first is one more path.
      for (int32_t i = 0; i < forest.size(); ++i) ASSERT_TRUE(forest[i].parent != end - 1 || i == end);
    }
    // Cutting anywhere leaves a forest.
    if (forest.size() > 0) {
      forest.truncate(static_cast<int32_t>(random() % static_cast<uint32_t>(forest.size())));
      for (int32_t i = 0; i < forest.size(); ++i) ASSERT_LT(forest[i].parent, i);
    }
  }
}

TEST(Forest, SiblingsKeepTheOrderTheyWereAddedIn) {
  Forest forest;
  forest.add(Forest::kRoot, 1, 1, 0, 0);
  forest.add(Forest::kRoot, 2, 1, 0, 1);
  forest.add(0, 3, 1, 0, 0);
  forest.add(1, 4, 1, 0, 0);
  forest.add(0, 5, 1, 0, 1);
  forest.order_by_path();
  std::vector<int32_t> tokens;
  for (const DraftNode& node : forest.nodes()) tokens.push_back(node.token);
  EXPECT_EQ(tokens, (std::vector<int32_t>{1, 3, 5, 2, 4}));
}

}  // namespace
}  // namespace otr
