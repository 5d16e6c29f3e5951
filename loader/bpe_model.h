// BpeModel: byte pair merging of one piece of text, in O(n log n) for a piece of n bytes.
//
// Of all neighbouring pairs that have a merge, the one of the lowest rank goes first, leftmost among equals.
// Thread safety: immutable once filled; encode may be called from any number of threads, each with its own Workspace.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace otr {

class BpeModel {
 public:
  // Buffers of encode, kept between calls.
  struct Workspace {
    struct Symbol {
      int32_t id;
      uint32_t previous, next;
    };
    struct Candidate {
      uint32_t rank, left;
      int32_t merged;
    };
    std::vector<Symbol> symbols;
    std::vector<Candidate> heap;
  };

  BpeModel() { byte_ids_.fill(-1); }

  void set_byte(uint8_t byte, int32_t id) { byte_ids_[byte] = id; }

  // Ranks ascend from call to call. False if the pair already has a merge.
  bool add_merge(int32_t left, int32_t right, int32_t merged);

  // Appends the ids of `piece`; or returns a byte that no token stands for. REQUIRES: piece.size() < 2^32 - 1.
  std::optional<uint8_t> encode(std::string_view piece, Workspace& workspace, std::vector<int32_t>& ids) const;

 private:
  struct Merge {
    uint32_t rank;
    int32_t merged;
  };
  struct PairHash {
    size_t operator()(uint64_t pair) const {
      pair = (pair ^ pair >> 31) * 0x9e3779b97f4a7c15u;
      return static_cast<size_t>(pair ^ pair >> 29);
    }
  };

  const Merge* find(int32_t left, int32_t right) const;
  void push_candidate(Workspace& workspace, uint32_t left) const;

  std::array<int32_t, 256> byte_ids_;
  std::unordered_map<uint64_t, Merge, PairHash> merges_;
};

}  // namespace otr
