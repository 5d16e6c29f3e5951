// What the cases of linear and linear_w4 share: activations, bias, residual and output of one projection.
#pragma once

#include <cstring>
#include <vector>

#include "bench/random_arena.h"
#include "bench/shapes.h"
#include "loader/xxh64.h"
#include "memory/buffer.h"

namespace otr::bench {

static_assert(sizeof(Element) == 2, "the suite measures bf16");

struct ProjectionOperands {
  Projection projection;
  int rows;
  int64_t x_stride;
  Buffer<Element> x;
  Buffer<float> out;
  Buffer<Element> gated;  // instead of `out`
  std::vector<float> biases, residuals;

  // REQUIRES: in_features is a multiple of 128, as it is of every model: rows need no padding, groups no tail.
  ProjectionOperands(RandomArena& arena, const Projection& p, int num_rows) : projection(p), rows(num_rows) {
    const int64_t inputs = int64_t{rows} * p.in_features, outputs = int64_t{rows} * p.out_features;
    x_stride = linear_row_stride(p.in_features);
    x = make_buffer<Element>(rows * x_stride, "activations");
    if (p.gated) gated = make_buffer<Element>(outputs / 2, "outputs");
    out = make_buffer<float>(p.gated ? 0 : outputs, "outputs");
    const Element* from = arena.elements(inputs + 777) + 777;  // not the first weights
    for (int64_t r = 0; r < rows; ++r)
      std::memcpy(x.data() + r * x_stride, from + r * p.in_features, p.in_features * sizeof(Element));
    if (p.bias) biases.assign(arena.floats(p.out_features), arena.floats(p.out_features) + p.out_features);
    if (p.residual) residuals.assign(arena.floats(outputs), arena.floats(outputs) + outputs);
  }

  const float* bias() const { return biases.empty() ? nullptr : biases.data(); }
  const float* residual() const { return residuals.empty() ? nullptr : residuals.data(); }
  double activation_bytes() const {
    return static_cast<double>(int64_t{rows} * projection.in_features * sizeof(Element) + out.bytes() + gated.bytes() +
                               (biases.size() + residuals.size()) * sizeof(float));
  }
  void spoil() {
    if (projection.gated) std::memset(static_cast<void*>(gated.data()), 0xff, gated.bytes());
    if (!projection.gated) std::memset(static_cast<void*>(out.data()), 0xff, out.bytes());
  }
  uint64_t hash() const { return projection.gated ? xxh64(gated.data(), gated.bytes()) : xxh64(out.data(), out.bytes()); }
};

}  // namespace otr::bench
