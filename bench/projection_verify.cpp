#include "bench/projection_verify.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "bench/comparison.h"

namespace otr::bench {
namespace {

struct Sum {
  double value, tolerance;
};

class Verifier {
 public:
  Verifier(const ProjectionOperands& operands, const ProductReference& reference, ThreadPool& pool)
      : o_(operands),
        reference_(reference),
        pool_(pool),
        features_(o_.projection.out_features),
        x_(static_cast<size_t>(o_.projection.in_features)),
        w_(x_.size()) {}

  std::string verify() {
    verify_some();
    if (!o_.projection.gated) {
      verify_all(o_.out.data());
    } else {
      Buffer<float> turns = make_buffer<float>(o_.rows * features_, "gates and ups");
      reference_.plain(turns.data());
      verify_all(turns.data());
      verify_gated(turns.data());
    }
    return comparison_.verdict();
  }

 private:
  void take_row(int64_t r) {
    if (r != row_) reference_.x(o_.x.data() + r * o_.x_stride, o_.projection.in_features, x_.data());
    row_ = r;
  }

  // Bias and residual; their sizes are added to *size.
  double extras(int64_t n, double* size) const {
    const double bias = o_.bias() ? double{o_.bias()[n]} : 0,
                 residual = o_.residual() ? double{o_.residual()[row_ * features_ + n]} : 0;
    *size += std::fabs(bias) + std::fabs(residual);
    return bias + residual;
  }

  Sum sum(int64_t n) {
    reference_.weight(n, w_.data());
    double value = 0, squares = 0;
    for (size_t k = 0; k < x_.size(); ++k) {
      const double term = x_[k] * w_[k];
      value += term;
      squares += term * term;
    }
    double ends = std::fabs(value);
    value += extras(n, &ends);
    return {value, sum_tolerance(o_.projection.in_features, squares, ends)};
  }

  void verify_some() {
    Places places;
    const int64_t blocks = features_ / kLinearBlockN, start = places.below(blocks);
    const int64_t width = o_.projection.gated ? kLinearTileN : kLinearBlockN;  // of a block's outputs
    for (int64_t i = 0; i < std::max<int64_t>(o_.rows, blocks); ++i) {
      take_row(i % o_.rows);
      const int64_t n = (start + i) % blocks * width + places.below(width);
      if (o_.projection.gated) {
        verify_one_gated(n);
      } else {
        const Sum y = sum(n);
        comparison_.expect(row_ * features_ + n, o_.out.data()[row_ * features_ + n], y.value, y.tolerance);
      }
    }
  }

  void verify_one_gated(int64_t n) {
    const int64_t at = row_ * features_ / 2 + n, gate = n / 16 * 32 + n % 16;
    const Sum g = sum(gate), u = sum(gate + 16);
    const double silu = g.value / (1.0 + std::exp(-g.value)), expected = silu * u.value;
    comparison_.expect(at, double{to_float(o_.gated.data()[at])}, expected,  // silu's slope is at most 1.1
                       1.1 * g.tolerance * (std::fabs(u.value) + u.tolerance) + std::fabs(silu) * u.tolerance +
                           (kBf16Rounding + 4 * 0x1p-24) * std::fabs(expected));
  }

  // What outputs are off by has random signs here: it adds up like its squares.
  void verify_all(const float* out) {
    Places places;
    std::vector<double> signs(static_cast<size_t>(features_)), sums(x_.size()), squares(x_.size());
    for (double& sign : signs) sign = places.below(2) == 0 ? -1 : 1;
    add_up_weight(signs, &sums, &squares);
    for (int64_t r = 0; r < o_.rows; ++r) {
      take_row(r);
      double actual = 0, expected = 0, terms = 0, ends = 0;
      for (size_t k = 0; k < x_.size(); ++k) {
        expected += x_[k] * sums[k];
        terms += x_[k] * x_[k] * squares[k];
      }
      for (int64_t n = 0; n < features_; ++n) {
        const double sign = signs[static_cast<size_t>(n)], y = double{out[r * features_ + n]};
        double size = std::fabs(y);
        expected += sign * extras(n, &size);
        actual += sign * y;
        ends += size * size;
      }
      comparison_.expect(r * features_, actual, expected, sum_tolerance(o_.projection.in_features, terms, std::sqrt(ends)));
    }
  }

  // sums[k] = sum_n sign[n] w[n][k], squares[k] = sum_n w[n][k]^2.
  void add_up_weight(const std::vector<double>& signs, std::vector<double>* sums, std::vector<double>* squares) {
    const size_t k = x_.size(), threads = static_cast<size_t>(pool_.num_threads());
    std::vector<double> parts(threads * 3 * k);
    pool_.parallel_for(static_cast<int>(features_ / kLinearBlockN), [&](int block, int thread) {
      double *const w = parts.data() + static_cast<size_t>(thread) * 3 * k, *const sum = w + k, *const square = sum + k;
      for (int64_t n = int64_t{block} * kLinearBlockN, end = n + kLinearBlockN; n < end; ++n) {
        reference_.weight(n, w);
        for (size_t i = 0; i < k; ++i) {
          sum[i] += signs[static_cast<size_t>(n)] * w[i];
          square[i] += w[i] * w[i];
        }
      }
    });
    for (size_t t = 0; t < threads; ++t) {
      const double* const sum = parts.data() + (3 * t + 1) * k;
      for (size_t i = 0; i < k; ++i) {
        (*sums)[i] += sum[i];
        (*squares)[i] += sum[k + i];
      }
    }
  }

  void verify_gated(const float* turns) {
    const int64_t width = features_ / 2;
    for (int64_t at = 0; at < o_.rows * width; ++at) {
      const int64_t n = at % width;
      const float* const g = turns + at / width * features_ + n / 16 * 32 + n % 16;
      const double expected = double{g[0]} / (1.0 + std::exp(-double{g[0]})) * double{g[16]};
      comparison_.expect(at, double{to_float(o_.gated.data()[at])}, expected,
                         (kBf16Rounding + 16 * 0x1p-24) * std::fabs(expected) + 1e-30);
    }
  }

  const ProjectionOperands& o_;
  const ProductReference& reference_;
  ThreadPool& pool_;
  const int64_t features_;
  std::vector<double> x_, w_;  // of row_, and of an output
  int64_t row_ = -1;
  Comparison comparison_;
};

}  // namespace

std::string verify_projection(const ProjectionOperands& operands, const ProductReference& reference, ThreadPool& pool) {
  return Verifier(operands, reference, pool).verify();
}

}  // namespace otr::bench
