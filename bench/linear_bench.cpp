// linear: the projections of every model.
#include "bench/projection_work.h"
#include "bench/suite.h"

namespace otr::bench {
namespace {

Work make_linear(Suite& suite, const Projection& p, int rows) {
  const int64_t elements = linear_packed_elements(p.out_features, p.in_features);
  const int64_t copies = copies_in_rotation(elements * static_cast<int64_t>(sizeof(Element)));
  const Element* weights = suite.arena().elements(elements * copies);
  return projection_work<&KernelTable::linear, LinearParams>(
      suite, p, rows, weights, elements, copies,
      [weights, num = p.in_features](int64_t n, double* to) {
        for (int64_t k = 0; k < num; ++k) to[k] = double{to_float(weights[linear_packed_index(n, k, num)])};
      },
      [](const Element* row, int64_t num, double* to) {
        for (int64_t k = 0; k < num; ++k) to[k] = double{to_float(row[k])};
      });
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
