// linear_w4: out = x Wq^T (+ bias) (+ residual), the product of linear with weights of 4 bits: the projections and the lm_head
// of a drafter that is the target itself, quantised (quantize_w4 writes the weight).
//
//   w[n][k]   = scale[n][g] * (q[n][k] - zero[n][g])                 g = k / 128; q and zero are integers 0 … 15
//   out[r][n] = residual[r][n] + (sum_g scale[n][g] * partial(r, n, g) + bias[n])
//   partial(r, n, g) = sum_{k in g} x[r][k] * (q[n][k] - zero[n][g])
//
// A weight of gate and up in turns gives `gated` instead, as in linear.h.
//
// On the CPU x is rounded to 8 bits, so that partial sums are sums of integers and all paths have the same bits: a row's
// x[128 g …] is i * unit(g), unit = 2^(e - 6), 2^e <= the greatest |x| of the group < 2^(e + 1), and i rounded to nearest even,
// -128 … 127; a greatest below 2^-94 counts as that. The sum of i * (q - zero) is exact and goes to float32, which loses
// nothing; groups ascending from 0, one float32 fma each takes it times (scale * unit). What that costs: x of a normal
// distribution is off by 0.9 % of its size (root mean square), weights of 4 bits by some 10 %; the more one input stands out of
// its group, the more the others lose. An infinity in x makes its row's outputs NaN, as a NaN does. sm_90a takes x as it is:
// products with q - zero are exact in float32, in an order that its files say. Zero padding takes part; bias, then residual,
// are added last.
//
// Weight layout (all CPU paths; other backends have their own): blocks of 32 outputs; inside a block, groups of 128 inputs, of
// which the last may be short; a group is a scale word for each of the 32 outputs (128 bytes), then pieces of 8 inputs; a piece
// is two tiles of 16 outputs; a tile is 64 bytes: one 32-bit lane an output, with the even inputs' nibbles in the lower and the
// odd ones' in the upper 16 bits. A block is thus one stream of 4.25 bits a weight, and 64 bytes of it become, by operations
// that never cross a lane, two vectors of bytes [16 outputs][4 inputs], as VPDPBUSD and TDPBSSD take them: lower nibbles are
// inputs 0, 4, 1, 5, upper ones 2, 6, 3, 7.
// A scale word is the scale as float32; its lowest 4 bits, worth 2^-19 of it, are also the zero point.
// Outputs and inputs are padded to 32; padding has q = zero: it is exactly 0.
//
// REQUIRES: in_features and out_features are at least 1.
// Errors: none. Thread safety: params are read only; `out` rows must not overlap other live buffers, but may equal `residual`.
#pragma once

#include <cstdint>

#include "kernels/base/element.h"
#include "kernels/linear/linear.h"

namespace otr {

inline constexpr int kW4GroupK = 128;    // inputs that share a scale
inline constexpr int kW4PieceK = 8;      // inputs of a 32-bit lane
inline constexpr int kW4TileBytes = 64;  // 16 outputs x 8 inputs
inline constexpr int kW4PieceBytes = 2 * kW4TileBytes;
inline constexpr int kW4WordsBytes = kLinearBlockN * 4;  // scale words of a group
inline constexpr int kW4GroupBytes = kW4WordsBytes + kW4GroupK / kW4PieceK * kW4PieceBytes;

OTR_INLINE constexpr int64_t w4_cpu_groups(int64_t in_features) { return (in_features + kW4GroupK - 1) / kW4GroupK; }

// Pieces of group g: 16, fewer in a short last group.
OTR_INLINE constexpr int w4_cpu_pieces(int64_t in_features, int64_t g) {
  const int64_t left = linear_padded(in_features) - g * kW4GroupK;
  return static_cast<int>((left < kW4GroupK ? left : kW4GroupK) / kW4PieceK);
}

OTR_INLINE constexpr int64_t w4_cpu_block_bytes(int64_t in_features) {
  return w4_cpu_groups(in_features) * kW4WordsBytes + linear_padded(in_features) / kW4PieceK * kW4PieceBytes;
}

OTR_INLINE constexpr int64_t w4_cpu_packed_bytes(int64_t out_features, int64_t in_features) {
  return linear_padded(out_features) / kLinearBlockN * w4_cpu_block_bytes(in_features);
}

// Byte offset of the scale word of output n and group g.
OTR_INLINE constexpr int64_t w4_cpu_word_offset(int64_t n, int64_t g, int64_t in_features) {
  return n / kLinearBlockN * w4_cpu_block_bytes(in_features) + g * kW4GroupBytes + n % kLinearBlockN * 4;
}

// Index of q[n][k], in nibbles from the start of the weight, the lower nibble of a byte first.
OTR_INLINE constexpr int64_t w4_cpu_nibble_index(int64_t n, int64_t k, int64_t in_features) {
  const int64_t group = n / kLinearBlockN * w4_cpu_block_bytes(in_features) + k / kW4GroupK * kW4GroupBytes + kW4WordsBytes;
  const int64_t tile = k % kW4GroupK / kW4PieceK * 2 + n % kLinearBlockN / kLinearTileN;
  return (group + tile * kW4TileBytes + n % kLinearTileN * 4) * 2 + k % 2 * 4 + k % kW4PieceK / 2;
}

inline constexpr uint32_t kW4ZeroPointMask = 0xf;  // of a scale word

// What a group of x is rounded to multiples of; NaN, and 0, where an input is not finite. `exponent`: the greatest |x|'s, as
// float32 has it. Units of 2^-100 and more keep their products with scales (of 2^-26 and more) from being denormal: where all
// of a group is 0 that made the whole product four times as slow.
struct W4Unit {
  float unit, inverse;
};
OTR_INLINE W4Unit w4_unit(uint32_t exponent) {
  constexpr uint32_t kBits = 6, kLeast = 127 - 94, kNotFinite = 255;
  if (exponent == kNotFinite) return {float_from_bits(0x7fc00000u), 0.0f};
  const uint32_t e = (exponent < kLeast ? kLeast : exponent) - kBits;
  return {float_from_bits(e << 23), float_from_bits((254 - e) << 23)};
}

struct LinearW4Weight {
  int32_t in_features = 0;
  int32_t out_features = 0;
  const uint8_t* packed = nullptr;  // [w4_cpu_packed_bytes], 64-byte aligned
  const float* bias = nullptr;      // [out_features], may be null
};

struct LinearW4Params {
  int32_t num_rows;
  LinearW4Weight weight;
  const Element* x;       // [num_rows][x_stride], zero from in_features up to the next multiple of 32; 64-byte aligned
  int64_t x_stride;       // elements, a multiple of 32
  const float* residual;  // [num_rows][out_stride], may be null, may equal out
  float* out;             // [num_rows][out_stride]
  int64_t out_stride;
  Element* gated = nullptr;  // [num_rows][gated_stride]: written instead of `out` where not null
  int64_t gated_stride = 0;  // elements, at least out_features / 2
};

void linear_w4_scalar(const LinearW4Params& params, ThreadPool& pool);
void linear_w4_avx2(const LinearW4Params& params, ThreadPool& pool);
void linear_w4_avx512(const LinearW4Params& params, ThreadPool& pool);
void linear_w4_amx(const LinearW4Params& params, ThreadPool& pool);

}  // namespace otr
