// How the products of linear and linear_w4 are verified.
//
//   all outputs   a row's outputs, added up with random signs, against the row times the sum of the weight's rows with these
//                 signs, in float64: one pass over the weight whatever the number of rows. One output is found wherever it is if
//                 it is off by sqrt(out_features) times what it may be.
//   some outputs  one in each row and in each block of 32, each against float64.
//   gated ones    a second call writes gates and ups themselves, for the pass over all; every gated output must be what these
//                 give.
//
// Thread safety: none; the pool's threads call `weight`.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "bench/projection_operands.h"

namespace otr::bench {

// The definition's operands in float64, a row of in_features at a time, and the product itself.
struct ProductReference {
  std::function<void(int64_t n, double* to)> weight;                 // of the first copy
  std::function<void(const Element* row, int64_t k, double* to)> x;  // what the op takes a row of x for
  std::function<void(float* out)> plain;                             // with its outputs, gates and ups in turns, in `out`
};

// After a call with the first copy of the weight: "", or what is wrong.
std::string verify_projection(const ProjectionOperands& operands, const ProductReference& reference, ThreadPool& pool);

}  // namespace otr::bench
