// Byte level: the spelling of bytes as printable characters that byte-level vocabularies use (GPT-2's table).
//
// Bytes that print in Latin-1 stand for themselves; the other 68 are U+0100, U+0101, ... in ascending order.
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace otr {

// The UTF-8 text that spells `bytes`.
std::string byte_level_spelling(std::string_view bytes);

// The bytes that `text` spells; nothing where a character spells no byte. REQUIRES: well-formed UTF-8.
std::optional<std::string> byte_level_bytes(std::string_view text);

}  // namespace otr
