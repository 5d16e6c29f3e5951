// Four floats side by side, for the portable path: operations are those of each, rounded one by one, whatever vectors the
// machine has.
#pragma once

namespace otr {

using Four = float __attribute__((vector_size(16)));

}  // namespace otr
