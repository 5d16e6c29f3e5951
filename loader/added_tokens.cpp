#include "loader/added_tokens.h"

#include <algorithm>

namespace otr {
namespace {

// A token's byte at `depth` as a sort key; the end of a token comes before every byte.
int key_at(const AddedToken& token, size_t depth) {
  return depth < token.content.size() ? static_cast<uint8_t>(token.content[depth]) : -1;
}

}  // namespace

AddedTokenMatcher::AddedTokenMatcher(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
  std::sort(tokens_.begin(), tokens_.end(), [](const AddedToken& a, const AddedToken& b) { return a.content < b.content; });
  for (const AddedToken& token : tokens_) is_first_byte_[static_cast<uint8_t>(token.content[0])] = true;
}

const AddedToken* AddedTokenMatcher::longest_at(std::string_view text) const {
  const AddedToken* longest = nullptr;
  auto first = tokens_.begin(), last = tokens_.end();  // the tokens that agree with text[0, depth)
  for (size_t depth = 0; first != last; ++depth) {
    if (first->content.size() == depth) longest = &*first;
    if (depth == text.size()) break;
    const int byte = static_cast<uint8_t>(text[depth]);
    first = std::partition_point(first, last, [&](const AddedToken& t) { return key_at(t, depth) < byte; });
    last = std::partition_point(first, last, [&](const AddedToken& t) { return key_at(t, depth) == byte; });
  }
  return longest;
}

std::vector<AddedTokenMatcher::Part> AddedTokenMatcher::split(std::string_view text) const {
  std::vector<Part> parts;
  size_t plain = 0;  // where the plain text before `pos` begins
  const auto end_plain = [&](size_t pos) {
    if (pos > plain) parts.push_back({text.substr(plain, pos - plain), -1});
  };
  for (size_t pos = 0; pos < text.size();) {
    const bool may_start = is_first_byte_[static_cast<uint8_t>(text[pos])];
    const AddedToken* token = may_start ? longest_at(text.substr(pos)) : nullptr;
    if (!token) {
      ++pos;
      continue;
    }
    end_plain(pos);
    parts.push_back({text.substr(pos, token->content.size()), token->id});
    plain = pos += token->content.size();
  }
  end_plain(text.size());
  return parts;
}

}  // namespace otr
