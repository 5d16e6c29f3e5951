// cpu-avx512: out = x W^T (+ bias) (+ residual) with VDPBF16PS.
//
// Tile: up to 12 rows x 32 outputs: 24 accumulators of 16 outputs, 4 weight vectors. A pair of inputs of one row is broadcast and
// multiplied with the weight's [16 outputs][2] vector, as it is stored. Inside a step the two tiles of outputs go one after the
// other: reading both at once left the hardware prefetcher at half the bandwidth (10 against 21 GB/s on one Zen 4 core).
// Reduction order: one float32 chain per output over input pairs ascending, the padding (zeros) included; inside a pair
// VDPBF16PS's own: the odd input's fma, then the even one's, denormals flushed, MXCSR ignored (so the Intel SDM says,
// and so Zen 4 does). Then bias, then residual. Nothing depends on the rows.
// Roofline: 1 … 12 rows read the weight once: bound by memory (one row, 7B shapes, one core: all of the measured read
// bandwidth). Many rows: 48 instructions per 4 weight loads: bound by VDPBF16PS (512 rows: 214 GFLOP/s of 233 at one a cycle).
#include "kernels/linear/linear_vec.h"
#include "kernels/simd/vec_avx512.h"

namespace otr {
namespace {

constexpr int kRowBlock = 12;

OTR_INLINE __m512bh load_weights(const Element* w) { return reinterpret_cast<__m512bh>(_mm512_load_si512(w)); }

OTR_INLINE __m512bh broadcast_pair(const Element* x) {
  int pair;
  __builtin_memcpy(&pair, x, sizeof pair);
  return reinterpret_cast<__m512bh>(_mm512_set1_epi32(pair));
}

template <int kRows>
__attribute__((noinline)) void multiply_rows(const LinearParams& p, int64_t first_row, int64_t block) {
  const int64_t steps = (p.weight.in_features + kLinearStepK - 1) / kLinearStepK;
  const Element* w = p.weight.packed + block * steps * 1024;
  const Element* x = p.x + first_row * p.x_stride;
  __m512 acc[kRows][2];
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) acc[r][0] = acc[r][1] = _mm512_setzero_ps();

  for (int64_t step = 0; step < steps; ++step, w += 1024, x += kLinearStepK) {
#pragma GCC unroll 2
    for (int tile = 0; tile < 2; ++tile) {
      for (int pair = 0; pair < 16; pair += 4) {  // four at a time: one row pointer serves four products
        const Element* weights = w + tile * 512 + pair * 32;
        const __m512bh w0 = load_weights(weights), w1 = load_weights(weights + 32);
        const __m512bh w2 = load_weights(weights + 64), w3 = load_weights(weights + 96);
#pragma GCC unroll 12
        for (int r = 0; r < kRows; ++r) {
          const Element* row = x + r * p.x_stride + 2 * pair;
          acc[r][tile] = _mm512_dpbf16_ps(acc[r][tile], w0, broadcast_pair(row));
          acc[r][tile] = _mm512_dpbf16_ps(acc[r][tile], w1, broadcast_pair(row + 2));
          acc[r][tile] = _mm512_dpbf16_ps(acc[r][tile], w2, broadcast_pair(row + 4));
          acc[r][tile] = _mm512_dpbf16_ps(acc[r][tile], w3, broadcast_pair(row + 6));
        }
      }
    }
  }
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) {
    linear_finish(p, first_row + r, block, VecAvx512{acc[r][0]}, VecAvx512{acc[r][1]});
  }
}

using MultiplyRows = void (*)(const LinearParams&, int64_t, int64_t);
constexpr MultiplyRows kMultiplyRows[kRowBlock + 1] = {
    nullptr,          multiply_rows<1>, multiply_rows<2>, multiply_rows<3>,  multiply_rows<4>,  multiply_rows<5>,
    multiply_rows<6>, multiply_rows<7>, multiply_rows<8>, multiply_rows<9>, multiply_rows<10>, multiply_rows<11>,
    multiply_rows<12>};

}  // namespace

void linear_avx512(const LinearParams& p, ThreadPool& pool) {
  linear_tasks(p, pool, [&](int first_row, int num_rows, int block) {
    const int pieces = (num_rows + kRowBlock - 1) / kRowBlock;
    for (int i = 0; i < pieces; ++i) {  // of equal size: 13 rows are 6 + 7, both near peak, not 12 + 1
      const int begin = num_rows * i / pieces, end = num_rows * (i + 1) / pieces;
      kMultiplyRows[end - begin](p, first_row + begin, block);
    }
  });
}

}  // namespace otr
