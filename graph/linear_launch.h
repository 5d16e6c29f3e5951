// One matrix product of a forward pass, in 16 or in 4 bits.
#pragma once

#include "kernels/dispatch.h"

namespace otr {

struct LinearInput {
  const Element* x;  // [num_rows][x_stride], as linear.h asks
  int64_t x_stride;
};

// Of a product: `sums`, or `gated`.
struct LinearOutput {
  float* sums = nullptr;      // [num_rows][out_features]
  bool add_residual = false;  // what is in `sums`
  Element* gated = nullptr;   // [num_rows][gated_stride]
  int64_t gated_stride = 0;
};

// With `quantized` in the weight's place, if it is not null.
inline void launch_linear(const KernelTable& kernels, const LinearWeight& weight, const LinearW4Weight* quantized,
                          int32_t num_rows, const LinearInput& in, const LinearOutput& out, const LaunchContext& on) {
  const auto launch = [&]<typename Params>(const auto& w, void (*op)(const Params&, const LaunchContext&)) {
    op({.num_rows = num_rows,
        .weight = w,
        .x = in.x,
        .x_stride = in.x_stride,
        .residual = out.add_residual ? out.sums : nullptr,
        .out = out.sums,
        .out_stride = w.out_features,
        .gated = out.gated,
        .gated_stride = out.gated_stride},
       on);
  };
  if (quantized != nullptr) launch(*quantized, kernels.linear_w4);
  else launch(weight, kernels.linear);
}

}  // namespace otr
