// cpu-avx512: out = x W^T (+ bias) (+ residual) with VDPBF16PS.
//
// Tile: up to 12 rows x 32 outputs: 24 accumulators of 16 outputs, 4 weight vectors. A pair of inputs of one row is broadcast
// and multiplied with the weight's [16 outputs][2] vectors, as they are stored.
// Reduction order: one float32 chain per output over input pairs ascending, the padding (zeros) included; inside a pair
// VDPBF16PS's own: the odd input's fma, then the even one's, denormals flushed, MXCSR ignored (so the Intel SDM says,
// and so Zen 4 does). Then bias, then residual. Nothing depends on the rows.
// Roofline: 1 … 12 rows read the weight once: bound by memory (one row, 7B shapes, one core: all of the measured read
// bandwidth). Many rows: bound by VDPBF16PS (one core, of 233 GFLOP/s at one a cycle: 229 with the weight in L2, 213 from
// memory).
// In between both bounds are near, and reading must go on while products are made: a chunk of the contraction is multiplied
// with all rows while the next chunk is fetched (before, the first 12 rows waited for memory and the others left it idle: 9 to
// 24 rows of Qwen2.5-0.5B's shapes took 1.1 to 1.3 times as long). Of what the products alone take, 12 rows take 1.25, 16
// rows 1.15, 24 rows 1.11 and 32 rows 1.06; 24 rows by 16 outputs in one pass, fetching into L1, and chunks of 4 to 16 steps
// are no faster.
#include "kernels/linear/linear_vec.h"
#include "kernels/simd/vec_avx512.h"

namespace otr {
namespace {

constexpr int kRowBlock = 12;

OTR_INLINE __m512bh load_weights(const Element* w) { return reinterpret_cast<__m512bh>(_mm512_load_si512(w)); }

// Some rows by 32 outputs over some steps of the contraction.
struct Piece {
  const Element* w;
  const Element* x;
  int64_t x_stride;
  int64_t steps;
  __m512 (*sums)[2];     // [rows], read and written
  const Element* ahead;  // the weights that come next: of each 4 vectors there, numbers first_ahead … end_ahead - 1 are
                         // fetched; some may lie beyond the last
  int first_ahead, end_ahead;
};

// Up to here memory is slower by far, and the hardware fetches ahead best undisturbed: by one stream, tile after tile. (Both
// tiles at once leave it at half the bandwidth: 10 against 21 GB/s on one Zen 4 core.)
constexpr int kStreamRows = 4;

// A step, 16 pairs of inputs, of some rows by two tiles of 16 outputs.
template <int kRows>
OTR_INLINE void step_of_few_rows(const Piece& p, const Element* w, const Element* x, const Element* ahead,
                                 __m512 (&acc)[kRows][2]) {
#pragma GCC unroll 2
  for (int tile = 0; tile < 2; ++tile) {
    for (int pair = 0; pair < 16; pair += 4) {  // four at a time: one row pointer serves four products
      const int64_t at = tile * 512 + pair * 32;
      for (int line = p.first_ahead; line < p.end_ahead; ++line) __builtin_prefetch(ahead + at + line * 32, 0, 2);
      const __m512bh w0 = load_weights(w + at), w1 = load_weights(w + at + 32);
      const __m512bh w2 = load_weights(w + at + 64), w3 = load_weights(w + at + 96);
#pragma GCC unroll 12
      for (int r = 0; r < kRows; ++r) {
        const Element* row = x + r * p.x_stride + 2 * pair;
        acc[r][tile] = _mm512_dpbf16_ps(acc[r][tile], w0, broadcast_bf16_pair(row));
        acc[r][tile] = _mm512_dpbf16_ps(acc[r][tile], w1, broadcast_bf16_pair(row + 2));
        acc[r][tile] = _mm512_dpbf16_ps(acc[r][tile], w2, broadcast_bf16_pair(row + 4));
        acc[r][tile] = _mm512_dpbf16_ps(acc[r][tile], w3, broadcast_bf16_pair(row + 6));
      }
    }
  }
}

// Likewise, where the products take longer than memory: each pair of x is broadcast once for both tiles. One broadcast a
// product is as many loads as a cycle has: that took 3 to 7 % longer.
template <int kRows>
OTR_INLINE void step_of_rows(const Piece& p, const Element* w, const Element* x, const Element* ahead,
                             __m512 (&acc)[kRows][2]) {
  for (int pair = 0; pair < 16; pair += 2, w += 64, ahead += 64) {
    for (int line = p.first_ahead; line < p.end_ahead; ++line) {  // of 4: two of either tile
      __builtin_prefetch(ahead + line / 2 * 512 + line % 2 * 32, 0, 2);
    }
    const __m512bh w0 = load_weights(w), w1 = load_weights(w + 512);
    const __m512bh w2 = load_weights(w + 32), w3 = load_weights(w + 512 + 32);
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) {
      const Element* row = x + r * p.x_stride + 2 * pair;
      const __m512bh first = broadcast_bf16_pair(row), second = broadcast_bf16_pair(row + 2);
      acc[r][0] = _mm512_dpbf16_ps(acc[r][0], w0, first);
      acc[r][1] = _mm512_dpbf16_ps(acc[r][1], w1, first);
      acc[r][0] = _mm512_dpbf16_ps(acc[r][0], w2, second);
      acc[r][1] = _mm512_dpbf16_ps(acc[r][1], w3, second);
    }
  }
}

template <int kRows>
__attribute__((noinline)) void multiply_rows(const Piece& p) {
  const Element* w = p.w;
  const Element* x = p.x;
  const Element* ahead = p.ahead;
  __m512 acc[kRows][2];
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) acc[r][0] = p.sums[r][0], acc[r][1] = p.sums[r][1];
  for (int64_t step = 0; step < p.steps; ++step, w += 1024, ahead += 1024, x += kLinearStepK) {
    if constexpr (kRows <= kStreamRows) step_of_few_rows<kRows>(p, w, x, ahead, acc);
    else step_of_rows<kRows>(p, w, x, ahead, acc);
  }
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) p.sums[r][0] = acc[r][0], p.sums[r][1] = acc[r][1];
}

