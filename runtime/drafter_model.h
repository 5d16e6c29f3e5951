// DrafterModel: a drafter that is a smaller checkpoint with the target's vocabulary, as a user names it.
//
//   NAME=model:PATH   the checkpoint as it is
//   NAME=w4:PATH      in 4 bits, lm_head included: what a level costs is mostly reading weights, while samples are few, and nothing
//                     but acceptance depends on a drafter's arithmetic
//
// Thread safety: values.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "kernels/base/status.h"
#include "runtime/model_runner.h"

namespace otr {

struct DrafterModel {
  std::string name;
  std::string path;
  bool in_4_bits = false;
  std::optional<SharedModel> shared = {};  // instead of loading it: another process' model
};

// What those of the models that `drafters` names need beside the target: pages once a mention, weights once. Errors:
// open_model's.
Result<RoomBeside> room_beside(std::span<const DrafterModel> models, std::span<const std::string> drafters);

// kInvalidArgument for anything else than the two forms, and for the names that are always there.
Result<DrafterModel> parse_drafter_model(std::string_view text);

}  // namespace otr
