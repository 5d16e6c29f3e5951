#include "spec/draft_tree.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <vector>

namespace otr {
namespace {

constexpr auto kOpen = [](int32_t) { return false; };

TEST(DraftTree, OneCandidateAPlaceIsAChain) {
  DraftTree tree;
  tree.reset(3);
  for (int32_t level = 1; level <= 5; ++level) {
    ASSERT_EQ(tree.frontier().size(), 1u);
    const int32_t token = 10 * level;
    const float pi = 0.5f;
    tree.add_children(tree.frontier()[0], {&token, 1}, {&pi, 1});
    if (!tree.next_level(kOpen)) break;
  }
  Forest forest;
  tree.export_to(&forest, 2);
  ASSERT_EQ(forest.size(), 3);
  EXPECT_EQ(forest[2].token, 30);
  EXPECT_EQ(forest[2].depth, 3);
  EXPECT_EQ(forest[2].acceptance, 0.125f);
  EXPECT_EQ(forest[2].drafters, 1 << 2);
}

TEST(DraftTree, AClosedTokenIsAFittingEnd) {
  DraftTree tree;
  tree.reset(4);
  const std::vector<int32_t> tokens = {1, 2};
  const std::vector<float> pi = {0.6f, 0.3f};
  tree.add_children(DraftTree::kRoot, tokens, pi);
  ASSERT_TRUE(tree.next_level([](int32_t token) { return token == 1; }));
  ASSERT_EQ(tree.frontier().size(), 1u);
  EXPECT_EQ(tree[tree.frontier()[0]].token, 2);
  Forest forest;
  tree.export_to(&forest, 0);
  EXPECT_EQ(forest.size(), 2);  // proposed, not expanded
}

// Grown level by level with random probabilities: what is exported are the best nodes of all that were seen, they form a tree,
// and whatever was left out of a frontier could not have had a child among them.
TEST(DraftTree, ExportsTheBestNodesOfTheWholeTree) {
  std::mt19937 random(5);
  std::uniform_real_distribution<float> uniform(0.0f, 1.0f);
  for (int round = 0; round < 300; ++round) {
    const int32_t max_nodes = 1 + static_cast<int32_t>(random() % 20), max_depth = 1 + static_cast<int32_t>(random() % 6);
    const size_t top_k = 1 + random() % 4;
    // The whole tree to max_depth, a function of the path.
    std::map<std::vector<int32_t>, std::vector<float>> all_pi;
    const auto pi_of = [&](const std::vector<int32_t>& path) -> const std::vector<float>& {
      std::vector<float>& pi = all_pi[path];
      if (pi.empty()) {
        float rest = 1.0f;
        for (size_t i = 0; i < top_k; ++i) pi.push_back(rest *= round % 3 == 0 ? 0.5f : uniform(random));
        std::sort(pi.rbegin(), pi.rend());
      }
      return pi;
    };
    DraftTree tree;
    tree.reset(max_nodes);
    for (int32_t level = 1; level <= max_depth; ++level) {
      const std::vector<int32_t> frontier(tree.frontier().begin(), tree.frontier().end());
      for (const int32_t node : frontier) {
        std::vector<int32_t> path, tokens(top_k);
        tree.tokens_to(node, &path);
        ASSERT_EQ(path.size(), static_cast<size_t>(level - 1));
        for (size_t i = 0; i < top_k; ++i) tokens[i] = static_cast<int32_t>(i);
        tree.add_children(node, tokens, pi_of(path));
      }
      if (level == max_depth || !tree.next_level(kOpen)) break;
    }
    Forest forest;
    tree.export_to(&forest, 0);

    std::vector<float> best = {};
    std::vector<std::pair<std::vector<int32_t>, float>> open = {{{}, 1.0f}};
    for (int32_t depth = 0; depth < max_depth; ++depth) {
      std::vector<std::pair<std::vector<int32_t>, float>> next;
      for (const auto& [path, a] : open) {
        for (size_t i = 0; i < top_k; ++i) {
          next.emplace_back(path, a * pi_of(path)[i]);
          next.back().first.push_back(static_cast<int32_t>(i));
          best.push_back(next.back().second);
        }
      }
      std::sort(next.begin(), next.end(), [](const auto& x, const auto& y) { return x.second > y.second; });
      if (next.size() > 64) next.resize(64);  // a superset of what can matter
      open = std::move(next);
    }
    std::sort(best.rbegin(), best.rend());
    best.resize(std::min(best.size(), static_cast<size_t>(max_nodes)));
    std::vector<float> exported;
    for (const DraftNode& node : forest.nodes()) exported.push_back(node.acceptance);
    std::sort(exported.rbegin(), exported.rend());
    ASSERT_EQ(exported, best) << "round " << round;
  }
}

// A is a probability, whatever the rounding of pi says; of nodes that are equally good the older ones are taken.
TEST(DraftTree, NothingIsMoreThanCertainAndTheOlderOfEqualsGoFirst) {
  DraftTree tree;
  tree.reset(2);
  const std::vector<int32_t> tokens = {1, 2, 3};
  const std::vector<float> certain = {1.0f + 1e-6f, 0.5f, 0.5f};
  tree.add_children(DraftTree::kRoot, tokens, certain);
  EXPECT_EQ(tree[1].acceptance, 1.0f);
  EXPECT_EQ(tree[DraftTree::kRoot].first_child, 1);
  EXPECT_EQ(tree[DraftTree::kRoot].num_children, 3);
  ASSERT_TRUE(tree.next_level(kOpen));
  EXPECT_EQ(std::vector<int32_t>(tree.frontier().begin(), tree.frontier().end()), (std::vector<int32_t>{1, 2}));
  tree.keep_frontier([](int32_t node) { return node == 2; });
  ASSERT_EQ(tree.frontier().size(), 1u);
  EXPECT_EQ(tree.frontier()[0], 2);
  Forest forest;
  tree.export_to(&forest, 0);
  ASSERT_EQ(forest.size(), 2);
  EXPECT_EQ(forest[0].token, 1);
  EXPECT_EQ(forest[1].token, 2);
  EXPECT_EQ(forest[1].rank, 1);
}

// A tree that is begun anew knows nothing of the one before.
TEST(DraftTree, ResetForgets) {
  DraftTree tree;
  for (int round = 0; round < 3; ++round) {
    tree.reset(4);
    for (int32_t level = 0; level < 2; ++level) {
      ASSERT_EQ(tree.frontier().size(), 1u);
      const int32_t token = 7 + level;
      const float pi = 0.5f;
      tree.add_children(tree.frontier()[0], {&token, 1}, {&pi, 1});
      ASSERT_TRUE(tree.next_level(kOpen));
    }
    EXPECT_EQ(tree.size(), 3);
    Forest forest;
    tree.export_to(&forest, 0);
    ASSERT_EQ(forest.size(), 2);
    EXPECT_EQ(forest[1].token, 8);
  }
}

// Twice as many nodes as a tree has may be expanded, each with all its candidates, without the tree growing.
TEST(DraftTree, WhatIsReservedIsEnough) {
  constexpr int32_t kNodes = 8, kTopK = 4;
  DraftTree tree;
  tree.reserve(kNodes, kTopK);
  const size_t reserved = tree.capacity();
  tree.reset(kNodes);
  const std::vector<int32_t> tokens = {1, 2, 3, 4};
  const std::vector<float> pi = {0.5f, 0.2f, 0.2f, 0.1f};
  for (int32_t node = 0; node < 2 * kNodes; ++node) tree.add_children(node, tokens, pi);
  EXPECT_EQ(tree.size(), 1 + 2 * kNodes * kTopK);
  EXPECT_EQ(tree.capacity(), reserved);
}

}  // namespace
}  // namespace otr
