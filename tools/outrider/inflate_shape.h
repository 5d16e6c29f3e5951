// The shapes that `outrider inflate` takes: by the name of a model, or size by size.
//
// Thread safety: pure functions.
#pragma once

#include <string>

#include "loader/inflate_plan.h"

namespace otr::cli {

// The shape of a Qwen2.5 model by its name in --like. Throws Failure (usage) for others.
InflateShape named_shape(const std::string& name);
// "hidden=896,intermediate=…,layers=…,heads=…,kv_heads=…,head_dim=…,vocab=…[,tied=0|1]", in any order. Throws Failure (usage).
InflateShape parse_shape(const std::string& text);

}  // namespace otr::cli
