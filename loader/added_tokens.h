// AddedTokenMatcher: finds a tokenizer's added tokens in text, leftmost first, the longest among those that start together.
//
// Thread safety: immutable once made.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace otr {

// Bounds the time of split: at every byte at most this many are looked at.
inline constexpr size_t kMaxAddedTokenBytes = 1024;

struct AddedToken {
  std::string content;  // not empty, at most kMaxAddedTokenBytes
  int32_t id = 0;
  bool special = false;
  bool normalized = false;  // looked for after normalisation, else before
};

class AddedTokenMatcher {
 public:
  struct Part {
    std::string_view text;
    int32_t id;  // of the added token, or -1: plain text
  };

  AddedTokenMatcher() = default;
  // REQUIRES: contents differ.
  explicit AddedTokenMatcher(std::vector<AddedToken> tokens);

  // Cuts `text` into its added tokens and the non-empty plain text between them.
  std::vector<Part> split(std::string_view text) const;

 private:
  const AddedToken* longest_at(std::string_view text) const;

  std::vector<AddedToken> tokens_;         // by content
  std::array<bool, 256> is_first_byte_{};  // of some token
};

}  // namespace otr
