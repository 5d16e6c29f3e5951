// Forest: what is drafted after one sequence's last committed token: nodes that share beginnings, from one or several drafters.
// A chain is the forest in which every node has at most one child.
//
// Invariants: a parent comes before its children; no two children of one parent have the same token.
// Single-threaded. add() allocates nothing within reserve().
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace otr {

inline constexpr int32_t kMaxDraftDepth = 64;
inline constexpr int32_t kMaxDraftNodes = 256;  // of one forest
inline constexpr int32_t kMaxDrafters = 16;     // of one engine

struct DraftNode {
  int32_t token;
  int32_t parent;          // index of the node before it, or Forest::kRoot
  int32_t depth;           // 1 for a child of the root
  float acceptance;        // A: modelled probability that this node and all before it are kept, as its drafters say
  float worth;             // the same as the chooser sees it: at first what the drafters say; >= 0
  uint16_t drafters;       // bit d: drafter d proposed it
  uint16_t rank;           // 0: the best candidate of its first proposer at its place
  bool saw_noise = false;  // A comes of a drafter that draws as the target will, and not of one that looks up
};

class Forest {
 public:
  static constexpr int32_t kRoot = -1;  // the last committed token
  static constexpr int32_t kNone = -2;

  void reserve(int32_t max_nodes);
  void clear() { nodes_.clear(); }
  int32_t size() const { return static_cast<int32_t>(nodes_.size()); }
  bool empty() const { return nodes_.empty(); }
  const DraftNode& operator[](int32_t node) const { return nodes_[static_cast<size_t>(node)]; }
  std::span<const DraftNode> nodes() const { return nodes_; }
  int32_t max_depth() const;

  // The child of `parent` with this token, or kNone.
  int32_t child(int32_t parent, int32_t token) const;

  // Adds a node and returns its index. If another drafter has proposed it already, it is theirs both and keeps its rank; its
  // acceptance is that of who saw the noise, or else the higher one.
  int32_t add(int32_t parent, int32_t token, float acceptance, int drafter, int rank, bool saw_noise = false);

  // REQUIRES: none of its siblings has the token.
  void set_token(int32_t node, int32_t token) { nodes_[static_cast<size_t>(node)].token = token; }
  void set_worth(int32_t node, float worth) { nodes_[static_cast<size_t>(node)].worth = worth; }

  // Keeps the nodes whose worth is above `least`, and of those equal to it the first `num_equal`; returns how many of these
  // there were. Indices change. What is below a node that goes, goes too.
  int32_t keep_best(float least, int32_t num_equal);

  // Keeps the first `size` nodes.
  void truncate(int32_t size) { nodes_.resize(static_cast<size_t>(size)); }

  // Reorders the nodes depth first, a node's children in the order they were added: each path's own nodes then lie in one run,
  // in which every node's parent is the node before it. Indices change.
  void order_by_path();
  // The end of the run that begins at node `begin`. REQUIRES: order_by_path() since the last add().
  int32_t run_end(int32_t begin) const;
  // The number of the run that holds `node`, counted from 0.
  int32_t run_of(int32_t node) const;

 private:
  std::vector<DraftNode> nodes_, scratch_;
  std::vector<int32_t> stack_, moved_;
};

}  // namespace otr
