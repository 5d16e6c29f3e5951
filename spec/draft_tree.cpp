#include "spec/draft_tree.h"

#include <algorithm>
#include <functional>

namespace otr {

void DraftTree::reserve(int32_t max_nodes, int32_t top_k) {
  const size_t most = 1 + static_cast<size_t>(max_nodes) * static_cast<size_t>(top_k + 1) * 2;
  nodes_.reserve(most);
  sorted_.reserve(most);
  exported_.reserve(most);
  frontier_.reserve(static_cast<size_t>(max_nodes) + 1);
}

void DraftTree::reset(int32_t max_nodes) {
  max_nodes_ = max_nodes;
  nodes_.clear();
  nodes_.push_back(
      {.token = -1, .parent = -1, .depth = 0, .acceptance = 1.0f, .rank = 0, .path = -1, .first_child = 0, .num_children = 0});
  frontier_.assign(1, kRoot);
  level_begin_ = 1;
}

void DraftTree::tokens_to(int32_t node, std::vector<int32_t>* tokens) const {
  tokens->resize(static_cast<size_t>((*this)[node].depth));
  for (; node != kRoot; node = (*this)[node].parent)
    (*tokens)[static_cast<size_t>((*this)[node].depth - 1)] = (*this)[node].token;
}

void DraftTree::add_children(int32_t node, std::span<const int32_t> tokens, std::span<const float> pi) {
  const int32_t first = size(), depth = (*this)[node].depth + 1;
  const float before = (*this)[node].acceptance;
  for (size_t i = 0; i < tokens.size(); ++i) {
    nodes_.push_back({.token = tokens[i],
                      .parent = node,
                      .depth = depth,
                      .acceptance = before * std::min(pi[i], 1.0f),
                      .rank = static_cast<int32_t>(i),
                      .path = -1,
                      .first_child = 0,
                      .num_children = 0});
  }
  nodes_[static_cast<size_t>(node)].first_child = first;
  nodes_[static_cast<size_t>(node)].num_children = static_cast<int32_t>(tokens.size());
}

// Calls `take(node)` for each of the best max_nodes nodes, by age. Of equal A the older come first, and so parents.
template <typename Take>
void DraftTree::each_of_the_best(const Take& take) {
  float least = -1.0f;
  int32_t left_at_least = 0;
  if (size() - 1 > max_nodes_) {
    sorted_.clear();
    for (int32_t i = 1; i < size(); ++i) sorted_.push_back((*this)[i].acceptance);
    const auto last = sorted_.begin() + max_nodes_ - 1;
    std::nth_element(sorted_.begin(), last, sorted_.end(), std::greater<>());
    least = *last;
    left_at_least = max_nodes_;
    for (int32_t i = 1; i < size(); ++i) left_at_least -= (*this)[i].acceptance > least;
  }
  for (int32_t i = 1; i < size(); ++i) {
    const float a = (*this)[i].acceptance;
    if (a > least || (a == least && left_at_least-- > 0)) take(i);
  }
}

void DraftTree::choose_next() {
  frontier_.clear();
  each_of_the_best([this](int32_t node) {
    if (node >= level_begin_) frontier_.push_back(node);
  });
  level_begin_ = size();
}

void DraftTree::export_to(Forest* forest, int drafter) {
  exported_.assign(nodes_.size(), Forest::kNone);
  exported_[kRoot] = Forest::kRoot;
  each_of_the_best([&](int32_t i) {
    const Node& node = (*this)[i];
    exported_[static_cast<size_t>(i)] = forest->add(exported_[static_cast<size_t>(node.parent)], node.token, node.acceptance,
                                                    drafter, node.rank, /*saw_noise=*/true);
  });
}

}  // namespace otr
