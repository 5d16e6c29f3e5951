// cpu-avx2: out = x W^T (+ bias) (+ residual) with float32 fma.
//
// Tile: up to 4 rows x 32 outputs. Inside a step the two tiles of 16 outputs go one after the other, which reads the weight in
// the order it lies in memory and has 8 accumulators of 8 outputs at work, 4 weight vectors (even and odd inputs of 2 x 8
// outputs, widened from bf16 by a shift and a mask) and 2 broadcasts: 14 of 16 registers. The other tile's wait on the stack.
// Reduction order: one float32 chain per output over inputs ascending, one fma each, the padding (zeros) included; then bias,
// then residual. As products of two bf16 are exact, that is cpu-scalar's arithmetic, to the bit outside the denormal range.
// Roofline: 1 … 4 rows are bound by memory (measured on one Zen 4 core, 7B shapes: all of the read bandwidth). Many rows: bound
// by fma (512 rows: 102 GFLOP/s of 116).
#include "kernels/linear/linear_vec.h"
#include "kernels/simd/vec_avx2.h"

namespace otr {
namespace {

constexpr int kRowBlock = 4;

OTR_INLINE __m256i load_pairs(const Element* p) { return _mm256_load_si256(reinterpret_cast<const __m256i*>(p)); }

template <int kRows>
__attribute__((noinline)) void multiply_rows(const LinearParams& p, int64_t first_row, int64_t block) {
  const int64_t steps = (p.weight.in_features + kLinearStepK - 1) / kLinearStepK;
  const Element* w = p.weight.packed + block * steps * 1024;
  const Element* x = p.x + first_row * p.x_stride;
  VecAvx2 acc[kRows][2];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int tile = 0; tile < 2; ++tile) acc[r][tile] = VecAvx2::zero();
  }

  for (int64_t step = 0; step < steps; ++step, w += 1024, x += kLinearStepK) {
#pragma GCC unroll 2
    for (int tile = 0; tile < 2; ++tile) {
      for (int pair = 0; pair < 16; ++pair) {
        const Element* weights = w + tile * 512 + pair * 32;
        const __m256i lo = load_pairs(weights), hi = load_pairs(weights + 16);
        const VecAvx2 even{even_floats(lo), even_floats(hi)}, odd{odd_floats(lo), odd_floats(hi)};
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) {
          const __m256i row = broadcast_bf16_pair(x + r * p.x_stride + 2 * pair);
          const __m256 x0 = even_floats(row), x1 = odd_floats(row);
          acc[r][tile] = fma_(VecAvx2{x0, x0}, even, acc[r][tile]);
          acc[r][tile] = fma_(VecAvx2{x1, x1}, odd, acc[r][tile]);
        }
      }
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) linear_finish(p, first_row + r, block, acc[r][0], acc[r][1]);
}

using MultiplyRows = void (*)(const LinearParams&, int64_t, int64_t);
constexpr MultiplyRows kMultiplyRows[kRowBlock + 1] = {nullptr, multiply_rows<1>, multiply_rows<2>, multiply_rows<3>,
                                                       multiply_rows<4>};

}  // namespace

void linear_avx2(const LinearParams& p, ThreadPool& pool) {
  if (p.num_rows > 0 && p.num_rows <= kRowBlock) {
    return linear_streams(p, pool, [&](int64_t block) { kMultiplyRows[p.num_rows](p, 0, block); });
  }
  linear_tasks(p, pool, [&](int first_row, int num_rows, int block) {
    const int pieces = (num_rows + kRowBlock - 1) / kRowBlock;
    for (int i = 0; i < pieces; ++i) {  // of equal size: 5 rows are 2 + 3, not 4 + 1
      const int begin = num_rows * i / pieces, end = num_rows * (i + 1) / pieces;
      kMultiplyRows[end - begin](p, first_row + begin, block);
    }
  });
}

}  // namespace otr
