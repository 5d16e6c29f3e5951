// One line of JSONL, parsed strictly: an object, valid UTF-8 without a byte order mark, no key twice, limited nesting and size.
//
// Throws BadLine with the reason.
#pragma once

#include <nlohmann/json.hpp>
#include <string_view>

namespace otr::cli {

inline constexpr int kMaxLineDepth = 32;
inline constexpr int kMaxLineValues = 4'000'000;  // bounds the memory of a parsed line

nlohmann::json parse_json_line(std::string_view text);

}  // namespace otr::cli
