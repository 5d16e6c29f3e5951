// linear: the projections of every model. Weights are rotated; activations are resident, as they are in a forward pass.
#include <algorithm>
#include <cstring>

#include "bench/projection_operands.h"
#include "bench/suite.h"

namespace otr::bench {
namespace {

Work make_linear(Suite& suite, const Projection& p, int rows) {
  auto operands = std::make_shared<ProjectionOperands>(suite.arena(), p, rows);
  const int64_t elements = linear_packed_elements(p.out_features, p.in_features);
  const int64_t weight_bytes = elements * static_cast<int64_t>(sizeof(Element)), copies = copies_in_rotation(weight_bytes);
  const Element* weights = suite.arena().elements(elements * copies);

  Work work;
  work.bytes = static_cast<double>(weight_bytes) + operands->activation_bytes();
  work.flops = 2.0 * rows * p.in_features * p.out_features;
  work.run = [&suite, operands, weights, elements, copies](int64_t call) {
    ProjectionOperands& o = *operands;
    const Projection& q = o.projection;
    suite.kernels().linear({o.rows,
                            {q.in_features, q.out_features, weights + call % copies * elements, o.bias()},
                            o.x.data(),
                            q.in_features,
                            o.residual(),
                            o.out.data(),
                            q.out_features,
                            o.projection.gated ? o.gated.data() : nullptr,
                            q.out_features / 2},
                           suite.pool());
  };
  work.verify = [operands, weights] {
    const int64_t k = operands->projection.in_features;
    return operands->verify([&](int64_t n, int64_t i) -> double { return to_float(weights[linear_packed_index(n, i, k)]); });
  };
  work.hash = [operands] { return operands->hash(); };
  return work;
}

}  // namespace

void add_linear_cases(Suite& suite) {
  for (const ModelShape& m : kModels) {
    for (int i = 0; i < kNumProjections; ++i) {
      const Projection p = projection(m, i);
      for (const int rows : kLinearRows) {
        if (p.out_features == m.vocab_size && rows > kMaxLmHeadRows) continue;
        suite.add(std::string("linear/") + m.name + "/" + p.name + "/rows:" + std::to_string(rows),
                  [&suite, p, rows] { return make_linear(suite, p, rows); });
      }
    }
  }
}

}  // namespace otr::bench
