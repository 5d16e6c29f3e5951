// LayerGate: what a pass has to wait for, layer by layer: keys and values of earlier positions that are on their way while it
// runs.
//
// Thread safety: called by the thread that runs the pass, which holds nothing meanwhile. The wait is to be bounded.
#pragma once

#include <cstdint>

namespace otr {

class LayerGate {
 public:
  virtual ~LayerGate() = default;
  // Before the layer's keys and values are written, and its attention reads. On return what is to be there is there, or never
  // will be.
  virtual void before_layer(int32_t layer) = 0;
};

}  // namespace otr
