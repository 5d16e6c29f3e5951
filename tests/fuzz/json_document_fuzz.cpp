// JsonDocument: whatever it accepts, nlohmann's own tree reads the same way.
#include <nlohmann/json.hpp>

#include "loader/json_document.h"
#include "tests/fuzz/fuzz_target.h"

namespace otr::fuzz {
namespace {

using nlohmann::json;

bool equal(JsonValue value, const json& reference) {
  switch (value.kind()) {
    case JsonKind::kNull: return reference.is_null();
    case JsonKind::kBool: return reference == value.as_bool();
    case JsonKind::kInt:
    case JsonKind::kUint:
      if (!value.as_int()) return reference.is_number_unsigned() && value.as_double() == reference.get<double>();
      return reference.is_number_integer() && reference == *value.as_int();
    case JsonKind::kDouble: return reference.is_number_float() && value.as_double() == reference.get<double>();
    case JsonKind::kString: return reference == std::string(value.as_string());
    default: break;
  }
  if (value.is(JsonKind::kArray) ? !reference.is_array() : !reference.is_object()) return false;
  uint32_t count = 0;
  for (JsonValue child = value.first(); child; child = child.next(), ++count) {
    if (count >= reference.size()) return false;
    const std::string key(child.key());
    if (value.is(JsonKind::kArray) ? !equal(child, reference[count])
                                   : !reference.contains(key) || !equal(child, reference[key])) {
      return false;
    }
  }
  return count == value.size() && count == reference.size();
}

}  // namespace
}  // namespace otr::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace otr::fuzz;
  const std::string_view text = as_text(data, size);
  const auto document = otr::JsonDocument::parse("f.json", text);
  if (!document.ok()) return require_reason(document.status(), "f.json: JSON: "), 0;
  const json reference = json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  require(!reference.is_discarded(), "only JSON is accepted");
  require(equal(document.value().root(), reference), "the tree is the text's");
  return 0;
}
