#include "runtime/drafter_model.h"

#include <algorithm>
#include <array>

#include "spec/policy.h"

namespace otr {
namespace {

constexpr std::array<std::string_view, 3> kBuiltIn = {"ngram", "history", "self"};

bool is_built_in(std::string_view name) { return std::find(kBuiltIn.begin(), kBuiltIn.end(), name) != kBuiltIn.end(); }

}  // namespace

Result<DrafterModel> parse_drafter_model(std::string_view text) {
  constexpr std::string_view kModel = "model:", kW4 = "w4:", kExpected = "expected NAME=model:PATH or NAME=w4:PATH";
  const size_t equals = text.find('=');
  const auto fail = [text](const std::string& reason) {
    return invalid_argument("drafter '" + std::string(text) + "': " + reason);
  };
  if (equals == std::string_view::npos) return fail(std::string(kExpected));
  const std::string_view name = text.substr(0, equals), rest = text.substr(equals + 1);
  if (!is_drafter_name(name)) return fail("a name has letters, digits, '_', '-' and '.'");
  if (is_built_in(name)) return fail("the name '" + std::string(name) + "' is taken by a drafter that is always there");
  const bool in_4_bits = rest.starts_with(kW4);
  const size_t kind = in_4_bits ? kW4.size() : kModel.size();
  if ((!in_4_bits && !rest.starts_with(kModel)) || rest.size() == kind) return fail(std::string(kExpected));
  return DrafterModel{std::string(name), std::string(rest.substr(kind)), in_4_bits};
}

}  // namespace otr
