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

// Whoever saw the noise that the target draws with knows better than who looked the token up, be he surer or less sure, first
// or last.
TEST(Forest, WhoSawTheNoiseSaysHowLikelyANodeIs) {
  for (const float seen : {0.1f, 0.9f}) {
    for (const bool first : {false, true}) {
      Forest forest;
      for (const bool looks_up : {first, !first}) {
        if (looks_up) forest.add(Forest::kRoot, 5, 0.5f, 0, 0);
        else forest.add(Forest::kRoot, 5, seen, 1, 0, /*saw_noise=*/true);
      }
      ASSERT_EQ(forest.size(), 1);
      EXPECT_EQ(forest[0].acceptance, seen);
      EXPECT_EQ(forest[0].worth, seen);
      EXPECT_EQ(forest[0].drafters, 0b11);
      forest.add(Forest::kRoot, 5, 0.95f, 2, 0, true);  // of two that saw it the surer one
      EXPECT_EQ(forest[0].acceptance, 0.95f);
    }
  }
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

// Worth is what a forest is cut by: at first what its drafters say, and never below nothing.
TEST(Forest, WorthBeginsAsAcceptance) {
  Forest forest;
  const int32_t a = forest.add(Forest::kRoot, 1, 0.25f, 0, 0), unknown = forest.add(Forest::kRoot, 2, -1.0f, 0, 0);
  EXPECT_EQ(forest[a].worth, 0.25f);
  EXPECT_EQ(forest[unknown].worth, 0.0f);
  forest.add(Forest::kRoot, 1, 0.5f, 1, 0);
  EXPECT_EQ(forest[a].worth, 0.5f);
  forest.add(Forest::kRoot, 1, 0.125f, 2, 0);  // the greater one counts
  EXPECT_EQ(forest[a].acceptance, 0.5f);
  EXPECT_EQ(forest[a].worth, 0.5f);
  EXPECT_EQ(forest.max_depth(), 1);
  forest.add(a, 3, 0.5f, 0, 0);
  forest.add(Forest::kRoot, 4, 0.5f, 0, 0);
  EXPECT_EQ(forest.max_depth(), 2);  // not the last one's
}

// 1 (0.5) - 2 (0.5) - 3 (0.25), and 4 (0.75) - 5 (0.5) beside it.
TEST(Forest, KeepsTheBestAndWhatIsAboveThem) {
  const auto made = [] {
    Forest forest;
    const int32_t a = forest.add(Forest::kRoot, 1, 0.5f, 0, 0), b = forest.add(Forest::kRoot, 4, 0.75f, 0, 1);
    const int32_t deep = forest.add(a, 2, 0.5f, 0, 0);
    forest.add(b, 5, 0.5f, 0, 0);
    forest.add(deep, 3, 0.25f, 0, 0);
    return forest;
  };
  const auto cut = [&made](float least, int32_t num_equal, int32_t equal_kept) {
    Forest forest = made();
    EXPECT_EQ(forest.keep_best(least, num_equal), equal_kept);
    return paths_of(forest);
  };
  using Paths = std::set<std::vector<int32_t>>;
  EXPECT_EQ(cut(0.1f, 0, 0), paths_of(made()));
  EXPECT_EQ(cut(0.25f, 0, 0), (Paths{{1}, {1, 2}, {4}, {4, 5}}));
  EXPECT_EQ(cut(0.5f, 3, 3), (Paths{{1}, {1, 2}, {4}, {4, 5}}));
  EXPECT_EQ(cut(0.5f, 2, 2), (Paths{{1}, {1, 2}, {4}}));  // the first two of the equal ones
  EXPECT_EQ(cut(0.5f, 1, 1), (Paths{{1}, {4}}));
  EXPECT_EQ(cut(0.5f, 0, 0), (Paths{{4}}));
  EXPECT_EQ(cut(0.75f, 0, 0), Paths());
  // What is below a node that goes, goes too, whatever it is worth.
  Forest forest = made();
  forest.set_worth(0, 0.0f);
  EXPECT_EQ(forest.keep_best(0.5f, 3), 1);
  EXPECT_EQ(paths_of(forest), (Paths{{4}, {4, 5}}));
}

}  // namespace
}  // namespace otr
