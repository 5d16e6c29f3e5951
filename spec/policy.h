// Policy: what chooses the strategy of a tick. "off" is plain decoding, one token a row and tick.
//
// Thread safety: values.
#pragma once

#include <string_view>

#include "kernels/base/status.h"

namespace otr {

enum class PolicyKind { kOff };

struct Policy {
  PolicyKind kind = PolicyKind::kOff;
};

// Grammar: "off". Anything else is kInvalidArgument.
Result<Policy> parse_policy(std::string_view text);

}  // namespace otr
