#include "tools/outrider/json_text.h"

#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

namespace otr::cli {
namespace {

void append_value(std::string* out, int32_t value) {
  char digits[16];
  out->append(digits, std::to_chars(digits, digits + sizeof digits, value).ptr);
}

void append_value(std::string* out, float value) {
  char digits[32];
  if (std::isfinite(value)) {
    out->append(digits, std::to_chars(digits, digits + sizeof digits, value).ptr);
  } else {
    out->append("null");
  }
}

template <typename T>
void append_array(std::string* out, std::span<const T> values) {
  out->push_back('[');
  for (size_t i = 0; i < values.size(); ++i) {
    if (i > 0) out->push_back(',');
    append_value(out, values[i]);
  }
  out->push_back(']');
}

}  // namespace

std::string json_string(std::string_view text) { return json_dump(std::string(text)); }

std::string json_dump(const nlohmann::ordered_json& value, int indent) {
  return value.dump(indent, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

void append_json_array(std::string* out, std::span<const int32_t> values) { append_array(out, values); }
void append_json_array(std::string* out, std::span<const float> values) { append_array(out, values); }

}  // namespace otr::cli
