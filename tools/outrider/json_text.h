// Writing JSON by hand where the output has millions of numbers.
//
// Thread safety: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>

namespace otr::cli {

// `text` quoted; what is not valid UTF-8 becomes U+FFFD.
std::string json_string(std::string_view text);

// `value` on one line or, with an indent, on several; likewise of its texts (a path need not be UTF-8).
std::string json_dump(const nlohmann::ordered_json& value, int indent = -1);

void append_json_array(std::string* out, std::span<const int32_t> values);

// Each number in the shortest form that reads back to the same float32; NaN and infinities are null.
void append_json_array(std::string* out, std::span<const float> values);

}  // namespace otr::cli