using MultiplyRows = void (*)(const Piece&);
constexpr MultiplyRows kMultiplyRows[kRowBlock + 1] = {nullptr,          multiply_rows<1>, multiply_rows<2>,  multiply_rows<3>,
                                                       multiply_rows<4>, multiply_rows<5>, multiply_rows<6>,  multiply_rows<7>,
                                                       multiply_rows<8>, multiply_rows<9>, multiply_rows<10>, multiply_rows<11>,
                                                       multiply_rows<12>};

constexpr int64_t kChunkSteps = 32;  // 64 KB of weights: the rest of L2 is for what comes and for x

// One block of outputs. The rows' pieces take turns at each chunk of the contraction, while the next chunk comes.
void multiply_block(const LinearParams& p, int first_row, int num_rows, int64_t block, int64_t next_block) {
  const int64_t steps = (p.weight.in_features + kLinearStepK - 1) / kLinearStepK;
  const bool streams = num_rows <= kStreamRows;
  const int64_t chunks = streams ? 1 : (steps + kChunkSteps - 1) / kChunkSteps;
  const int pieces = (num_rows + kRowBlock - 1) / kRowBlock;
  const Element* w = p.weight.packed + block * steps * 1024;
  const Element* x = p.x + first_row * p.x_stride;
  __m512 sums[kLinearTaskRows][2];
  for (int r = 0; r < num_rows; ++r) sums[r][0] = sums[r][1] = _mm512_setzero_ps();
  for (int64_t c = 0; c < chunks; ++c) {
    const int64_t first = steps * c / chunks, end = steps * (c + 1) / chunks;
    const Element* ahead = c + 1 < chunks ? w + end * 1024 : p.weight.packed + next_block * steps * 1024;
    for (int i = 0; i < pieces; ++i) {  // of equal size: 13 rows are 6 + 7, both near peak, not 12 + 1
      const int begin = num_rows * i / pieces, size = num_rows * (i + 1) / pieces - begin;
      const Piece piece{w + first * 1024,
                        x + begin * p.x_stride + first * kLinearStepK,
                        p.x_stride,
                        end - first,
                        sums + begin,
                        ahead,
                        pieces < 4 ? 4 * i / pieces : i,
                        streams      ? 0
                        : pieces < 4 ? 4 * (i + 1) / pieces
                        : i < 4      ? i + 1
                                     : i};
      kMultiplyRows[size](piece);
    }
  }
  for (int r = 0; r < num_rows; ++r) linear_finish(p, first_row + r, block, VecAvx512{sums[r][0]}, VecAvx512{sums[r][1]});
}

}  // namespace

void linear_avx512(const LinearParams& p, ThreadPool& pool) {
  const int64_t blocks = linear_padded(p.weight.out_features) / kLinearBlockN;
  if (p.num_rows <= kStreamRows) {
    // Two Zen 4 cores, Qwen2.5-0.5B's qkv, o and gate_up: with a task a block 1.19 to 1.28 times as long. (With 8 and 16 rows,
    // which fetch the next block themselves, streams are up to 1.07 times as slow at 7B's shapes.)
    return linear_streams(p, pool, [&](int64_t block) { multiply_block(p, 0, p.num_rows, block, block); });
  }
  linear_tasks(p, pool, [&](int first_row, int num_rows, int block) {
    const int64_t next = block + pool.num_threads();
    multiply_block(p, first_row, num_rows, block, next < blocks ? next : block);
  });
}

}  // namespace otr
