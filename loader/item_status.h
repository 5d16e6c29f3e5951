// The loader's error messages: "<file>: <item>: <reason>", for contents that may be hostile.
//
// Thread safety: pure functions.
#pragma once

#include <string>
#include <string_view>

#include "kernels/base/status.h"

namespace otr {

// Text from a file, fit for one line of a message: cut at 120 bytes (between characters), control characters as '?'.
inline std::string printable(std::string_view text) {
  size_t size = text.size();
  if (size > 120) {
    for (size = 120; size > 0 && (text[size] & 0xc0) == 0x80;) --size;
  }
  std::string out(text.substr(0, size));
  for (char& c : out) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  }
  return text.size() > size ? out + "..." : out;
}

inline std::string in_quotes(std::string_view text) { return std::string("'").append(printable(text)).append("'"); }

inline std::string item_message(const std::string& file, std::string_view item, std::string_view reason) {
  return file + ": " + printable(item) + ": " + std::string(reason);
}

inline Status bad_item(const std::string& file, std::string_view item, std::string_view reason) {
  return bad_input(item_message(file, item, reason));
}

inline Status unsupported_item(const std::string& file, std::string_view item, std::string_view reason) {
  return unsupported(item_message(file, item, reason));
}

}  // namespace otr
