#include "loader/byte_level.h"

#include <array>

#include "loader/utf8_text.h"

namespace otr {
namespace {

constexpr bool spells_itself(int byte) { return (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte != 0xad); }

constexpr int kNumMoved = 68;  // bytes spelled from U+0100 on

struct Tables {
  std::array<char32_t, 256> code_point{};
  std::array<int16_t, 256 + kNumMoved> byte{};  // by code point; -1: spells none
};

constexpr Tables make_tables() {
  Tables t;
  t.byte.fill(-1);
  char32_t next = 0x100;
  for (int b = 0; b < 256; ++b) {
    const char32_t c = spells_itself(b) ? static_cast<char32_t>(b) : next++;
    t.code_point[static_cast<size_t>(b)] = c;
    t.byte[c] = static_cast<int16_t>(b);
  }
  return t;
}

constexpr Tables kTables = make_tables();

}  // namespace

std::string byte_level_spelling(std::string_view bytes) {
  std::string out;
  for (const char c : bytes) append_utf8(kTables.code_point[static_cast<uint8_t>(c)], out);
  return out;
}

std::optional<std::string> byte_level_bytes(std::string_view text) {
  std::string out;
  for (size_t pos = 0; pos < text.size();) {
    const char32_t c = next_code_point(text, pos);
    if (c >= kTables.byte.size() || kTables.byte[c] < 0) return std::nullopt;
    out += static_cast<char>(kTables.byte[c]);
  }
  return out;
}

}  // namespace otr
