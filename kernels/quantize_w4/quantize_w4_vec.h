// The vector form of quantize_w4, on tiles of 16 outputs. A group of a block is 8 KB of bf16: its extremes are found as it
// comes from memory, in the order in which it lies there, and it is quantised from L1. Fetching ahead made it slower.
//
// Extremes need no conversion: as signed 16-bit integers the positive bf16 are in order and above the negative ones; as
// unsigned ones the negative bf16 are in reverse order and above the positive ones. NaN and infinities are beyond the finite
// ones in both.
// Rounded values are kept as floats 1.5 * 2^23 + q. Their bits, shifted to the nibbles' places and added, are the 8 nibbles
// plus a constant, which is taken off once.
//
// Isa: a float type V and, on its Uint of 16 32-bit lanes: max_signed and max_unsigned (of 16-bit halves), and_, shift_left<n>,
// bits (of a V), as_float; and min of two V.
#pragma once

#include "kernels/base/thread_pool.h"
#include "kernels/quantize_w4/quantize_w4.h"

namespace otr {

inline constexpr uint32_t kMagicBits = 0x4b400000u;  // 1.5 * 2^23: adding it rounds to an integer, in the lowest mantissa bits
inline constexpr uint32_t kUpperHalf = 0xffff0000u;

template <typename Isa>
struct QuantizeW4 {
  using V = typename Isa::V;
  using Uint = typename V::Uint;

  struct Extremes {
    Uint max, min;  // the even input's in the lower half, the odd one's in the upper
  };
  struct Scale {
    V inverse, zero;  // 0 for groups of zeros only; 1.5 * 2^23 + zero
  };

  OTR_INLINE Uint load_pairs(const Element* w) { return Uint::load(reinterpret_cast<const uint32_t*>(w)); }
  OTR_INLINE V even_floats(Uint pairs) { return Isa::as_float(Isa::template shift_left<16>(pairs)); }
  OTR_INLINE V odd_floats(Uint pairs) { return Isa::as_float(Isa::and_(pairs, Uint::broadcast(kUpperHalf))); }

  // Within 1.5 * 2^23 + (0 … 15); NaN to the lower end.
  OTR_INLINE V clamp(V a) {
    return Isa::min(max_(a, V::broadcast(float_from_bits(kMagicBits))), V::broadcast(float_from_bits(kMagicBits + 15)));
  }

  // The scale of 16 outputs; stores their scale words.
  OTR_INLINE Scale scale_of(Extremes e, uint8_t* words) {
    const V max = odd_floats(Isa::max_signed(e.max, Isa::template shift_left<16>(e.max)));
    const V min = odd_floats(Isa::max_unsigned(e.min, Isa::template shift_left<16>(e.min)));
    const V half = V::broadcast(0.5f), smallest = V::broadcast(kW4SmallestBase), infinity = V::broadcast(__builtin_inff());
    const V base = (max * half - min * half) / V::broadcast(7.5f);
    const Uint cleared = Isa::and_(Isa::bits(base), Uint::broadcast(~kW4ZeroPointMask));
    V inverse = V::broadcast(1.0f) / Isa::as_float(cleared);
    inverse = select_less(base, smallest, V::zero(), inverse);
    inverse = select_less(base, infinity, inverse, V::zero());
    const V zero = clamp(-min * inverse + V::broadcast(float_from_bits(kMagicBits)));
    Uint word = cleared + (Isa::bits(zero) + Uint::broadcast(0u - kMagicBits));
    word = select_less(base, smallest, Uint::broadcast(0), word);
    word = select_less(base, infinity, word, Uint::broadcast(kW4NotFinite));
    store(reinterpret_cast<uint32_t*>(words), word);
    return {inverse, zero};
  }

  // 16 outputs x 8 inputs, in four vectors of pairs.
  OTR_INLINE void quantize_tile(const Element* w, Scale scale, uint8_t* nibbles) {
    Uint sum = Uint::broadcast(0u - kMagicBits * 0x11111111u);
    add_pair<0>(load_pairs(w), scale, &sum);
    add_pair<1>(load_pairs(w + 32), scale, &sum);
    add_pair<2>(load_pairs(w + 64), scale, &sum);
    add_pair<3>(load_pairs(w + 96), scale, &sum);
    store(reinterpret_cast<uint32_t*>(nibbles), sum);
  }
  template <int kPair>
  OTR_INLINE void add_pair(Uint pairs, Scale scale, Uint* sum) {
    const V even = clamp(even_floats(pairs) * scale.inverse + scale.zero);
    const V odd = clamp(odd_floats(pairs) * scale.inverse + scale.zero);
    *sum = *sum + Isa::template shift_left<4 * kPair>(Isa::bits(even));
    *sum = *sum + Isa::template shift_left<16 + 4 * kPair>(Isa::bits(odd));
  }

  // 32 outputs x a group of `pieces` x 8 inputs.
  OTR_INLINE void quantize_group(const Element* w, int pieces, uint8_t* packed) {
    Extremes e[2];
    for (int tile = 0; tile < 2; ++tile) e[tile] = {Uint::broadcast(0), Uint::broadcast(0x80008000u)};  // 0 and -0
    const int steps = pieces * kW4PieceK / kLinearStepK;
    for (int step = 0; step < steps; ++step) {
#pragma GCC unroll 2
      for (int tile = 0; tile < 2; ++tile) {
        const Element* pairs = w + step * 1024 + tile * 512;
#pragma GCC unroll 4
        for (int pair = 0; pair < 16; ++pair) {
          const Uint v = load_pairs(pairs + pair * 32);
          e[tile] = {Isa::max_signed(e[tile].max, v), Isa::max_unsigned(e[tile].min, v)};
        }
      }
    }
    const Scale scale[2] = {scale_of(e[0], packed), scale_of(e[1], packed + kW4WordsBytes / 2)};
    uint8_t* nibbles = packed + kW4WordsBytes;
    for (int piece = 0; piece < pieces; ++piece, nibbles += kW4PieceBytes) {
      const Element* pairs = w + piece / 4 * 1024 + piece % 4 * 128;
      quantize_tile(pairs, scale[0], nibbles);
      quantize_tile(pairs + 512, scale[1], nibbles + kW4TileBytes);
    }
  }

  OTR_INLINE void run(const QuantizeW4Params& p, ThreadPool& pool) {
    const int64_t k = p.weight.in_features;
    const int blocks = static_cast<int>(linear_padded(p.weight.out_features) / kLinearBlockN);
    pool.parallel_for(blocks, [&](int block, int) {
      const Element* w = p.weight.packed + block * linear_padded(k) * kLinearBlockN;
      uint8_t* packed = p.packed + block * w4_cpu_block_bytes(k);
      for (int64_t g = 0; g < w4_cpu_groups(k); ++g) {
        quantize_group(w + g * kW4GroupK * kLinearBlockN, w4_cpu_pieces(k, g), packed + g * kW4GroupBytes);
      }
    });
  }
};

}  // namespace otr
