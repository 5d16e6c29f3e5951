// DraftTree: the tree that a parametric drafter grows for one sequence, level by level, best first.
//
// A node's A is the product of pi along its path: the modelled probability that the target keeps all of it. Growing by A, not
// by the drafter's own probability q, is what the known noise buys. A never grows along a path, so the best n nodes always form
// a tree.
//
//   reset(n)                 the root alone is to be expanded
//   for each level: for each node of frontier(): add_children(node, candidates);  then next_level(depth, …)
//   export_to(forest)        the best n nodes
//
// Single-threaded. Nothing is allocated within reserve().
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "spec/forest.h"

namespace otr {

class DraftTree {
 public:
  static constexpr int32_t kRoot = 0;  // node 0 stands for the last committed token

  struct Node {
    int32_t token;
    int32_t parent;
    int32_t depth;
    float acceptance;  // A
    int32_t rank;      // among its parent's candidates
    int32_t path;      // of the drafter's pages that hold the node, once it is expanded
    int32_t first_child, num_children;
  };

  void reserve(int32_t max_nodes, int32_t top_k);
  // `max_nodes`: of the exported tree.
  void reset(int32_t max_nodes);

  const Node& operator[](int32_t node) const { return nodes_[static_cast<size_t>(node)]; }
  int32_t size() const { return static_cast<int32_t>(nodes_.size()); }
  size_t capacity() const { return nodes_.capacity(); }
  // The nodes to be expanded on this level; all of one depth.
  std::span<const int32_t> frontier() const { return frontier_; }
  void set_path(int32_t node, int32_t path) { nodes_[static_cast<size_t>(node)].path = path; }
  // Tokens on the way to `node`, the root's excluded.
  void tokens_to(int32_t node, std::vector<int32_t>* tokens) const;

  // Children of a frontier node, best first: tokens and their pi. REQUIRES: once a node.
  void add_children(int32_t node, std::span<const int32_t> tokens, std::span<const float> pi);

  // The next frontier: of the newest nodes those among the best max_nodes so far, unless `closed(token)`. False if there is
  // none.
  template <typename Closed>
  bool next_level(const Closed& closed) {
    choose_next();
    std::erase_if(frontier_, [&](int32_t node) { return closed((*this)[node].token); });
    return !frontier_.empty();
  }
  // Drops the frontier's nodes for which keep(node) is false.
  template <typename Keep>
  void keep_frontier(const Keep& keep) {
    std::erase_if(frontier_, [&](int32_t node) { return !keep(node); });
  }

  // Adds the best max_nodes nodes to `forest` under the drafter's number.
  void export_to(Forest* forest, int drafter);

 private:
  template <typename Take>
  void each_of_the_best(const Take& take);
  void choose_next();

  std::vector<Node> nodes_;
  std::vector<int32_t> frontier_;
  std::vector<float> sorted_;
  std::vector<int32_t> exported_;
  int32_t max_nodes_ = 0;
  int32_t level_begin_ = 0;  // first node of the newest level
};

}  // namespace otr
