#include "spec/forest.h"

#include <algorithm>
#include <cassert>

namespace otr {

void Forest::reserve(int32_t max_nodes) {
  const size_t n = static_cast<size_t>(max_nodes);
  nodes_.reserve(n);
  scratch_.reserve(n);
  stack_.reserve(n);
  moved_.reserve(n);
}

int32_t Forest::max_depth() const {
  int32_t deepest = 0;
  for (const DraftNode& node : nodes_) deepest = std::max(deepest, node.depth);
  return deepest;
}

int32_t Forest::child(int32_t parent, int32_t token) const {
  for (int32_t i = parent + 1; i < size(); ++i) {
    if ((*this)[i].parent == parent && (*this)[i].token == token) return i;
  }
  return kNone;
}

int32_t Forest::add(int32_t parent, int32_t token, float acceptance, int drafter, int rank, bool saw_noise) {
  assert(parent >= kRoot && parent < size() && drafter >= 0 && drafter < kMaxDrafters);
  const uint16_t bit = static_cast<uint16_t>(1u << drafter);
  if (const int32_t known = child(parent, token); known != kNone) {
    DraftNode& node = nodes_[static_cast<size_t>(known)];
    node.drafters |= bit;
    if (node.saw_noise && !saw_noise) return known;
    const bool replaces = saw_noise && !node.saw_noise;
    node.acceptance = replaces ? acceptance : std::max(node.acceptance, acceptance);
    node.worth = node.acceptance >= 0.0f ? node.acceptance : 0.0f;
    node.saw_noise = saw_noise;
    return known;
  }
  const int32_t depth = parent == kRoot ? 1 : (*this)[parent].depth + 1;
  nodes_.push_back(
      {token, parent, depth, acceptance, acceptance >= 0.0f ? acceptance : 0.0f, bit, static_cast<uint16_t>(rank), saw_noise});
  return size() - 1;
}

int32_t Forest::keep_best(float least, int32_t num_equal) {
  moved_.assign(nodes_.size(), kNone);
  int32_t kept = 0, equal = 0;
  for (int32_t i = 0; i < size(); ++i) {
    DraftNode node = (*this)[i];
    const bool equals = node.worth == least;
    if (!(node.worth > least) && !(equals && equal < num_equal)) continue;
    if (node.parent != kRoot) {
      node.parent = moved_[static_cast<size_t>(node.parent)];
      if (node.parent == kNone) continue;  // it is as likely as its parent, and came too late as that did
    }
    equal += equals;
    moved_[static_cast<size_t>(i)] = kept;
    nodes_[static_cast<size_t>(kept++)] = node;
  }
  truncate(kept);
  return equal;
}

void Forest::order_by_path() {
  bool ordered = true;
  for (int32_t i = 0; i < size(); ++i) ordered = ordered && (*this)[i].parent == i - 1;
  if (ordered) return;  // a chain
  scratch_.clear();
  stack_.clear();
  moved_.assign(nodes_.size(), kRoot);
  const auto push_children = [this](int32_t parent) {  // the first child ends up on top
    for (int32_t i = size() - 1; i > parent; --i) {
      if ((*this)[i].parent == parent) stack_.push_back(i);
    }
  };
  push_children(kRoot);
  while (!stack_.empty()) {
    const int32_t node = stack_.back();
    stack_.pop_back();
    moved_[static_cast<size_t>(node)] = static_cast<int32_t>(scratch_.size());
    scratch_.push_back((*this)[node]);
    int32_t& parent = scratch_.back().parent;
    if (parent != kRoot) parent = moved_[static_cast<size_t>(parent)];
    push_children(node);
  }
  nodes_.swap(scratch_);
}

int32_t Forest::run_end(int32_t begin) const {
  int32_t end = begin + 1;
  while (end < size() && (*this)[end].parent == end - 1) ++end;
  return end;
}

int32_t Forest::run_of(int32_t node) const {
  int32_t run = 0;
  for (int32_t i = 1; i <= node; ++i) run += (*this)[i].parent != i - 1;
  return run;
}

}  // namespace otr
