#include "loader/utf8_text.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace otr {
namespace {

struct Step {
  size_t size;  // of one character, or of one maximal ill-formed part
  bool valid;
};

uint8_t byte_at(std::string_view s, size_t i) { return static_cast<uint8_t>(s[i]); }

// Table 3-7 of the Unicode standard. REQUIRES: pos < bytes.size()
Step step(std::string_view bytes, size_t pos) {
  const uint8_t lead = byte_at(bytes, pos);
  if (lead < 0x80) return {1, true};
  size_t size = 0;
  uint8_t low = 0x80, high = 0xbf;  // what the second byte may be
  if (lead >= 0xc2 && lead <= 0xdf) {
    size = 2;
  } else if ((lead & 0xf0) == 0xe0) {
    size = 3;
    if (lead == 0xe0) low = 0xa0;   // shorter forms exist
    if (lead == 0xed) high = 0x9f;  // surrogates
  } else if (lead >= 0xf0 && lead <= 0xf4) {
    size = 4;
    if (lead == 0xf0) low = 0x90;
    if (lead == 0xf4) high = 0x8f;  // above U+10FFFF
  } else {
    return {1, false};
  }
  for (size_t i = 1; i < size; ++i) {
    if (pos + i >= bytes.size()) return {i, false};
    const uint8_t next = byte_at(bytes, pos + i);
    if (next < low || next > high) return {i, false};
    low = 0x80;
    high = 0xbf;
  }
  return {size, true};
}

utf8proc_propval_t combining_class(int32_t code_point) { return utf8proc_get_property(code_point)->combining_class; }

// Canonical order: runs of marks sorted by class. utf8proc's own pass over a run is quadratic.
void sort_marks(std::vector<int32_t>& code_points) {
  const auto is_starter = [](int32_t c) { return combining_class(c) == 0; };
  auto run = code_points.begin();
  while ((run = std::find_if_not(run, code_points.end(), is_starter)) != code_points.end()) {
    const auto end = std::find_if(run, code_points.end(), is_starter);
    std::stable_sort(run, end, [](int32_t a, int32_t b) { return combining_class(a) < combining_class(b); });
    run = end;
  }
}

}  // namespace

std::optional<size_t> find_invalid_utf8(std::string_view bytes) {
  for (size_t pos = 0; pos < bytes.size();) {
    const Step s = step(bytes, pos);
    if (!s.valid) return pos;
    pos += s.size;
  }
  return std::nullopt;
}

std::string replace_invalid_utf8(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size());
  for (size_t pos = 0; pos < bytes.size();) {
    const Step s = step(bytes, pos);
    out += s.valid ? bytes.substr(pos, s.size) : std::string_view("\xef\xbf\xbd");
    pos += s.size;
  }
  return out;
}

char32_t next_code_point(std::string_view text, size_t& pos) {
  const uint8_t lead = byte_at(text, pos++);
  if (lead < 0x80) return lead;
  const int more = lead >= 0xf0 ? 3 : lead >= 0xe0 ? 2 : 1;
  char32_t code_point = lead & (0x3fu >> more);
  for (int i = 0; i < more; ++i) code_point = code_point << 6 | (byte_at(text, pos++) & 0x3fu);
  return code_point;
}

void append_utf8(char32_t code_point, std::string& out) {
  utf8proc_uint8_t buffer[4];
  const auto size = utf8proc_encode_char(static_cast<utf8proc_int32_t>(code_point), buffer);
  out.append(reinterpret_cast<const char*>(buffer), static_cast<size_t>(size));
}

std::string to_nfc(std::string_view text) {
  if (std::all_of(text.begin(), text.end(), [](char c) { return static_cast<signed char>(c) >= 0; })) return std::string(text);
  constexpr auto kOptions = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE);
  std::vector<int32_t> code_points;
  code_points.reserve(text.size());
  for (size_t pos = 0; pos < text.size();) {
    const auto c = static_cast<int32_t>(next_code_point(text, pos));
    utf8proc_int32_t parts[8];  // the longest canonical decomposition has 4
    int last_bound = 0;
    const auto count = utf8proc_decompose_char(c, parts, 8, kOptions, &last_bound);
    code_points.insert(code_points.end(), parts, parts + std::clamp<utf8proc_ssize_t>(count, 0, 8));
  }
  sort_marks(code_points);
  // utf8proc composes a Hangul syllable with U+11A7, which is no final consonant, and so drops it. Nothing composes with
  // U+11A7: what begins there is a text of its own.
  constexpr int32_t kBeforeFinals = 0x11a7;
  std::string out;
  out.reserve(text.size());
  for (auto begin = code_points.begin(); begin != code_points.end();) {
    const auto end = std::find(begin + 1, code_points.end(), kBeforeFinals);
    const auto count = utf8proc_normalize_utf32(&*begin, end - begin, kOptions);
    for (utf8proc_ssize_t i = 0; i < count; ++i) append_utf8(static_cast<char32_t>(begin[i]), out);
    begin = end;
  }
  return out;
}

}  // namespace otr
