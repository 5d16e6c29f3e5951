// NgramIndex: where the last few tokens of a sequence have occurred before, in a set of token streams that grow at their ends.
//
// Every position with kMinMatch tokens before it is entered in a hash table under these tokens, and linked to the entry before
// it with the same ones. A lookup walks that chain, newest first, and prefers the longest match, up to kMaxMatch tokens.
// Appending is constant time, a lookup visits at most kMaxVisits entries; 4 bytes a token, 12 an entry and at most 16 of the
// table.
//
// Single-threaded. Memory grows by doubling.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace otr {

class NgramIndex {
 public:
  static constexpr int32_t kMaxMatch = 7;
  static constexpr int32_t kMaxVisits = 32;

  // `min_match`: tokens that must agree, 1 … kMaxMatch.
  explicit NgramIndex(int32_t min_match) : min_match_(min_match) {}

  // A new stream. The last kMaxMatch tokens of `context` precede it: they count as agreeing tokens, but are found in no lookup.
  int32_t add_stream(std::span<const int32_t> context);
  void append(int32_t stream, int32_t token);

  // The token at `position` of `stream` follows a match of `length` tokens.
  struct Match {
    int32_t stream = 0;
    int32_t position = 0;
    int32_t length = 0;  // 0: there is none
  };
  // The longest match of the end of `tokens`, the newest among equals. What has no successor is no match.
  Match find(std::span<const int32_t> tokens) const;

  std::span<const int32_t> stream(int32_t number) const { return streams_[static_cast<size_t>(number)]; }

 private:
  static constexpr int32_t kNone = -1;
  struct Entry {
    int32_t stream, position;  // of the token after the match
    int32_t previous;          // entry with the same hash slot before this one, or kNone
  };
  size_t slot_of(const int32_t* end) const;
  void enter(int32_t stream, int32_t position);
  void grow_table();

  const int32_t min_match_;
  std::vector<std::vector<int32_t>> streams_;
  std::vector<Entry> entries_;
  std::vector<int32_t> table_;  // newest entry of a slot; a power of two of them
};

}  // namespace otr
