// UTF-8 text for the tokenizer: checking, repairing, NFC.
//
// Thread safety: pure functions.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace otr {

// The offset of the first byte that is not part of well-formed UTF-8 (no surrogates, no overlong forms), if there is one.
std::optional<size_t> find_invalid_utf8(std::string_view bytes);

// The text with U+FFFD for every maximal part that is not well-formed, as Unicode recommends and Python's errors="replace"
// does.
std::string replace_invalid_utf8(std::string_view bytes);

// Reads the code point at `pos` and moves past it. REQUIRES: well-formed text, pos < text.size().
char32_t next_code_point(std::string_view text, size_t& pos);

void append_utf8(char32_t code_point, std::string& out);

// Normalization form C. O(n log n), also for hostile runs of combining marks. REQUIRES: well-formed text.
std::string to_nfc(std::string_view text);

}  // namespace otr
