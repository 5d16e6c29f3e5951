// A case of linear or linear_w4.
#pragma once

#include <functional>
#include <memory>

#include "bench/projection_operands.h"
#include "bench/projection_verify.h"
#include "bench/suite.h"

namespace otr::bench {

// A product by kOp of the kernel table. `copies` weights of `stride` entries each lie at `weights` and are rotated; activations
// are resident, as they are in a forward pass. `weight`, `x`: as ProductReference has them.
template <auto kOp, typename Params, typename Packed>
Work projection_work(Suite& suite, const Projection& p, int rows, const Packed* weights, int64_t stride, int64_t copies,
                     std::function<void(int64_t n, double* to)> weight,
                     std::function<void(const Element* row, int64_t k, double* to)> x) {
  auto operands = std::make_shared<ProjectionOperands>(suite.arena(), p, rows);
  const auto launch = [&suite, operands](const Packed* packed, float* out, Element* gated) {
    const ProjectionOperands& o = *operands;
    const Projection& q = o.projection;
    (suite.kernels().*kOp)(Params{o.rows,
                                  {q.in_features, q.out_features, packed, o.bias()},
                                  o.x.data(),
                                  o.x_stride,
                                  o.residual(),
                                  out,
                                  q.out_features,
                                  gated,
                                  q.out_features / 2},
                           suite.pool());
  };
  const ProductReference reference{std::move(weight), std::move(x), [=](float* out) { launch(weights, out, nullptr); }};
  Work work;
  work.cached_bytes = operands->activation_bytes();
  work.bytes = static_cast<double>(stride) * sizeof(Packed) + work.cached_bytes;
  work.flops = 2.0 * rows * p.in_features * p.out_features;
  work.run = [=](int64_t call) {
    launch(weights + call % copies * stride, operands->out.data(),
           operands->projection.gated ? operands->gated.data() : nullptr);
  };
  work.spoil = [operands] { operands->spoil(); };
  work.hash = [operands] { return operands->hash(); };
  work.verify = [=, &suite] { return verify_projection(*operands, reference, suite.pool()); };
  return work;
}

}  // namespace otr::bench
