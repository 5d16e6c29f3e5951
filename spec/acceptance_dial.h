// AcceptanceDial: makes drafters worse, so that engines can be seen with drafters of any acceptance: of the tokens that a model
// proposes first, or of all that a tick drafts, a share is replaced by another token, which the target will hardly draw.
//
// Which ones follows from the request's noise and the position alone, so that runs can be repeated. The share that is left
// alone differs from request to request: normal, cut at 0 and 1. A drafter's own errors come on top.
//
// Thread safety: values.
#pragma once

#include <cstdint>

#include "kernels/base/noise.h"
#include "spec/forest.h"

namespace otr {

struct AcceptanceDial {
  double keep = 1, deviation = 0;  // of the tokens, the share that stays as it is: mean and deviation over requests
  uint32_t salt = 0;               // drafters with different ones err at different places

  bool on() const { return keep < 1 || deviation > 0; }
  // Of a request, in [0, 1].
  double share(const NoiseStream& request) const;
  bool spoils(const NoiseStream& request, int32_t position) const;
  // Every node of the draft that comes at `position`, the root's children there. REQUIRES: vocab_size > twice the forest's
  // size.
  void spoil(const NoiseStream& request, int32_t position, int32_t vocab_size, Forest* forest) const;
};

}  // namespace otr
