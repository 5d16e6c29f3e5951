// What the cases of linear and linear_w4 share: activations, bias, residual and output of one projection, the comparison of
// sampled outputs with float64, and the case itself.
#pragma once

#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "bench/comparison.h"
#include "bench/random_arena.h"
#include "bench/shapes.h"
#include "bench/suite.h"
#include "loader/xxh64.h"

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
    x = std::move(Buffer<Element>::create(rows * x_stride, "activations").value());
    if (p.gated) {
      gated = std::move(Buffer<Element>::create(outputs / 2, "outputs").value());
      std::memset(static_cast<void*>(gated.data()), 0, gated.bytes());
    }
    out = std::move(Buffer<float>::create(p.gated ? 0 : outputs, "outputs").value());
    const Element* from = arena.elements(inputs + 777) + 777;  // not the first weights
    for (int64_t r = 0; r < rows; ++r)
      std::memcpy(x.data() + r * x_stride, from + r * p.in_features, p.in_features * sizeof(Element));
    std::memset(static_cast<void*>(out.data()), 0, out.bytes());
    if (p.bias) biases.assign(arena.floats(p.out_features), arena.floats(p.out_features) + p.out_features);
    if (p.residual) residuals.assign(arena.floats(outputs), arena.floats(outputs) + outputs);
  }

  const float* bias() const { return biases.empty() ? nullptr : biases.data(); }
  const float* residual() const { return residuals.empty() ? nullptr : residuals.data(); }
  double activation_bytes() const {
    return static_cast<double>(int64_t{rows} * projection.in_features * sizeof(Element) + out.bytes() + gated.bytes() +
                               (biases.size() + residuals.size()) * sizeof(float));
  }
  uint64_t hash() const { return projection.gated ? xxh64(gated.data(), gated.bytes()) : xxh64(out.data(), out.bytes()); }

  // 64 outputs, of which the last is the last one. weight(n, k): in float64; input(row, k): what the op takes it for.
  template <typename Weight, typename Input>
  std::string verify(const Weight& weight, const Input& input) const {
    Places places;
    Comparison comparison;
    const int64_t width = projection.gated ? projection.out_features / 2 : projection.out_features;
    for (int i = 0; i < 64; ++i) {
      const int64_t r = i == 63 ? rows - 1 : places.below(rows), n = i == 63 ? width - 1 : places.below(width),
                    at = r * width + n;
      if (projection.gated) {
        const Sum g = sum(weight, input, r, n / 16 * 32 + n % 16);
        const Sum u = sum(weight, input, r, n / 16 * 32 + 16 + n % 16);
        const double silu = g.value / (1.0 + std::exp(-g.value)), expected = silu * u.value;
        comparison.expect(at, to_float(gated.data()[at]), expected,  // silu's slope is at most 1.1
                          1.1 * g.tolerance * (std::fabs(u.value) + u.tolerance) + std::fabs(silu) * u.tolerance +
                              (kBf16Rounding + 4 * 0x1p-24) * std::fabs(expected));
      } else {
        const Sum y = sum(weight, input, r, n);
        comparison.expect(at, out.data()[at], y.value, y.tolerance);
      }
    }
    return comparison.verdict();
  }

 private:
  struct Sum {
    double value, tolerance;
  };

  template <typename Weight, typename Input>
  Sum sum(const Weight& weight, const Input& input, int64_t r, int64_t n) const {
    double sum = 0, squares = 0;
    const Element* row = x.data() + r * x_stride;
    for (int64_t k = 0; k < projection.in_features; ++k) {
      const double term = input(row, k) * weight(n, k);
      sum += term;
      squares += term * term;
    }
    double ends = std::fabs(sum);
    for (const double extra :
         {bias() ? double{bias()[n]} : 0.0, residual() ? double{residual()[r * projection.out_features + n]} : 0.0}) {
      sum += extra;
      ends += std::fabs(extra);
    }
    return {sum, sum_tolerance(projection.in_features, squares, ends)};
  }
};

// A product by kOp of the kernel table. `copies` weights of `stride` entries each lie at `weights` and are rotated; activations
// are resident, as they are in a forward pass. value(n, k): the first weight in float64; input: as verify() has it.
template <auto kOp, typename Params, typename Packed, typename Value, typename Input>
Work projection_work(Suite& suite, const Projection& p, int rows, const Packed* weights, int64_t stride, int64_t copies,
                     const Value& value, const Input& input) {
  auto operands = std::make_shared<ProjectionOperands>(suite.arena(), p, rows);
  Work work;
  work.bytes = static_cast<double>(stride) * sizeof(Packed) + operands->activation_bytes();
  work.flops = 2.0 * rows * p.in_features * p.out_features;
  work.run = [&suite, operands, weights, stride, copies](int64_t call) {
    ProjectionOperands& o = *operands;
    const Projection& q = o.projection;
    (suite.kernels().*kOp)(Params{o.rows,
                                  {q.in_features, q.out_features, weights + call % copies * stride, o.bias()},
                                  o.x.data(),
                                  o.x_stride,
                                  o.residual(),
                                  o.out.data(),
                                  q.out_features,
                                  q.gated ? o.gated.data() : nullptr,
                                  q.out_features / 2},
                           suite.pool());
  };
  work.verify = [operands, value, input] { return operands->verify(value, input); };
  work.hash = [operands] { return operands->hash(); };
  return work;
}

}  // namespace otr::bench
