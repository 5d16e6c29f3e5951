#include "spec/policy.h"

#include <string>

namespace otr {

Result<Policy> parse_policy(std::string_view text) {
  if (text == "off") return Policy{};
  return invalid_argument("unknown policy '" + std::string(text) + "': expected off");
}

}  // namespace otr
