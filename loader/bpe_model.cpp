#include "loader/bpe_model.h"

#include <algorithm>
#include <tuple>

namespace otr {
namespace {

constexpr uint32_t kNone = UINT32_MAX;

uint64_t pair_key(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

// The heap's top is the smallest (rank, position).
bool comes_later(const BpeModel::Workspace::Candidate& a, const BpeModel::Workspace::Candidate& b) {
  return std::tie(a.rank, a.left) > std::tie(b.rank, b.left);
}

}  // namespace

bool BpeModel::add_merge(int32_t left, int32_t right, int32_t merged) {
  return merges_.try_emplace(pair_key(left, right), Merge{static_cast<uint32_t>(merges_.size()), merged}).second;
}

const BpeModel::Merge* BpeModel::find(int32_t left, int32_t right) const {
  const auto at = merges_.find(pair_key(left, right));
  return at == merges_.end() ? nullptr : &at->second;
}

void BpeModel::push_candidate(Workspace& workspace, uint32_t left) const {
  const auto& symbol = workspace.symbols[left];
  if (symbol.next == kNone) return;
  const Merge* merge = find(symbol.id, workspace.symbols[symbol.next].id);
  if (!merge) return;
  workspace.heap.push_back({merge->rank, left, merge->merged});
  std::push_heap(workspace.heap.begin(), workspace.heap.end(), comes_later);
}

std::optional<uint8_t> BpeModel::encode(std::string_view piece, Workspace& workspace, std::vector<int32_t>& ids) const {
  auto& symbols = workspace.symbols;
  auto& heap = workspace.heap;
  symbols.clear();
  heap.clear();
  const auto size = static_cast<uint32_t>(piece.size());
  for (uint32_t i = 0; i < size; ++i) {
    const auto byte = static_cast<uint8_t>(piece[i]);
    if (byte_ids_[byte] < 0) return byte;
    symbols.push_back({byte_ids_[byte], i == 0 ? kNone : i - 1, i + 1 == size ? kNone : i + 1});
  }
  for (uint32_t i = 0; i + 1 < size; ++i) push_candidate(workspace, i);

  // A merge lives on in its left symbol; the right one gets id -1. Every merge removes a symbol and adds at most two
  // candidates, so at most 3n pass through the heap.
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), comes_later);
    const Workspace::Candidate top = heap.back();
    heap.pop_back();
    auto& left = symbols[top.left];
    if (left.id < 0 || left.next == kNone) continue;
    auto& right = symbols[left.next];
    // Either side may have changed since the candidate was pushed; it still holds if the pair merges into the same token.
    const Merge* merge = find(left.id, right.id);
    if (!merge || merge->merged != top.merged) continue;
    left.id = top.merged;
    left.next = right.next;
    right.id = -1;
    if (left.next != kNone) symbols[left.next].previous = top.left;
    if (left.previous != kNone) push_candidate(workspace, left.previous);
    push_candidate(workspace, top.left);
  }
  for (uint32_t i = size == 0 ? kNone : 0; i != kNone; i = symbols[i].next) ids.push_back(symbols[i].id);
  return std::nullopt;
}

}  // namespace otr
